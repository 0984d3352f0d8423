#!/bin/sh
# Each public header is installed, and compiles alone, as strict C11 and as C++: headers.sh [TREE]
# 77 if there is no C++ compiler (the check as C has passed then).
set -eu
cd "${1:-$(dirname "$0")/../..}"
failed=0
for header in $(find include/memtape -name "*.h" | sort); do
    gcc -std=c11 -pedantic -Wall -Wextra -Wconversion -Werror -fsyntax-only -x c -Iinclude \
        "$header" || failed=1
    grep -q "'${header#include/}'" include/meson.build || {
        echo "$header is not installed: include/meson.build"
        failed=1
    }
done
[ $failed -eq 0 ] || exit 1
command -v g++ >/dev/null || {
    echo "skipped: no g++"
    exit 77
}
for header in $(find include/memtape -name "*.h" | sort); do
    g++ -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -x c++ -Iinclude "$header" ||
        failed=1
done
exit $failed
