#!/bin/sh
# A room includes headers of itself and of lower rooms only: arrows.sh [TREE] reads every #include.
# The room hooks includes only the public headers of other rooms, and base/base.h. Training and the options know what is
# measured, not who measures it: of the rooms of lab they include workload alone, through other headers, too.
set -eu
cd "${1:-$(dirname "$0")/../..}"

# The order of the rooms, lowest first, and the room of each public header. program/browser stands below the house, in libc's place.
find include/memtape src models lab program -name '*.[ch]' | grep -v '^program/browser/' | sort | xargs awk '
BEGIN {
    n_rooms = split("base backends memtrack tensor autograd ops hooks files comm collectives stacks nn tokens optim io generate parallel memory workload plan measure fit compare expression trainer report options verbs", order, " ")
    for (i = 1; i <= n_rooms; i++) level[order[i]] = i
    split("status=base dtype=base openblas=backends memory=memtrack device=tensor tensor=tensor host_copy=tensor counters=tensor dlpack=tensor " \
          "print=autograd autograd=autograd hooks=autograd ops=ops op_table=ops autocast=ops quantize=ops offload=hooks checkpoint=hooks compress=hooks memtape=hooks " \
          "models/group=comm models/collectives=collectives models/stacks=stacks models/module=nn models/model=nn models/lora=nn models/tokens=tokens models/optimizer=optim models/amp=optim " \
          "models/io=io models/generate=generate models/parallel=parallel models/budget=memory models=memory " \
          "lab/plan=plan lab/fit=fit lab/serve=fit lab=fit report=report all=verbs", pairs, " ")
    for (i in pairs) { split(pairs[i], pair, "="); home[pair[1]] = pair[2] }
}
function complain(text) { print FILENAME ":" FNR ": " text; bad = 1 }

# The room of a path below a storey or include/; "" if there is none.
function room_of(path, part) {
    split(path, part, "/")
    if (part[1] == "memtape") { sub(/^memtape\//, "", path); sub(/\.h$/, "", path); return home[path] }
    return (part[1] in level) ? part[1] : ""
}
FNR == 1 {
    path = FILENAME
    sub(/^(src|models|lab|program|include)\//, "", path)
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
    included[path, ++n_included[path]] = target
}
# Visits what the file `from` sees through its includes.
function look(from, path, i, theirs) {
    if (seen[from, path]++) return
    theirs = room_of(path)
    if (level[theirs] > level["workload"] && level[theirs] <= level["compare"]) {
        print from " looks into the lab: " path
        bad = 1
    } else
        for (i = 1; i <= n_included[path]; i++) look(from, included[path, i])
}
END {
    for (path in n_included) if (path ~ /^(trainer|options)\//) look(path, path)
    exit bad
}
'
