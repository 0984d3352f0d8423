/* encoded.h: what a tokenizer makes of a text, and a text of ids, to be compared. */
#ifndef MTT_ENCODED_H
#define MTT_ENCODED_H

#include <stdio.h>
#include <string.h>
#include "mtt.h"
#include "tokens/tokenizer.h"

/* The ids of a text, as "1 2 3". */
static inline const char *ids_of(const mt_tokenizer *t, const char *text, size_t n, bool special)
{
    static char out[4096];
    mt_token_list ids = {0};
    size_t at = 0;
    mtt_ok(mt_tokenizer_encode(t, text, n, special, &ids));
    out[0] = 0;
    for (size_t i = 0; i < ids.n && at < sizeof out - 32; i++)
        at += (size_t)sprintf(out + at, i ? " %lld" : "%lld", (long long)ids.at[i]);
    mt_token_list_free(&ids);
    return out;
}

#define is_encoded(t, text, wanted)                                                                \
    assert_string_equal(ids_of(t, text, sizeof(text) - 1, false), wanted)

static inline const char *text_of(const mt_tokenizer *t, size_t n, const int64_t *ids, bool skip)
{
    static char out[4096];
    mt_text text = {0};
    mtt_ok(mt_tokenizer_decode(t, ids, n, skip, &text));
    assert_true(text.n < sizeof out);
    memcpy(out, text.at, text.n + 1);
    mt_text_free(&text);
    return out;
}

#define LIST(...)                                                                                  \
    sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]) { __VA_ARGS__ }

#endif
