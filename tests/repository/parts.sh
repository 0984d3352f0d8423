#!/bin/sh
# A build of the engine alone (-Dparts=engine) installs the engine's headers and a library that prints nothing and has no function of a
# storey above, and a program of those headers runs with them; one of the engine and the models runs the program of docs/c.md.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
wrong() {
    echo "parts.sh: $*"
    failed=1
}

# build PARTS: into $work/PARTS, installed in its folder `to`.
build() {
    meson setup "$work/$1" -Dparts="$1" -Dcuda=disabled -Dmpi=disabled --buildtype=debug --prefix "$work/$1/to" --libdir lib >"$work/log" &&
        ninja -C "$work/$1" >"$work/log" && meson install -C "$work/$1" --no-rebuild >"$work/log" || {
        tail -n 20 "$work/log"
        exit 1
    }
}

# functions HEADER...: those that public headers declare.
functions() { grep -ohE '\bmt_[a-z0-9_]+\(' "$@" | tr -d '(' | sort -u; }

build engine
library=$work/engine/to/lib/libmemtape.so
nm -D --defined-only "$library" | awk '{ print $3 }' | sort -u >"$work/has"
(cd "$work/engine/to/include/memtape" && functions ./*.h) >"$work/engines"
functions include/memtape/models/*.h include/memtape/lab/*.h include/memtape/report.h | comm -23 - "$work/engines" >"$work/above"
[ "$(comm -12 "$work/has" "$work/engines" | wc -l)" -gt 100 ] || wrong "the engine has few of its own functions"
[ -z "$(comm -12 "$work/has" "$work/above")" ] || wrong "the engine has functions of the storeys above:" $(comm -12 "$work/has" "$work/above")
prints=$(nm -D --undefined-only "$library" | grep -wE 'printf|puts|putchar|stdout|__printf_chk' || true)
[ -z "$prints" ] || wrong "the engine prints: $prints"
[ "$(ls -d "$work/engine/to/include/memtape"/*/ 2>/dev/null)" = "" ] || wrong "headers of models or of the lab are installed with the engine"
flags=$(PKG_CONFIG_PATH=$work/engine/to/lib/pkgconfig pkg-config --cflags --libs memtape)
# shellcheck disable=SC2086
"${CC:-cc}" -std=c11 -Wall -Wextra -Werror examples/engine/mlp.c -o "$work/mlp" $flags -Wl,-rpath,"$work/engine/to/lib"
"$work/mlp" >"$work/said"
grep -q 'gelu: .* bytes kept' "$work/said" || wrong "examples/engine/mlp.c says: $(cat "$work/said")"

build models
tests/repository/readme.sh "$work/models/libmemtape.so" "$PWD/docs/c.md" >"$work/said" || wrong "the program of docs/c.md: $(cat "$work/said")"
exit $failed
