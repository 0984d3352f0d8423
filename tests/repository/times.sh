#!/bin/sh
# No test asserts how long something takes, since machines have other things to do: it counts instructions, simulations or
# requests. Looks for clocks of processor time, and for checks that hold a duration below a bound; that some time was measured
# (> 0), and limits of what may hang, are no such bounds: times.sh [TREE]
set -u
cd "${1:-$(dirname "$0")/../..}"
sources=$(find tests -name '*.py' -o -name '*.c' -o -name '*.cc' -o -name '*.h' -o -name '*.sh' | grep -v '^tests/repository/\|^tests/src/cudasim/stream' | sort)
failed=0
report() {
    [ -z "$2" ] && return
    echo "$1"
    echo "$2" | sed 's/^/  /'
    failed=1
}
checks='(assert|check\(|equal\(|MTT_NEED|mtt_ok|fail_msg|wrong\()'
durations='(seconds|took|taken|elapsed|duration|[a-z_]+_ms|milliseconds|ms_[a-z]+)'
# shellcheck disable=SC2086
{
    report "A clock of processor time, which only a bound on time needs:" "$(grep -nE \
        'CLOCK_(THREAD|PROCESS)_CPUTIME_ID|process_time\(|thread_time\(|ru_[us]time|os\.times\(|resource_usage|SC_CLK_TCK|[^_a-z]clock\(\)' \
        $sources /dev/null | grep -v ':print(')"
    report "A check that holds a duration below a bound:" "$(grep -nE \
        "$checks.*(\b$durations\b[^<>,=]{0,24} <=? |[ ]>=? [^<>,=]{0,24}\b$durations\b)" $sources /dev/null)"
}
exit $failed
