/* characters.c: kinds of characters, small letters and normal forms, by utf8proc's tables. */
#include <stdlib.h>
#include <utf8proc.h>
#include "tokens/tokenizer.h"

/* ---- kinds ---- */

static unsigned category(uint32_t c) { return 1u << utf8proc_category((utf8proc_int32_t)c); }

#define BIT(name) (1u << UTF8PROC_CATEGORY_##name)
#define MARKS     (BIT(MN) | BIT(MC) | BIT(ME))

bool mti_char_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || category(c) & (BIT(ZS) | BIT(ZL) | BIT(ZP));
}

/* Letters, marks, digits, connectors; what Unicode counts as letters although it is a symbol; and
 * the two characters that join. */
bool mti_char_is_word(uint32_t c)
{
    const bool circled = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
    return circled || c == 0x200C || c == 0x200D ||
           category(c) & (BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO) | MARKS | BIT(ND) |
                          BIT(NL) | BIT(PC));
}

bool mti_char_is_number(uint32_t c) { return category(c) & (BIT(ND) | BIT(NL) | BIT(NO)); }

bool mti_char_is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
               (c >= '{' && c <= '~');
    return category(c) & (BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO));
}

bool mti_char_is_mark(uint32_t c) { return category(c) & MARKS; }

bool mti_char_is_accent(uint32_t c) { return category(c) & BIT(MN); }

/* ---- bytes as characters ---- */

static bool is_shown(unsigned b)
{
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

/* Those that cannot be seen are 256 and on, in order: 33 below '!', 34 from 0x7F, and 0xAD. */
uint32_t mti_byte_char(unsigned char byte)
{
    const unsigned b = byte;
    if (is_shown(b)) return b;
    return 256 + (b < '!' ? b : b == 0xAD ? 67 : b - 0x7F + 33);
}

int mti_char_byte(uint32_t c)
{
    if (c < 256) return is_shown(c) ? (int)c : -1;
    if (c > 256 + 67) return -1;
    c -= 256;
    return c < 33 ? (int)c : c == 67 ? 0xAD : (int)(c - 33 + 0x7F);
}

/* ---- changes ---- */

bool mti_text_lower(mt_text *out, const char *text, size_t n)
{
    bool ok = true;
    for (size_t at = 0; at < n && ok;) {
        uint32_t c = mti_char(text, n, &at);
        if (c == 0x130) /* the only one that becomes two */
            ok = mti_text_add(out, "i\xCC\x87", 3);
        else
            ok = mti_text_char(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
    }
    return ok;
}

bool mti_text_clean(mt_text *out, const char *text, size_t n)
{
    const unsigned dropped = BIT(CC) | BIT(CF) | BIT(CO);
    bool ok = true;
    for (size_t at = 0; at < n && ok;) {
        const uint32_t c = mti_char(text, n, &at);
        const bool line = c == '\t' || c == '\n' || c == '\r';
        if (line || (mti_char_is_space(c) && !(category(c) & dropped)))
            ok = mti_text_add(out, " ", 1);
        else if (c != 0xFFFD && !(category(c) & dropped))
            ok = mti_text_char(out, c);
    }
    return ok;
}

/* BERT's blocks; the last but two begins at 2B920 in its code, and so here. */
static bool is_ideograph(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
           (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0x2F800 && c <= 0x2FA1F);
}

bool mti_text_ideographs(mt_text *out, const char *text, size_t n)
{
    bool ok = true;
    for (size_t at = 0; at < n && ok;) {
        const uint32_t c = mti_char(text, n, &at);
        const size_t blank = is_ideograph(c);
        ok =
            mti_text_add(out, " ", blank) && mti_text_char(out, c) && mti_text_add(out, " ", blank);
    }
    return ok;
}

/* ---- normal forms ---- */

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts marks by their class, in time that a text of marks alone does not square: by class, place
 * and character in one number. */
static bool order(utf8proc_int32_t *chars, size_t n)
{
    uint64_t *keys = mti_malloc(n * sizeof *keys);
    if (!keys) return false;
    for (size_t i = 0, begin = 0; i <= n; i++) {
        const uint64_t class =
            i < n ? (uint64_t)utf8proc_get_property(chars[i])->combining_class : 0;
        if (class) keys[i] = class << 56 | (uint64_t)(i - begin) << 21 | (uint64_t)chars[i];
        if (class) continue;
        if (i - begin > 1) qsort(keys + begin, i - begin, sizeof *keys, by_value);
        for (; begin < i; begin++) chars[begin] = (utf8proc_int32_t)(keys[begin] & 0x1FFFFF);
        begin = i + 1;
    }
    mti_free(keys);
    return true;
}

/* Adds the form of a text that may be cut where it begins and ends. */
static bool form_of(mt_text *out, const char *text, size_t n, mti_normal_form form)
{
    const int compatible = form >= MTI_NFKC ? UTF8PROC_COMPAT : 0;
    MTI_VEC(utf8proc_int32_t) chars = {0};
    bool ok = true;
    for (size_t at = 0; at < n && ok;) {
        utf8proc_int32_t parts[32];
        const uint32_t c = mti_char(text, n, &at);
        const utf8proc_ssize_t count =
            utf8proc_decompose_char((utf8proc_int32_t)c, parts, 32,
                                    (utf8proc_option_t)(UTF8PROC_DECOMPOSE | compatible), NULL);
        for (utf8proc_ssize_t i = 0; i < count && i < 32 && ok; i++)
            ok = MTI_PUSH(&chars, parts[i]);
    }
    ok = ok && order(chars.at, chars.n);
    if (ok && (form == MTI_NFC || form == MTI_NFKC))
        chars.n = (size_t)utf8proc_normalize_utf32(
            chars.at, (utf8proc_ssize_t)chars.n,
            (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    for (size_t i = 0; i < chars.n && ok; i++) ok = mti_text_char(out, (uint32_t)chars.at[i]);
    mti_free(chars.at);
    return ok;
}

/* ASCII stays as it is, and nothing is composed with what stands before it: so text is cut before
 * the last such character in a row. */
bool mti_text_form(mt_text *out, const char *text, size_t n, mti_normal_form form)
{
    bool ok = true;
    for (size_t at = 0; at < n && ok;) {
        size_t end = at;
        while (end < n && (unsigned char)text[end] < 0x80) end++;
        const size_t plain = end == n || end == at ? end : end - 1;
        while (end < n && (unsigned char)text[end] >= 0x80) end++;
        ok = mti_text_add(out, text + at, plain - at) &&
             (plain == end || form_of(out, text + plain, end - plain, form));
        at = end;
    }
    return ok;
}
