#!/bin/sh
# The programs with several threads, under ThreadSanitizer: tsan.sh [FOLDER, default build-tsan].
# First it must find planted races, and report none in correct code. Exit status 77: a tool or library is missing.
set -eu
cd "$(dirname "$0")/../.."
folder=${1:-build-tsan}

skip() {
    echo "tsan: skipped: $*" >&2
    exit 77
}

echo 'int main(void) { return 0; }' | "${CC:-cc}" -fsanitize=thread -x c - -o /dev/null 2>/dev/null ||
    skip "no ThreadSanitizer with this compiler"

[ -e "$folder/build.ninja" ] || meson setup "$folder" \
    --buildtype=debugoptimized -Doptimization=1 -Dc_args=-g1 -Dcpp_args=-g1 -Db_sanitize=thread -Db_lundef=false -Dbench=false -Dcuda=disabled >&2

# team: the threads of a kernel. base: interned names, errors. offload: a thread that copies. comm, parallel: ranks
# that are threads.
programs='src/backends/test_backends_team threads/test_threads_one_device threads/test_threads_shared
    models/nn/test_nn_determinism src/autograd/test_autograd_hooks src/hooks/test_hooks_offload
    src/hooks/test_hooks_offload_disk src/base/test_base_text src/base/test_base_error
    src/memtrack/test_memtrack_pool models/comm/test_comm_threads models/parallel/test_parallel_vocabulary
    models/parallel/test_parallel_weights'
targets=tests/threads/planted_race
for program in $programs; do targets="$targets tests/$program"; done
# shellcheck disable=SC2086
ninja -C "$folder" $targets >&2

# oneDNN is not compiled for ThreadSanitizer, which would not see how its threads wait for each other.
echo called_from_lib:libdnnl >"$folder/suppressions.txt"
export OMP_NUM_THREADS=3 TSAN_OPTIONS="exitcode=66 suppressions=$PWD/$folder/suppressions.txt"
log=$folder/tsan.log
failed=0

# expect STATUS PROGRAM [ARGUMENT...]
expect() {
    wanted=$1
    shift
    status=0
    timeout 300 "$@" >"$log" 2>&1 || status=$?
    if [ "$status" -ne "$wanted" ]; then
        echo "tsan: FAILED: $*: status $status, not $wanted" >&2
        head -n 60 "$log" >&2
        failed=1
    fi
}

expect 66 "$folder/tests/threads/planted_race" plain
expect 66 "$folder/tests/src/backends/test_backends_team" race
expect 0 "$folder/tests/threads/planted_race" none
n=0
for program in $programs; do
    expect 0 "$folder/tests/$program"
    n=$((n + 1))
done
[ $failed -eq 0 ] || exit 1
echo "tsan: 2 planted races found, $n programs without a race"
