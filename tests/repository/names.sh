#!/bin/sh
# One name, one meaning: names.sh [TREE] finds a mti_ or mt_ type that is defined in two files, and a file name that stands in
# two rooms. Each backend has its own of some types, and no file includes two backends' headers. Kernels are in files named as
# their ops are, and a verb's file has its verb's name.
set -eu
cd "${1:-$(dirname "$0")/../..}"
find src models lab program include -type f | sort | xargs awk '
FNR == 1 && FILENAME ~ /^(src|models|lab|program)\/[a-z]+\/.*\.(c|h|def)$/ && FILENAME !~ /^(src\/backends\/[a-z]+|program\/verbs)\// {
    n_parts = split(FILENAME, part, "/")
    stem = part[n_parts]
    sub(/\.[a-z]+$/, "", stem)
    if (stem in home && home[stem] != part[2]) {
        print FILENAME ":1: a file called " stem " stands in " home[stem] ", too"
        failed = 1
    }
    home[stem] = part[2]
}
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
