#!/bin/sh
# What a public header of the engine declares, the engine alone defines, and it asks for no symbol of ours that it lacks:
# promised.sh LIBMEMTAPE_ENGINE_A [TREE]
set -eu
symbols=$(nm "$1")
cd "${2:-$(dirname "$0")/../..}"
# shellcheck disable=SC2046
printf '%s\n' "$symbols" | awk '
FNR == NR {
    if (NF == 3 && $2 ~ /^[TDBRV]$/) defined[$3] = 1
    if (NF == 2 && $1 == "U" && $2 ~ /^mti?_/) asked[$2] = 1
    next
}
/^MT_API / { waiting = 1 }
waiting && match($0, /mt_[a-z0-9_]+\(/) {
    name = substr($0, RSTART, RLENGTH - 1)
    waiting = 0
    n++
    if (!(name in defined)) {
        print FILENAME ":" FNR ": the engine does not define " name
        bad = 1
    }
}
END {
    for (name in asked)
        if (!(name in defined)) {
            print "the engine asks for " name " and does not define it"
            bad = 1
        }
    if (!n) {
        print "no MT_API function found"
        bad = 1
    }
    exit bad
}' - $(sed -n 's|^#include "\(memtape/.*\)"$|include/\1|p' include/memtape/memtape.h)
