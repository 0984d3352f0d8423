/* added_tokens.c: tokens that are found in a text before all else: the longest of the leftmost. */
#include "tokens/tokenizer.h"

bool mti_added_add(mti_added_tokens *a, const char *text, size_t n, mti_added token)
{
    size_t node = 0;
    if (n > MTI_ADDED_BYTES)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "the added token \"%.*s...\" has %zu bytes; at most %d are read",
                             MTI_SHOWN_BYTES, text, n, MTI_ADDED_BYTES);
    if (!n) return true; /* Hugging Face passes over it, too */
    if (!a->ends.n && !MTI_PUSH(&a->ends, 0)) return false;
    for (size_t i = 0; i < n; i++) {
        const uint64_t key = (uint64_t)node << 8 | (unsigned char)text[i];
        size_t next = mti_hashmap_find(&a->next, key);
        if (next == MTI_NO_PLACE) {
            next = a->ends.n;
            if (!MTI_PUSH(&a->ends, 0) || !mti_hashmap_add(&a->next, key, next)) return false;
        }
        node = next;
    }
    if (a->ends.at[node]) return true; /* two that normalizing makes equal: the first */
    if (!MTI_PUSH(&a->tokens, token)) return false;
    a->ends.at[node] = a->tokens.n;
    a->first[(unsigned char)text[0]] = true;
    return true;
}

void mti_added_free(mti_added_tokens *a)
{
    mti_hashmap_free(&a->next);
    mti_free(a->ends.at);
    mti_free(a->tokens.at);
}

/* The longest that begins at `at`; sets *end. */
static const mti_added *longest(const mti_added_tokens *a, const char *text, size_t n, size_t at,
                                size_t *end)
{
    const mti_added *found = NULL;
    for (size_t node = 0; at < n;) {
        node = mti_hashmap_find(&a->next, (uint64_t)node << 8 | (unsigned char)text[at++]);
        if (node == MTI_NO_PLACE) break;
        if (a->ends.at[node]) found = &a->tokens.at[a->ends.at[node] - 1], *end = at;
    }
    return found;
}

/* The place of the character before `at`. */
static size_t back(const char *text, size_t at)
{
    do at--;
    while (at && ((unsigned char)text[at] & 0xC0) == 0x80);
    return at;
}

static bool is_within_word(const char *text, size_t n, size_t begin, size_t end)
{
    size_t before = begin ? back(text, begin) : 0;
    return (begin && mti_char_is_word(mti_char(text, n, &before))) ||
           (end < n && mti_char_is_word(mti_char(text, n, &end)));
}

const mti_added *mti_added_find(const mti_added_tokens *a, const char *text, size_t n, size_t least,
                                size_t *from, size_t *begin, size_t *end)
{
    while (a->tokens.n && *from < n) {
        size_t at = *from, stop = at + 1, previous, next;
        const mti_added *found =
            a->first[(unsigned char)text[at]] ? longest(a, text, n, at, &stop) : NULL;
        *from = stop;
        if (!found || (found->single_word && is_within_word(text, n, at, stop))) continue;
        while (found->left && at > least) {
            previous = next = back(text, at);
            if (!mti_char_is_space(mti_char(text, n, &next))) break;
            at = previous;
        }
        while (found->right && (next = stop) < n && mti_char_is_space(mti_char(text, n, &next)))
            stop = next;
        *begin = at, *end = stop;
        return found;
    }
    return NULL;
}
