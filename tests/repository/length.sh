#!/bin/sh
# No file in src/ or include/ is longer than 600 lines, and the engine not longer than 11,682: length.sh [TREE]
set -eu
cd "${1:-$(dirname "$0")/../..}"
bad=0
find src include -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' | sort | xargs awk '
FNR == 601 { print FILENAME ": more than 600 lines"; bad = 1 }
END { exit bad }' || bad=1
engine=$(find src -type f | grep -E '^src/(base|memtrack|tensor|autograd|ops)/' | xargs cat | wc -l)
if [ "$engine" -gt 11682 ]; then
    echo "the engine, src/{base,memtrack,tensor,autograd,ops}: $engine lines; at most 11682"
    bad=1
fi
exit $bad
