#!/bin/sh
# The engine as one file: it compiles, and a program that needs the engine alone runs with it.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 program/packaging/amalgamate.py "$work"
sed 's|<memtape/memtape.h>|"memtape.h"|' examples/engine/mlp.c >"$work/mine.c"
cd "$work"
# shellcheck disable=SC2046
${CC:-cc} -O0 -fopenmp mine.c memtape.c $(pkg-config --cflags openblas) -lopenblas -lm -o mine
./mine
if nm mine | grep -E ' [TtDdBb] (mt_model|mt_comm|mti_profile|mti_workload|main_profile)'; then
    echo "the one file has a symbol of a storey above the engine"
    exit 1
fi
