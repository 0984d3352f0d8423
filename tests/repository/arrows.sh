#!/bin/sh
# A room includes headers of itself and of lower rooms only: arrows.sh [TREE] reads every #include.
# The room hooks includes only the public headers of other rooms, and base/base.h.
set -eu
cd "${1:-$(dirname "$0")/../..}"

# The order of the rooms, lowest first, and the room of each public header.
find include/memtape src -name '*.[ch]' | sort | xargs awk '
BEGIN {
    n_rooms = split("base files backends memtrack tensor autograd ops comm collectives hooks nn optim io generate parallel budget plan measure audit expression trainer fit compare report options cli", order, " ")
    for (i = 1; i <= n_rooms; i++) level[order[i]] = i
    split("status=base dtype=base openblas=backends group=comm memory=memtrack device=tensor tensor=tensor host_copy=tensor counters=tensor dlpack=tensor print=autograd autograd=autograd hooks=autograd quantize=ops techniques=hooks models=generate training=io ranks=parallel planning=fit reports=report " \
          "ops=ops autocast=ops op_table=ops collectives=collectives offload=hooks checkpoint=hooks compress=hooks module=nn model=nn optimizer=optim amp=optim lora=nn parallel=parallel plan=plan budget=budget fit=fit serve=fit report=report generate=generate io=io step_graph=optim memtape=hooks all=cli", pairs, " ")
    for (i in pairs) { split(pairs[i], pair, "="); home[pair[1]] = pair[2] }
}
function complain(text) { print FILENAME ":" FNR ": " text; bad = 1 }

# The room of a path below src/ or include/; "" if there is none.
function room_of(path, part) {
    split(path, part, "/")
    if (part[1] == "memtape") { sub(/\.h$/, "", part[2]); return home[part[2]] }
    return (part[1] in level) ? part[1] : ""
}
FNR == 1 {
    path = FILENAME
    sub(/^(src|include)\//, "", path)
    mine = room_of(path)
    folder = FILENAME
    sub(/\/[^\/]*$/, "", folder)
    if (mine == "") complain("belongs to no room that the order names")
}
/^[ \t]*#[ \t]*include[ \t]*["<]/ && mine != "" {
    target = $0
    system_header = (target ~ /</)
    sub(/^[^"<]*["<]/, "", target)
    sub(/[">].*$/, "", target)
    if (target ~ /\.\./) { complain("climbs out of its room: " target); next }
    theirs = room_of(target)
    if (theirs == "") {
        # A system header, or a neighbour in the same folder.
        if (system_header && target !~ /^memtape\//) next
        if (!system_header && (getline line < (folder "/" target)) >= 0) {
            close(folder "/" target)
            next
        }
        complain("no room holds " target)
    } else if (level[theirs] > level[mine]) {
        complain(mine " looks up to " theirs ": " target)
    } else if (mine == "hooks" && theirs != mine && target != "base/base.h" &&
               target !~ /^memtape\//) {
        complain("hooks looks behind the public headers: " target)
    }
}
END { exit bad }
'
