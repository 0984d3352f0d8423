/* pattern.c: what steps look for. Hugging Face's regular expressions are Oniguruma's, in Ruby's
 * syntax; PCRE2 reads most of that alike. What it reads otherwise is written anew, or refused. */
#include "tokens/tokenizer.h"

/* Blanks of Unicode, and what \w matches: PCRE2's \s has U+180E, too, its \w fewer characters. */
#define SPACES                                                                                     \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define WORDS                                                                                      \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{"     \
    "1F169}"                                                                                       \
    "\\x{1F170}-\\x{1F189}"

/* ---- from Oniguruma's syntax to PCRE2's ---- */

typedef struct reading {
    const char *text;
    size_t n, at;
    int depth; /* classes that are open, one within another */
    mt_text *out;
} reading;

static bool refuse(const reading *r, const char *what)
{
    return mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "the pattern \"%.200s\" has %s (byte %zu), which is not known here",
                         r->text, what, r->at);
}

static bool follows(const reading *r, const char *text)
{
    const size_t n = strlen(text);
    return r->n - r->at >= n && !memcmp(r->text + r->at, text, n);
}

static bool put(reading *r, const char *text, size_t taken)
{
    r->at += taken;
    return mti_text_add(r->out, text, strlen(text));
}

static bool copy(reading *r, size_t n)
{
    r->at += n;
    return mti_text_add(r->out, r->text + r->at - n, n);
}

/* At a backslash. */
static bool read_escape(reading *r)
{
    const char c = r->at + 1 < r->n ? r->text[r->at + 1] : 0;
    const bool in_class = r->depth > 0;
    if (c == 's') return put(r, in_class ? SPACES : "[" SPACES "]", 2);
    if (c == 'S') return put(r, in_class ? "\\S\\x{180E}" : "[^" SPACES "]", 2);
    if (c == 'w') return put(r, in_class ? WORDS : "[" WORDS "]", 2);
    if (c == 'W' && !in_class) return put(r, "[^" WORDS "]", 2);
    const char *hex = r->text + r->at + 2;
    const size_t left = r->n - r->at - 2;
    if (c == 'u' && left >= 4 && strspn(hex, "0123456789abcdefABCDEF") >= 4)
        return put(r, "\\x{", 2) && copy(r, 4) && put(r, "}", 0);
    const char *end = c && strchr("pPx", c) && left && *hex == '{' ? memchr(hex, '}', left) : NULL;
    if (end) return copy(r, (size_t)(end - r->text) + 1 - r->at);
    if (c == 'x' && left >= 2 && *hex >= '0' && *hex < '8') return copy(r, 4);
    const bool letter = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (!c || (letter && !strchr("dDpPnrtfaeAzZ", c)) || (in_class && c && strchr("AzZ", c)))
        return refuse(r, "an escape");
    return copy(r, 2);
}

/* Within a class; one that stands in another adds its characters. */
static bool read_in_class(reading *r)
{
    if (follows(r, "&&")) return refuse(r, "an intersection \"&&\"");
    if (follows(r, "[:")) return refuse(r, "a POSIX class");
    if (follows(r, "[^")) return refuse(r, "a class \"[^\" in a class");
    if (follows(r, "[")) return r->depth++, r->at++, true;
    if (follows(r, "]") && --r->depth) return r->at++, true;
    return copy(r, 1);
}

static bool read_group(reading *r)
{
    static const char *const known[] = {"(?:",  "(?=",  "(?!",  "(?>",
                                        "(?<=", "(?<!", "(?i:", "(?-i:"};
    if (!follows(r, "(?")) return copy(r, 1);
    if (r->at == 0 && follows(r, "(?i)")) return copy(r, 4);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (follows(r, known[i])) return copy(r, strlen(known[i]));
    return refuse(r, "a group \"(?\"");
}

static bool translate(reading *r)
{
    bool ok = true;
    while (ok && r->at < r->n) {
        const char c = r->text[r->at];
        if (c == '\\') {
            ok = read_escape(r);
        } else if (r->depth) {
            ok = read_in_class(r);
        } else if (c == '[') {
            r->depth = 1;
            ok = copy(r, follows(r, "[^]") ? 3 : follows(r, "[]") || follows(r, "[^") ? 2 : 1);
        } else if (c == '(') {
            ok = read_group(r);
        } else if (follows(r, "}+") || follows(r, "}?") || follows(r, "{,")) {
            ok = refuse(r, "a repetition that Oniguruma reads in its own way");
        } else {
            ok = copy(r, 1);
        }
    }
    return ok;
}

/* ---- PCRE2 ---- */

static void *take(size_t n, void *user) { return (void)user, mti_malloc(n); }
static void give(void *p, void *user) { (void)user, mti_free(p); }

/* In UTF-8, with ^ and $ at each line, as Ruby has them. */
static pcre2_code *compile(const mt_text *text, const char *shown)
{
    const uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C;
    const uint64_t failures = mti_failures();
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    pcre2_compile_context *context = memory ? pcre2_compile_context_create(memory) : NULL;
    pcre2_code *code = NULL;
    int error = 0;
    size_t at = 0;
    if (context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        code = pcre2_compile((PCRE2_SPTR)text->at, text->n, options, &error, &at, context);
    }
    if (!code && !mti_failed_since(failures)) {
        char why[128] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        mti_fail(MT_ERR_FORMAT, "the pattern \"%.200s\": %s", shown, why);
    }
    uint32_t empty = 0;
    if (code && pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty) == 0 && empty)
        mti_fail(MT_ERR_UNSUPPORTED,
                 "the pattern \"%.200s\" may match nothing, which is not known here", shown);
    /* Where the system forbids new code, the pattern is interpreted. */
    if (code) pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    pcre2_compile_context_free(context);
    pcre2_general_context_free(memory);
    if (!mti_failed_since(failures)) return code;
    pcre2_code_free(code);
    return NULL;
}

bool mti_pattern_compile(mti_pattern *p, const char *text, size_t n)
{
    mt_text out = {0};
    reading r = {.text = text, .n = n, .out = &out};
    if (mti_text_add(&out, "", 0) && translate(&r)) p->regular = compile(&out, text);
    mt_text_free(&out);
    return p->regular != NULL;
}

void mti_pattern_free(mti_pattern *p)
{
    pcre2_code_free(p->regular);
    mt_text_free(&p->literal);
    *p = (mti_pattern){0};
}

bool mti_matcher_open(mti_matcher *m)
{
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    m->data = memory ? pcre2_match_data_create(1, memory) : NULL;
    m->context = m->data ? pcre2_match_context_create(memory) : NULL;
    if (m->context) pcre2_set_heap_limit(m->context, 256 * 1024); /* KiB */
    pcre2_general_context_free(memory);
    return m->context != NULL;
}

void mti_matcher_close(mti_matcher *m)
{
    pcre2_match_context_free(m->context);
    pcre2_match_data_free(m->data);
}

/* ---- finding ---- */

static int find_regular(const mti_pattern *p, mti_matcher *m, const char *text, size_t n,
                        size_t *begin, size_t *end)
{
    const uint64_t failures = mti_failures();
    const PCRE2_SPTR s = (PCRE2_SPTR)text;
    const uint32_t checked = PCRE2_NO_UTF_CHECK;
    int found = pcre2_match(p->regular, s, n, *begin, checked, m->data, m->context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
        found = pcre2_match(p->regular, s, n, *begin, checked | PCRE2_NO_JIT, m->data, m->context);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
        char why[128] = "";
        pcre2_get_error_message(found, (PCRE2_UCHAR *)why, sizeof why);
        mti_fail_around(failures, MT_ERR_UNSUPPORTED, "a pattern of the tokenizer: %s", why);
        return -1;
    }
    if (found < 0) return 0;
    const size_t *at = pcre2_get_ovector_pointer(m->data);
    *begin = at[0], *end = at[1];
    return 1;
}

int mti_pattern_find(const mti_pattern *p, mti_matcher *m, const char *text, size_t n,
                     size_t *begin, size_t *end)
{
    if (p->regular) return find_regular(p, m, text, n, begin, end);
    if (!p->is) {
        const size_t length = p->literal.n;
        const char *at =
            length && n ? memmem(text + *begin, n - *begin, p->literal.at, length) : NULL;
        if (at) *begin = (size_t)(at - text), *end = *begin + length;
        return at != NULL;
    }
    for (size_t at = *begin; at < n;) {
        *begin = at;
        const bool is = p->is(mti_char(text, n, &at));
        if (is) return *end = at, 1;
    }
    return 0;
}
