#!/bin/sh
# The man page and the completions of bash and zsh have the planted option: planted.sh REFERENCE
set -eu
for form in 'man planted\\fR=\\fIN' 'bash --planted=' 'zsh --planted=\[a planted option\]:N:'; do
    "$1" "${form%% *}" | grep -q -e "${form#* }" || { echo "${form%% *}: no --planted"; exit 1; }
done
