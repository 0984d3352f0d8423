#!/bin/sh
# Checks the symbols of the compiled library: objects.sh LIBMEMTAPE_A [ALLOWED]
#  - it has no writable global or static variables except those in globals.allow, where each has a reason
#    (per-thread variables and tables that are constant after loading are not counted);
#  - the names of all visible symbols begin with mt_ or mti_.
set -eu
archive=$1
allowed=${2:-$(dirname "$0")/globals.allow}

objdump -t "$archive" | awk -v allowed="$allowed" '
BEGIN {
    while ((getline line < allowed) > 0)
        if (line !~ /^#/ && split(line, word, " ") > 1) reason[word[1]] = line
}
/^[^ ]+\.o: / { object = $1; sub(/:$/, "", object) }
# VALUE FLAGS SECTION<TAB>SIZE [VISIBILITY] NAME, the flags being seven columns wide
NF >= 5 && $1 ~ /^[0-9a-f]+$/ {
    flags = substr($0, length($1) + 2, 7)
    split(substr($0, length($1) + 10), rest, /[ \t]+/)
    section = rest[1]
    name = $NF
    if (substr(flags, 1, 1) == "g" && section != "*UND*" && name !~ /^mti?_/) {
        print object ": visible without our prefix: " name
        bad = 1
    }
    if (section ~ /^(\.data|\.bss|\*COM\*)/ && section !~ /^\.data\.rel\.ro/ &&
        substr(flags, 7, 1) == "O") {
        base = name
        sub(/\.[0-9]+$/, "", base) # a static inside a function
        seen[base] = 1
        if (!(base in reason)) {
            print object ": mutable state that globals.allow does not know: " name
            bad = 1
        }
    }
    n_symbols++
}
END {
    for (name in reason)
        if (!(name in seen)) { print "globals.allow names what is not there: " name; bad = 1 }
    if (!n_symbols) { print "no symbols in the archive"; bad = 1 }
    exit bad
}'
