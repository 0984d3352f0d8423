/* token_text.c: UTF-8 in growing texts, and growing lists of tokens. */
#include "tokens/tokenizer.h"

bool mti_text_add(mt_text *text, const char *bytes, size_t n)
{
    size_t need;
    if (!mti_add_size(text->n, n, &need) || !mti_add_size(need, 1, &need)) {
        mti_alloc_refused(n);
        return false;
    }
    if (need > text->cap) {
        size_t cap = need < 64 ? 64 : need + need / 2;
        char *at = mti_realloc(text->at, cap);
        if (!at) return false;
        text->at = at, text->cap = cap;
    }
    if (n) memcpy(text->at + text->n, bytes, n);
    text->at[text->n += n] = 0;
    return true;
}

bool mti_text_char(mt_text *text, uint32_t c)
{
    char u[4];
    if (c < 0x80) return u[0] = (char)c, mti_text_add(text, u, 1);
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; --i; c >>= 6) u[i] = (char)(0x80 | (c & 0x3F));
    u[0] = (char)(0xF00 >> n | c);
    return mti_text_add(text, u, n);
}

bool mti_tokens_add(mt_token_list *list, const mt_token_list *more)
{
    for (size_t i = 0; i < more->n; i++)
        if (!MTI_PUSH(list, more->at[i])) return false;
    return true;
}

uint32_t mti_char(const char *text, size_t n, size_t *at)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[*at] < 0x80) return s[(*at)++];
    size_t length;
    uint32_t c = mti_next_char(s + *at, s + n, &length);
    *at += length;
    return c;
}

bool mti_text_is_valid(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text, *end = s + n;
    for (size_t length; s < end; s += length)
        if (mti_next_char(s, end, &length) == UINT32_MAX) return false;
    return true;
}

/* How many bytes at s begin a character and lack its end: of E2 82 both. At least 1. */
static size_t broken(const unsigned char *s, const unsigned char *end, bool *lacks)
{
    unsigned low = 0x80, high = 0xBF;
    size_t need = *s < 0xC2 ? 0 : *s < 0xE0 ? 1 : *s < 0xF0 ? 2 : *s < 0xF5 ? 3 : 0, n = 1;
    if (*s == 0xE0) low = 0xA0;
    if (*s == 0xED) high = 0x9F;
    if (*s == 0xF0) low = 0x90;
    if (*s == 0xF4) high = 0x8F;
    for (; n <= need && s + n < end && s[n] >= low && s[n] <= high; n++) low = 0x80, high = 0xBF;
    *lacks = n <= need && s + n == end;
    return n;
}

bool mti_text_repaired(mt_text *text, const char *bytes, size_t n, bool partial, size_t *n_read)
{
    const unsigned char *s = (const unsigned char *)bytes, *end = s + n, *from = s;
    size_t length;
    bool ok = true, lacks;
    while (s < end && ok) {
        if (*s < 0x80 || mti_next_char(s, end, &length) != UINT32_MAX) {
            s += *s < 0x80 ? 1 : length;
            continue;
        }
        length = broken(s, end, &lacks);
        if (lacks && partial) break;
        ok = mti_text_add(text, (const char *)from, (size_t)(s - from)) &&
             mti_text_char(text, 0xFFFD);
        from = s += length;
    }
    if (n_read) *n_read = (size_t)(s - (const unsigned char *)bytes);
    return ok && mti_text_add(text, (const char *)from, (size_t)(s - from));
}
