/* text.c: shapes and byte counts as text. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"

/* ---- where we are ---- */

mti_where *mti_where_now(void)
{
    static _Thread_local mti_where where = {.op = "", .module = "", .phase = ""};
    return &where;
}

/* ---- shapes ---- */

const char *mti_shape_text(char buf[MTI_SHAPE_TEXT], int rank, const int64_t *shape)
{
    /* 8 dimensions of at most 20 characters, separators and brackets: 170 fit. */
    size_t n = 0;
    buf[n++] = '[';
    for (int d = 0; d < rank && d < MT_MAX_RANK; d++)
        n += (size_t)snprintf(buf + n, MTI_SHAPE_TEXT - n, "%s%lld", d ? "," : "",
                              (long long)shape[d]);
    snprintf(buf + n, MTI_SHAPE_TEXT - n, "]");
    return buf;
}

/* ---- UTF-8 ---- */

uint32_t mti_next_char(const unsigned char *s, const unsigned char *end, size_t *length)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80         ? 1
               : (s[0] >> 5) == 6  ? 2
               : (s[0] >> 4) == 14 ? 3
               : (s[0] >> 3) == 30 ? 4
                                   : 0;
    *length = 1;
    if (n == 1) return s[0];
    if (n == 0 || (size_t)(end - s) < n) return UINT32_MAX;
    uint32_t c = s[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) return UINT32_MAX;
        c = c << 6 | (s[i] & 0x3Fu);
    }
    if (c < least[n] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return UINT32_MAX;
    *length = n;
    return c;
}

/* C0 and C1; marks, line ends and orders of bidirectional text, which hide what a name is. */
bool mti_is_control(uint32_t c)
{
    bool ordered = c == 0x61C || c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) ||
                   (c >= 0x2066 && c <= 0x2069);
    return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0) || ordered ||
           (c & 0xFFFE) == 0xFFFE; /* those that are none, and UINT32_MAX */
}

bool mti_is_utf8(const char *text)
{
    const unsigned char *s = (const unsigned char *)text, *end = s + strlen(text);
    size_t length;
    for (; s < end; s += length)
        if (mti_next_char(s, end, &length) == UINT32_MAX) return false;
    return true;
}

void mti_make_printable(char *text)
{
    const char *from = text, *end = text + strlen(text);
    while (from < end) {
        size_t length;
        uint32_t c =
            mti_next_char((const unsigned char *)from, (const unsigned char *)end, &length);
        if (mti_is_control(c)) {
            *text++ = '?';
        } else {
            memmove(text, from, length);
            text += length;
        }
        from += length;
    }
    *text = '\0';
}

/* ---- bytes ---- */

static const struct {
    const char *name;
    uint64_t bytes;
} units[] = {
    {"B", 1},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
    {"PiB", 1ull << 50},
    {"EiB", 1ull << 60},
    {"kB", 1000ull},
    {"KB", 1000ull},
    {"MB", 1000000ull},
    {"GB", 1000000000ull},
    {"TB", 1000000000000ull},
    {"PB", 1000000000000000ull},
    {"EB", 1000000000000000000ull},
};
#define N_BINARY_UNITS 7
#define N_UNITS        (sizeof units / sizeof *units)

const char *mti_bytes_text(char *buf, size_t n, uint64_t bytes)
{
    size_t u = 0;
    double value = (double)bytes;
    /* 1023.995 would print as 1024.00, so it is printed as 1 of the next unit. */
    while (value >= (u ? 1023.995 : 1024) && u + 1 < N_BINARY_UNITS) value /= 1024, u++;
    char digits[32];
    int len = mti_format(digits, sizeof digits, "%.2f", value);
    while (digits[len - 1] == '0') len--;
    if (digits[len - 1] == '.') len--;
    snprintf(buf, n, "%.*s %s", len, digits, units[u].name);
    return buf;
}

const char *mti_thousands(char buf[MTI_NUMBER], int64_t value)
{
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    char *at = buf + MTI_NUMBER - 1;
    *at = 0;
    int digits = 0;
    do {
        if (digits && digits % 3 == 0) *--at = ',';
        *--at = (char)('0' + left % 10);
        left /= 10;
        digits++;
    } while (left);
    if (value < 0) *--at = '-';
    return memmove(buf, at, (size_t)(buf + MTI_NUMBER - at));
}

/* Reads decimal digits at *s and advances *s. False if there are none, or on overflow. */
static bool parse_digits(const char **s, uint64_t *out)
{
    const char *p = *s;
    uint64_t value = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
            return false;
    bool any = p != *s;
    *s = p;
    *out = value;
    return any;
}

/* The digits after the point as num / den, to nine places; further digits are ignored. */
static bool parse_fraction(const char **s, uint64_t *num, uint64_t *den)
{
    const char *p = *s;
    for (; *p >= '0' && *p <= '9'; p++)
        if (*den < 1000000000u) *num = *num * 10 + (uint64_t)(*p - '0'), *den *= 10;
    bool any = p != *s;
    *s = p;
    return any;
}

/* "GiB", "GB", "G", or one of these in small letters. 0: none. */
static uint64_t find_unit(const char *s)
{
    char small[8] = "";
    for (size_t u = 0; u < N_UNITS; u++) {
        const char *name = units[u].name;
        for (size_t i = 0; i <= strlen(name); i++) small[i] = (char)tolower((unsigned char)name[i]);
        bool is = !strcmp(s, name) || (u > 0 && !strcmp(s, small));
        bool is_short = u > 0 && u < N_BINARY_UNITS && strlen(s) == 1;
        if (is || (is_short && (*s == *name || *s == *small))) return units[u].bytes;
    }
    return 0;
}

bool mti_bytes_parse(const char *s, uint64_t *out)
{
    uint64_t whole, num = 0, den = 1, unit = 1, total;
    if (!s || !parse_digits(&s, &whole)) return false;
    bool fraction = *s == '.';
    if (fraction && (s++, !parse_fraction(&s, &num, &den))) return false;
    if (*s) {
        while (*s == ' ') s++;
        unit = find_unit(s);
        if (!unit) return false;
    }
    if (fraction && unit == 1) return false; /* bytes are whole */
    /* floor(unit * num / den) without overflow: num < den <= 10^9. */
    uint64_t part = unit / den * num + unit % den * num / den;
    if (__builtin_mul_overflow(whole, unit, &total) || __builtin_add_overflow(total, part, &total))
        return false;
    *out = total;
    return true;
}
