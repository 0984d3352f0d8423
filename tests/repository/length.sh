#!/bin/sh
# No file in src/ or include/ is longer than 600 lines; prints how many lines the engine has: length.sh [TREE]
set -eu
cd "${1:-$(dirname "$0")/../..}"
bad=0
find src include -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' | sort | xargs awk '
FNR == 601 { print FILENAME ": more than 600 lines"; bad = 1 }
END { exit bad }' || bad=1
engine=$(find src -type f | grep -E '^src/(base|memtrack|tensor|autograd|ops)/' | xargs cat | wc -l)
echo "the engine, src/{base,memtrack,tensor,autograd,ops}: $engine lines"
exit $bad
