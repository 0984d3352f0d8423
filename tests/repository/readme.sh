#!/bin/sh
# The C examples of a page compile without warnings and run: readme.sh LIBMEMTAPE_SO PAGE.
# 77 if there is no such page.
set -eu
library=$1
page=$2
[ -e "$page" ] || exit 77
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(cd "$(dirname "$library")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

awk -v work="$work" '
/^```c$/ { inside = 1; n++; next }
/^```/ { inside = 0 }
inside { print > (work "/example" n ".c") }
END { if (!n) { print "no example found"; exit 1 } }' "$page"

for source in "$work"/*.c; do
    gcc -std=c11 -Wall -Wextra -Werror -I"$root/include" -o "${source%.c}" "$source" \
        -L"$folder" -Wl,-rpath,"$folder" -lmemtape
    (cd "$work" && "${source%.c}") || {
        echo "${source##*/} of $page: exit status $?"
        exit 1
    }
done
