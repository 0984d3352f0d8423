#!/bin/sh
# No file of a storey or in include/ is longer than 600 lines; prints how many lines the engine has: length.sh [TREE]
set -eu
cd "${1:-$(dirname "$0")/../..}"
bad=0
find src models lab program include -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' | sort | xargs awk '
FNR == 601 { print FILENAME ": more than 600 lines"; bad = 1 }
END { exit bad }' || bad=1
for storey in src models lab program; do
    echo "$storey: $(find $storey -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' -o -name '*.inc' | xargs cat | wc -l) lines"
done
exit $bad
