#!/bin/sh
# macos.sh ZIG JANSSON PAGE_C [PROGRAM]: whether clang, as zig carries it, compiles the program for macOS on ARM and links it: with the
# page's reference products, as there is no OpenBLAS, and without tokenizers, MPI and CUDA. PAGE_C: the report's page, as the build joined it.
# PROGRAM: where it is left, optimized, for somebody with a Mac to try.
set -eu
zig=$1/zig jansson=$(cd "$2" && pwd)/src page=$3 program=${4:-}
cd "$(dirname "$0")/../.."
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
optimization=${program:+-O2}
export zig jansson objects optimization
compile='for file; do
    "$zig" cc -target aarch64-macos -std=c11 "${optimization:--O0}" -w -D_GNU_SOURCE -D_DARWIN_C_SOURCE -DMTI_NO_MULTIVERSION -DHAVE_STDINT_H \
        -DMTI_VERSION=\"0\" -DMTI_SOURCE_DIR=\"/\" -DMTI_DATA_DIR=\"/\" -DMTI_MODULE_DIR=\"/\" -DMTI_LIBDIR=\"/\" \
        -Iinclude -Isrc -Imodels -Ilab -Iprogram -Iprogram/browser/include -I"$jansson" -c "$file" -o "$objects/$(echo "$file" | tr / _).o"
done'
{
    find src models lab program -name '*.c' |
        grep -Ev '^(src/backends/(cuda/|loaded_module\.c)|models/(comm/mpi\.c|tokens/)|program/(browser/|(verbs/start|options/reference_pages)\.c))'
    for name in dump error hashtable hashtable_seed load memory pack_unpack strbuffer strconv utf value version; do
        echo "$jansson/$name.c"
    done
    printf '%s\n' models/tokens/token_list.c models/tokens/no_tokens.c program/browser/start.c program/browser/products.c "$page"
} | xargs -P "$(getconf _NPROCESSORS_ONLN)" -n 1 sh -c "$compile" sh
# What macOS lacks: OpenBLAS's own functions, which are asked for only if they are there.
lacking=$("$zig" cc -target aarch64-macos "$objects"/*.o -o "$objects/memtape" 2>&1 | sed -n 's/^error: undefined symbol: _//p' | sort | xargs)
[ "$lacking" = "blas_memory_alloc blas_memory_free" ] || {
    echo "undefined on macOS: $lacking"
    exit 1
}
"$zig" cc -target aarch64-macos "$objects"/*.o -Wl,-undefined,dynamic_lookup -o "$objects/memtape"
[ "$(od -An -tx4 -N8 "$objects/memtape" | tr -d ' ')" = feedfacf0100000c ]
echo "compiled and linked for macOS: $(wc -c <"$objects/memtape") bytes"
[ -z "$program" ] || cp "$objects/memtape" "$program"
