#!/bin/sh
# Tests the checks of this folder: each must find its planted fault.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

fresh() { # makes a tree without faults
    rm -rf "$tree"
    mkdir -p "$tree/include/memtape/models" "$tree/src/base" "$tree/src/ops" "$tree/models/nn" "$tree/lab" "$tree/program"
    cp "$here/../../.clang-format" "$tree"
    echo 'int mt_one(void);' >"$tree/include/memtape/ops.h"
    echo '#include "memtape/ops.h"' >"$tree/include/memtape/models/module.h"
    echo "install_headers('memtape/ops.h', 'memtape/models/module.h')" >"$tree/include/meson.build"
    printf '#include <stdio.h>\n#include "memtape/ops.h"\n' >"$tree/src/ops/ops.h"
    printf '#include "ops/ops.h"\n#include "part.h"\n' >"$tree/models/nn/nn.c"
    echo '#include "ops/ops.h"' >"$tree/models/nn/part.h"
    : >"$tree/src/base/base.c"
}

failed=0
wrong() {
    echo "planted.sh: $*"
    failed=1
}
# accepts CHECK: the check must pass.
accepts() {
    "$here/$1.sh" "$tree" >"$tree.out" 2>&1 || wrong "$1 refuses a clean tree: $(cat "$tree.out")"
}
# finds CHECK TEXT: the check must fail and print TEXT.
finds() {
    if "$here/$1.sh" "$tree" >"$tree.out" 2>&1; then
        wrong "$1 did not find: $2"
    elif ! grep -q -- "$2" "$tree.out"; then
        wrong "$1 failed without saying: $2, but: $(cat "$tree.out")"
    fi
}

fresh
accepts arrows
echo '#include "ops/ops.h"' >>"$tree/src/base/base.c"
finds arrows 'base looks up to ops'
fresh
echo '#  include <memtape/models/module.h>' >>"$tree/src/ops/ops.h"
finds arrows 'ops looks up to nn'
fresh
echo '#include "memtape/models/group.h"' >>"$tree/src/ops/ops.h"
finds arrows 'ops looks up to comm'
fresh
echo '#include "memtape/models/module.h"' >>"$tree/include/memtape/ops.h"
finds arrows 'ops looks up to nn'
fresh
echo '#include "../nn/part.h"' >>"$tree/src/ops/ops.h"
finds arrows 'climbs out of its room'
fresh
mkdir "$tree/src/misc" && echo '#include "ops/ops.h"' >"$tree/src/misc/misc.c"
finds arrows 'belongs to no room'
fresh
echo '#include "memtape/extra.h"' >>"$tree/models/nn/nn.c"
finds arrows 'no room holds memtape/extra.h'
fresh
mkdir "$tree/src/hooks" && printf '#include "memtape/ops.h"\n' >"$tree/src/hooks/hook.c"
accepts arrows
echo '#include "ops/ops.h"' >>"$tree/src/hooks/hook.c"
finds arrows 'hooks looks behind the public headers: ops/ops.h'
fresh
mkdir "$tree/lab/workload" "$tree/lab/measure" "$tree/program/trainer" "$tree/program/verbs"
echo '#include "memtape/ops.h"' | tee "$tree/lab/workload/workload.h" >"$tree/lab/measure/profile.h"
echo '#include "workload/workload.h"' >"$tree/program/trainer/trainer.h"
echo '#include "measure/profile.h"' >"$tree/program/verbs/profile.c"
accepts arrows
echo '#include "measure/profile.h"' >>"$tree/program/trainer/trainer.h"
finds arrows 'trainer/trainer.h looks into the lab: measure/profile.h'
mkdir "$tree/program/options" "$tree/program/expression"
echo '#include "workload/workload.h"' >"$tree/program/trainer/trainer.h"
echo '#include "expression/walk.h"' >"$tree/program/options/options.h"
echo '#include "measure/profile.h"' >"$tree/program/expression/walk.h"
finds arrows 'options/options.h looks into the lab: measure/profile.h'

for name in base.c kernel.cu kernel.cuh; do
    fresh
    accepts length
    yes ';' | head -n 601 >"$tree/src/base/$name"
    finds length "$name: more than 600 lines"
done
fresh
accepts headers
echo 'int mt_two(size_t n);' >>"$tree/include/memtape/ops.h"
finds headers 'size_t'
fresh
echo >"$tree/include/memtape/extra.h"
finds headers 'extra.h is not installed'
fresh
echo 'int mt_class(int class);' >>"$tree/include/memtape/ops.h"
if command -v g++ >/dev/null; then finds headers 'class'; fi

fresh
mkdir -p "$tree/src/backends/cpu" "$tree/src/backends/cuda"
echo 'struct mti_ctx {' | tee "$tree/src/backends/cpu/cpu.h" >"$tree/src/backends/cuda/gpu.h"
accepts names
printf 'typedef struct mti_ctx {\n' >"$tree/src/base/base.c"
finds names 'mti_ctx is defined in'
fresh
echo 'int a;' | tee "$tree/src/base/base.c" >"$tree/models/nn/base.c"
finds names 'a file called base stands in nn, too'

fresh
accepts comments
echo '/* Of a tensor, its bytes. */' >>"$tree/src/base/base.c"
finds comments 'Of a tensor'

fresh
accepts printing
prints() { # CODE TEXT
    fresh
    printf '%s\n' "$1" >"$tree/models/nn/nn.c"
    finds printing "$2"
}
prints 'void f(void) { snprintf(b, 9, "%d and " "%-8.3f", 1, 2.0); }' 'nn.c:1: snprintf: writes a number'
prints 'void f(void) { printf("%'"'"'d", 1); }' 'nn.c:1: printf: writes a number'
prints 'void f(void) { asprintf(&b, "%a", 1.0); }' 'asprintf: writes a number'
prints 'void f(void) { wprintf(L"%f", 1.0); }' 'wprintf: writes a number'
prints 'void f(void) { snprintf(b, 9, FORMAT, 1.0); }' 'snprintf: has its format elsewhere'
prints 'double f(const char *s) { return /* atof */ strtod(s, NULL); }' 'strtod: reads or sets'
prints 'int f(const char *s) { return sscanf(s, "%lf", &x); }' 'sscanf: reads a number'
prints 'void f(va_list a) { vsnprintf(b, 9, fmt, a); }' 'vsnprintf: passes on a format'
prints 'void f(const char *name) { fprintf(stderr, "%s\n", name); }' 'fprintf: prints text as it is'
prints 'void f(void) { json_loads(text, 0, NULL); }' 'json_loads: jansson'
fresh
printf '%s\n' 'void f(void) { printf("100 %%f, %d", 1); snprintf(b, 9, "%s", t); sscanf(t, "%d", &i); } /* printf("%f") */' \
    >"$tree/models/nn/nn.c"
accepts printing

fresh
status=0
"$here/format.sh" "$tree" >/dev/null 2>&1 || status=$?
if [ $status -ne 77 ]; then
    for name in base.c kernel.cu kernel.cuh double.cc; do
        fresh
        accepts format
        echo 'int   x;' >"$tree/src/base/$name"
        finds format 'clang-format'
    done
fi

with_run() { # makes a tree with ./run and a folder of tests
    fresh
    mkdir -p "$tree/tests/src/base"
    cp "$here/../../run" "$tree"
    cp "$here/../meson.build" "$tree/tests"
    : >"$tree/tests/src/base/meson.build"
}
with_run
accepts run
sed -i 's/^all_parts="/&lonely /' "$tree/run"
finds run 'the part lonely is not a function'
finds run 'help does not say what the part lonely is'
with_run
sed -i 's/^fast_parts="/&lint /' "$tree/run"
finds run 'not in --all: lint'
with_run
sed -i 's/misused "test: /say "test: /' "$tree/run"
sed -i 's/^    need_build_tools$/    exit 0/' "$tree/run" # stop after the message
finds run 'run test --al: status 0, not 2'
with_run
mkdir "$tree/tests/lonely" && : >"$tree/tests/lonely/meson.build"
finds run 'lacks the folder lonely'
with_run
mkdir "$tree/tests/src/lonely" && : >"$tree/tests/src/lonely/meson.build"
finds run 'lacks the folder src/lonely'

with_run
accepts times
echo 'print(f"{took} s"); check(limit > 0, "seconds of rank 1")' >"$tree/tests/src/base/slow.py"
accepts times
echo 'check(2 * seconds < all_of_them, "ten budgets")' >"$tree/tests/src/base/slow.py"
finds times 'base/slow.py:1'
echo 'equal(first >= took, True, "it is quick")' >"$tree/tests/src/base/slow.py"
finds times 'base/slow.py:1'
echo 'usage = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime' >"$tree/tests/src/base/slow.py"
finds times 'clock of processor time'
rm "$tree/tests/src/base/slow.py"

# objects.sh reads an archive, not a tree.
objects() { # SOURCE ALLOWED
    printf '%s\n' "$1" >"$tree/planted.c"
    printf '%s\n' "$2" >"$tree/allowed"
    gcc -c -fcommon -o "$tree/planted.o" "$tree/planted.c"
    rm -f "$tree/planted.a"
    ar rc "$tree/planted.a" "$tree/planted.o"
    "$here/objects.sh" "$tree/planted.a" "$tree/allowed" >"$tree.out" 2>&1
}
fresh
clean='static _Thread_local int mode; static const char *const names[] = {"a", "b"};
const char *mt_f(int i) { static int calls; return mode ? 0 : names[i + calls++]; }'
objects "$clean" 'calls counted' || wrong "objects refuses a clean archive: $(cat "$tree.out")"
objects "$clean" '# none' && wrong 'objects did not find a static inside a function'
objects 'int mt_state = 1;' '# none' && wrong 'objects did not find initialised state'
objects 'int mt_state[9];' '# none' && wrong 'objects did not find zeroed state'
objects 'void f(void) {} int mt_one(void) { return 1; }' '# none' &&
    wrong 'objects did not find a name without prefix'
objects 'int mt_one(void) { return 1; }' 'gone because' && wrong 'objects kept a stale permission'

# circles.sh, too: here with two files, of which the second calls the first or not.
circles() { # SOURCE
    printf 'int mti_two(int i); int mti_one(int i) { return i ? mti_two(i - 1) : 0; }\n' >"$tree/one.c"
    printf '%s\n' "$1" >"$tree/two.c"
    (cd "$tree" && gcc -c one.c two.c && rm -f room.a && ar rc room.a one.o two.o)
    "$here/circles.sh" "$tree/room.a" >"$tree.out" 2>&1
}
fresh
circles 'int mti_two(int i) { return i; }' || wrong "circles refuses a clean room: $(cat "$tree.out")"
circles 'int mti_one(int i); int mti_two(int i) { return mti_one(i); }' &&
    wrong 'circles did not find two files that call each other'

# promised LINE...: whether the check accepts an engine that defines mt_one and mt_two, and has these lines of C, too.
promised() {
    echo '#include "memtape/ops.h"' >"$tree/include/memtape/memtape.h"
    printf '%s\n' 'MT_API int mt_one(void);' 'MT_API int *' '    mt_two(int n);' >"$tree/include/memtape/ops.h"
    printf '%s\n' 'int mt_one(void) { return 1; }' "$@" >"$tree/one.c"
    ${CC:-cc} -c "$tree/one.c" -o "$tree/one.o" && ar rc "$tree.a" "$tree/one.o"
    "$here/promised.sh" "$tree.a" "$tree" >"$tree.out" 2>&1
}
fresh
promised 'int *mt_two(int n) { return (void)n, (int *)0; }' || wrong "promised refuses an engine that keeps its promise: $(cat "$tree.out")"
if promised || ! grep -q 'does not define mt_two' "$tree.out"; then wrong 'promised did not find that mt_two is missing'; fi
if promised 'extern int mt_model(void);' 'int *mt_two(int n) { return n + mt_model() ? 0 : (int *)0; }' ||
    ! grep -q 'asks for mt_model' "$tree.out"; then wrong 'promised did not find a symbol of a storey above'; fi
rm -f "$tree.a" "$tree.out"
exit $failed
