#!/bin/sh
# The engine as one file: the first program of docs/c.md is compiled with it as that page says, and runs.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/build"
python3 program/packaging/amalgamate.py "$work/build"
ln -s "$PWD/include" "$PWD/examples" "$work"
lines=$(sed -n '/^.\/run amalgamate$/,/^```$/{ /^cc /p; /^\.\/mlp/p }' docs/c.md)
[ "$(echo "$lines" | wc -l)" -eq 2 ] || { echo "docs/c.md does not compile examples/engine/mlp.c and run it: $lines"; exit 1; }
cd "$work"
echo "$lines" | sed "s/^cc -O2/${CC:-cc} -O0 $(pkg-config --cflags openblas | sed 's|[/&]|\\&|g')/" >lines
sh -e lines
if nm mlp | grep -E ' [TtDdBb] (mt_model|mt_comm|mti_profile|mti_workload|main_profile)'; then
    echo "the one file has a symbol of a storey above the engine"
    exit 1
fi
