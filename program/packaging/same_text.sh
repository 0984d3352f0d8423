#!/bin/sh
# same_text.sh PROGRAM FOREIGN...: what the program prints of books, formulas and tapes must not depend on the processor. FOREIGN: the
# words that run the one built for another.
set -eu
program=$1
shift
while read -r words; do
    # shellcheck disable=SC2086
    here=$("$program" $words </dev/null)
    # shellcheck disable=SC2086
    there=$("$@" $words </dev/null)
    [ "$here" = "$there" ] || {
        echo "memtape $words: it prints, here and there:"
        printf '%s\n' "$here" "$there"
        exit 1
    }
    echo "same text: memtape $words"
done <<'TEXT'
plan gpt2 -b 4
profile gpt2 -b 2 --dtype bf16 --device meta --timeline
profile block -b 1 -s 16 -d 32 -a 4 --device cpu --optimizer adamw --dtype bf16
profile llama -b 2 -s 16 -d 32 -a 4 -l 2 --vocab 64 --checkpoint full --offload cpu --device cpu --optimizer adamw
explain block -b 1 -s 8 -d 64
TEXT
