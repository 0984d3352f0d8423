#!/bin/sh
# The GPUs that the CUDA backend gets machine code for: those we know among those that nvcc knows; gencode.sh [TREE]
set -eu
here=$(cd "${1:-$(dirname "$0")/../..}" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
mkdir "$scratch/bin"

# expect WHAT KNOWN OPTION NUMBER...: an nvcc that knows KNOWN makes code for these numbers, and for no others
expect() {
    what=$1 known=$2 option=$3
    shift 3
    printf '#!/bin/sh\nprintf "sm_%%s\\n" %s\n' "$known" >"$scratch/bin/nvcc"
    chmod +x "$scratch/bin/nvcc"
    rm -rf "$scratch/build"
    PATH=$scratch/bin:$PATH meson setup "$scratch/build" "$here" -Dcuda=enabled -Dgpu_code="$option" -Dtests=false \
        -Dbench=false -Dmpi=disabled >"$scratch/log" 2>&1 || { cat "$scratch/log" && exit 1; }
    got=$(grep -o 'code=sm_[0-9]*' "$scratch/build/build.ninja" | sort -u | sed 's/.*_//' | sort -n | tr '\n' ' ')
    [ "$got" = "$*${*:+ }" ] || {
        echo "gencode.sh: $what: code for $got, not $*"
        failed=1
    }
}
expect 'an nvcc of today' '75 80 90 100 103 120' machine 80 90 100 120
expect 'an nvcc that knows no Blackwell' '75 80 86 90' machine 80 90
expect 'up to Hopper' '75 80 90 100 120' hopper 80 90
expect 'a check of the sources' '80 90 100 120' unoptimized
exit $failed
