#!/bin/sh
# The page that README links was built for this version: page.sh ROOT
set -eu
version=$(sed -n "s/^ *version : '\(.*\)',/\1/p" "$1/meson.build")
grep -q "<footer id=\"built\">memtape $version, built from commit [0-9a-f]\{12\}</footer>" "$1/docs/memtape.html" || {
    echo "docs/memtape.html is not of memtape $version: ./run page --publish makes it again"
    exit 1
}
