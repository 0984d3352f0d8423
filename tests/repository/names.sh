#!/bin/sh
# One name, one meaning: no mti_ or mt_ type is defined in two files: names.sh [TREE]
# Each backend has its own of some, and no file includes two backends' headers.
set -eu
cd "${1:-$(dirname "$0")/../..}"
find src include -type f | sort | xargs awk '
match($0, /^(typedef )?(template <[^>]*> )?(struct|enum|union) mti?_[a-z0-9_]+ \{/) {
    name = substr($0, RSTART, RLENGTH - 2)
    sub(/.* /, "", name)
    room = FILENAME
    if (match(FILENAME, /^src\/backends\/[a-z]+\//)) room = substr(FILENAME, 1, RLENGTH)
    backend = room != FILENAME
    if (name in first && !(backend && of_backend[name] && of_room[name] != room)) {
        print FILENAME ":" FNR ": " name " is defined in " first[name] ", too"
        failed = 1
    }
    first[name] = FILENAME
    of_room[name] = room
    of_backend[name] = backend
}
END { exit failed }'
