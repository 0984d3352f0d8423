#!/bin/sh
# No two files of a room call each other, directly or through others: circles.sh LIBRARY...
# Reads the symbols of each room's objects. ops and collectives are not given: each op's public
# function names its row in the table, and the table points to the op's code.
set -eu
status=0
for library; do
    if ! nm -A "$library" | awk '
        { file = $1; sub(/:[^:]*$/, "", file); sub(/^.*[:\/]/, "", file) }
        $NF !~ /^mti?_/ { next }
        $(NF - 1) == "U" { used[file, $NF] = 1; next }
        $(NF - 1) ~ /^[TDBRV]$/ { home[$NF] = file }
        END {
            for (pair in used) {
                split(pair, part, SUBSEP)
                if (part[2] in home) print part[1], home[part[2]]
            }
        }' | tsort >/dev/null; then
        echo "$library: its files call each other in a circle"
        status=1
    fi
done
exit $status
