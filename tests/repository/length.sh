#!/bin/sh
# No file in src/ or include/ is longer than 600 lines: length.sh [TREE]
set -eu
cd "${1:-$(dirname "$0")/../..}"
find src include -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' | sort | xargs awk '
FNR == 601 { print FILENAME ": more than 600 lines"; bad = 1 }
END { exit bad }'
