#!/bin/sh
# ./run refuses unknown arguments with status 2, and its help names every part of its tests; tests/meson.build
# lists each folder of tests; total.py tells why tests were skipped: run.sh [TREE]
set -u
total=$(cd "$(dirname "$0")/.." && pwd)/total.py
cd "${1:-$(dirname "$0")/../..}"
failed=0
wrong() {
    echo "run.sh: $*"
    failed=1
}

# refuses WORD ARGUMENT...: `./run ARGUMENT...` has status 2 and its message names WORD.
refuses() {
    word=$1
    shift
    status=0
    said=$(./run "$@" 2>&1 >/dev/null) || status=$?
    [ $status -eq 2 ] || wrong "run $*: status $status, not 2"
    case $said in
    *"$word"*) ;;
    *) wrong "run $*: does not name $word: $said" ;;
    esac
}
refuses '"--al"' test --al
refuses '"--all release"' test --all release
refuses '"relase"' test relase
refuses '"threads/4"' test threads/4
refuses '"x"' lint x
refuses '"x"' format x
refuses '"x"' clean x
refuses '"x"' docs x
refuses '"x"' wheel x
refuses '"x"' experiments x
refuses '"2 x y"' lesson 2 x y
refuses '"soon"' fuzz soon
refuses '"nothing"' nothing

fast=$(sed -n 's/^fast_parts="\(.*\)"$/\1/p' run)
all=$(sed -n 's/^all_parts="\(.*\)"$/\1/p' run)
more=$(sed -n 's/^more_parts="\(.*\)"$/\1/p' run)
[ -n "$fast" ] && [ -n "$all" ] || wrong 'run has no lists of parts'
# total.py checks that `long` covers `release`.
for part in $fast; do
    case " release $all " in
    *" $part "*) ;;
    *) wrong "not in --all: $part" ;;
    esac
done
help=$(./run help)
for part in $fast $all $more; do
    grep -q "^part_$part() {" run || wrong "the part $part is not a function"
    case $help in
    *"
                       $part "*) ;;
    *) wrong "help does not say what the part $part is" ;;
    esac
done

# Four turns run each test once; a whole part, and a tree whose commits cannot be counted, run all.
eval "$(sed -n '/^by_turns() {/,/^}/p' run)"
turns() { # PARTS
    parts=$1
    for MTT_QUARTER in 0 1 2 3; do printf '%s\n' a b c d e f g | by_turns valgrind; done | sort | tr -d '\n'
}
[ "$(turns valgrind/4)" = abcdefg ] || wrong "four turns run $(turns valgrind/4)"
[ "$(turns 'valgrind kernels/4')" = aaaabbbbccccddddeeeeffffgggg ] || wrong 'a whole part runs in turns'
[ "$(MTT_QUARTER='' parts=valgrind/4 && echo a | by_turns valgrind)" = a ] || wrong 'without commits not all run'

# Each script that is not always run is left out at three of four commits; all run without commits, and beside `scripts`.
eval "$(sed -n '/^elsewhere() {/,/^}/p; /^has_part() {/,/^}/p; /^next_commits() {/p; /^deal_cases() {/p; /^always=/p' run)"
folder_of_lists=$(mktemp -d)
mkdir -p "$folder_of_lists/build/parts"
left_out() { # PARTS QUARTERS [PART_THAT_PASSED_BEFORE]
    (
        cd "$folder_of_lists" || exit
        parts=$1 passed=${3:-}
        names_of() { printf '%s\n' 'repository run' a 'program first' b c d e; }
        without_simulator() { :; }
        long_scripts() { :; }
        passed_before() { [ "$1" = "$passed" ]; }
        for MTT_QUARTER in $2; do
            [ "$MTT_QUARTER" != none ] || MTT_QUARTER=
            elsewhere
        done | sort | tr -d '\n'
    )
}
[ "$(left_out release '0 1 2 3')" = aaabbbcccdddeee ] || wrong "four commits leave out $(left_out release '0 1 2 3')"
[ -z "$(left_out release none)$(left_out 'sanitizers release' 1)$(left_out 'release scripts/4' 1)" ] || wrong 'scripts are left out elsewhere'
[ "$(left_out release none page)" = page ] || wrong "the page's test is not left out: $(left_out release none page)"
[ -z "$(left_out 'sanitizers release' 1 page)" ] || wrong "the page's test is left out beside other parts"
[ "$(MTT_QUARTER=1 && for nth in 1 2 3 4 5 6 7 8; do echo $nth; done | next_commits | tr -d '\n')" = 134568 ] || wrong 'dealt otherwise than to and fro'
cases() { (parts=$1 MTT_QUARTER=$2 && unset MTT_CASES && deal_cases && echo "${MTT_CASES:-}"); } # PARTS QUARTER
[ "$(cases release 3)$(cases 'sanitizers release' 2)$(cases release '')" = 3 ] || wrong 'cases are left out elsewhere'
rm -r "$folder_of_lists"

for file in tests/*/meson.build tests/*/*/meson.build; do
    [ -e "$file" ] || continue
    folder=${file#tests/}
    folder=${folder%/meson.build}
    grep -q "'$folder'" tests/meson.build || wrong "tests/meson.build lacks the folder $folder"
done

# The reasons of tests that were skipped, a line each, with the command that lets them run.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cat >"$log" <<'LOG'
{"name": "m / a", "result": "OK", "stdout": "2 passed, 0 failed, 1 skipped"}
{"name": "m / b", "result": "SKIP", "stdout": "skipped: No module named 'torch'\n"}
{"name": "m / c", "result": "SKIP", "stderr": "No module named 'torch'"}
{"name": "m / d", "result": "SKIP"}
LOG
said=$(python3 "$total" "$log")
expected="skipped: b, c: no Python module torch: python3 -m pip install torch
skipped: d: no reason was given
skipped: cases that do not apply to the device, the build or the tools they met: 1
2 passed, 0 failed, 4 skipped"
[ "$said" = "$expected" ] || wrong "total.py says: $said"

# Why a test failed: what says so, or its last lines.
cat >"$log" <<'LOG'
{"name": "m / a", "result": "FAIL", "stdout": "begins\nFAILED: a sum: got 1, wanted 2\n3 passed, 1 failed, 0 skipped\n"}
{"name": "m / b", "result": "FAIL", "stdout": "1\n2\n3\n4\n", "stderr": "killed\n"}
LOG
said=$(python3 "$total" "$log") && wrong 'failed tests are not a failure'
expected="FAILED: m / a (1) in $log
  FAILED: a sum: got 1, wanted 2
FAILED: m / b (1) in $log
  2
  3
  4
  killed
3 passed, 2 failed, 0 skipped"
[ "$said" = "$expected" ] || wrong "total.py says: $said"
exit $failed
