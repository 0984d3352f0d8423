#!/bin/sh
# The C examples of a page compile without warnings, with what pkg-config says of the build folder, and run:
# readme.sh LIBMEMTAPE_SO PAGE. 77 if there is no such page.
set -eu
library=$1
page=$2
[ -e "$page" ] || exit 77
folder=$(cd "$(dirname "$library")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

awk -v work="$work" '
/^```c$/ { inside = 1; n++; next }
/^```/ { inside = 0 }
inside { print > (work "/example" n ".c") }
END { if (!n) { print "no example found"; exit 1 } }' "$page"

flags=$(PKG_CONFIG_PATH=$folder/meson-uninstalled pkg-config --cflags --libs memtape)
for source in "$work"/*.c; do
    # shellcheck disable=SC2086
    gcc -std=c11 -Wall -Wextra -Werror -o "${source%.c}" "$source" $flags -Wl,-rpath,"$folder"
    (cd "$work" && "${source%.c}") || {
        echo "${source##*/} of $page: exit status $?"
        exit 1
    }
done
