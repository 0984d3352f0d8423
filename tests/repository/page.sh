#!/bin/sh
# The page that README links was built for this version, and what the engine calls of OpenBLAS the page has as loops: page.sh ROOT
set -eu
version=$(sed -n "s/^ *version : '\(.*\)',/\1/p" "$1/meson.build")
grep -q "<footer id=\"built\">memtape $version, built from commit [0-9a-f]\{12\}</footer>" "$1/docs/memtape.html" || {
    echo "docs/memtape.html is not of memtape $version: ./run page --publish makes it again"
    exit 1
}
status=0
for name in $(grep -rhoE 'cblas_[a-z0-9_]+' "$1/src/backends/cpu" | sort -u); do
    grep -q "$name(" "$1/program/browser/include/cblas.h" || {
        echo "program/browser/include/cblas.h has no $name, which src/backends/cpu calls: the page cannot be built"
        status=1
    }
done
exit $status
