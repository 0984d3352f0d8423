/* decode.c: from tokens to text. A decoder's steps change the list of the tokens' texts, which are
 * joined at the end. */
#include "tokens/tokenizer.h"

/* The texts of tokens: one behind another, with where each ends. */
typedef struct texts {
    mt_text all;
    MTI_VEC(size_t) ends;
} texts;

static void texts_free(texts *x)
{
    mt_text_free(&x->all);
    mti_free(x->ends.at);
}

static bool end_text(texts *x) { return MTI_PUSH(&x->ends, x->all.n); }

static bool ends_with(const char *text, size_t n, const mt_text *what)
{
    return n >= what->n && !memcmp(text + n - what->n, what->at, what->n);
}

static bool begins_with(const char *text, size_t n, const mt_text *what)
{
    return n >= what->n && !memcmp(text, what->at, what->n);
}

/* ---- steps ---- */

/* The bytes that a token's characters stand for; if one stands for none, the token as it is. */
static bool add_bytes(mt_text *out, const char *text, size_t n)
{
    const size_t before = out->n;
    for (size_t at = 0; at < n;) {
        const int byte = mti_char_byte(mti_char(text, n, &at));
        const char c = (char)byte;
        if (byte < 0) return out->n = before, mti_text_add(out, text, n);
        if (!mti_text_add(out, &c, 1)) return false;
    }
    return true;
}

/* The byte of a token like <0x0A>; -1: it is none. */
static int byte_of(const char *text, size_t n)
{
    static const char digits[] = "0123456789ABCDEF0123456789abcdef";
    if (n != 6 || memcmp(text, "<0x", 3) || text[5] != '>') return -1;
    const char *high = memchr(digits, text[3], 32), *low = memchr(digits, text[4], 32);
    return high && low ? (int)((high - digits) % 16 * 16 + (low - digits) % 16) : -1;
}

/* Ends a run of bytes that began at *begin: where they are not UTF-8, each is U+FFFD. whole: false:
 * they stay, since more may follow. */
static bool end_run(texts *out, size_t *begin, bool whole)
{
    const size_t from = *begin, n = out->all.n - from;
    *begin = SIZE_MAX;
    if (from == SIZE_MAX) return true;
    if (!whole || mti_text_is_valid(out->all.at + from, n)) return end_text(out);
    out->all.n = from;
    for (size_t i = 0; i < n; i++)
        if (!mti_text_char(&out->all, 0xFFFD) || !end_text(out)) return false;
    return true;
}

static bool strip(const mti_text_step *s, const char *text, size_t n, texts *out)
{
    size_t begin = 0;
    for (size_t i = 0; i < s->start && begins_with(text + begin, n - begin, &s->content); i++)
        begin += s->content.n;
    for (size_t i = 0; i < s->stop && ends_with(text + begin, n - begin, &s->content); i++)
        n -= s->content.n;
    return mti_text_add(&out->all, text + begin, n - begin);
}

/* What BERT's tokenizer tidies up in each token. */
static bool clean(const char *text, size_t n, mt_text *out)
{
    static const char *const pairs[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                           {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                           {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                           {" 've", "'ve"}, {" 're", "'re"}};
    mt_text turns[2] = {{0}};
    bool ok = mti_text_add(&turns[0], text, n);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && ok; i++) {
        const mt_text *from = &turns[i & 1];
        mt_text *to = &turns[~i & 1];
        to->n = 0;
        for (size_t at = 0; at < from->n && ok;) {
            const size_t length = strlen(pairs[i][0]);
            const bool is = from->n - at >= length && !memcmp(from->at + at, pairs[i][0], length);
            ok = is ? mti_text_add(to, pairs[i][1], strlen(pairs[i][1]))
                    : mti_text_add(to, from->at + at, 1);
            at += is ? length : 1;
        }
        ok = ok && mti_text_add(to, "", 0);
    }
    const mt_text *last = &turns[sizeof pairs / sizeof *pairs & 1];
    ok = ok && mti_text_add(out, last->at, last->n);
    mt_text_free(&turns[0]), mt_text_free(&turns[1]);
    return ok;
}

static bool add_word(const mti_text_step *s, size_t i, const char *text, size_t n, mt_text *out)
{
    mt_text word = {0};
    const bool within = i && begins_with(text, n, &s->content);
    const size_t cut = within ? s->content.n : 0;
    bool ok = mti_text_add(&word, " ", i && !within) && mti_text_add(&word, text + cut, n - cut) &&
              (s->cleanup ? clean(word.at, word.n, out) : mti_text_add(out, word.at, word.n));
    mt_text_free(&word);
    return ok;
}

static bool add_blanks(const mti_text_step *s, size_t i, const char *text, size_t n, mt_text *out)
{
    bool ok = true;
    for (size_t at = 0; at < n && ok;) {
        const bool is = begins_with(text + at, n - at, &s->content);
        ok = is ? mti_text_add(out, " ", i || !s->start) : mti_text_add(out, text + at, 1);
        at += is ? s->content.n : 1;
    }
    return ok;
}

/* After steps that make bytes, text need not be UTF-8, which patterns expect. */
static bool replace(const mti_text_step *s, mti_matcher *m, const char *text, size_t n,
                    mt_text *out)
{
    mt_text valid = {0};
    const bool ok = mti_text_repaired(&valid, text, n, false, NULL) &&
                    mti_step_apply(s, m, valid.at, valid.n, false, out);
    mt_text_free(&valid);
    return ok;
}

/* What a step makes of the i-th token's text; *run: where a run of bytes began, SIZE_MAX: nowhere.
 */
static bool apply(const mti_text_step *s, mti_matcher *m, size_t i, const char *text, size_t n,
                  bool whole, size_t *run, texts *out)
{
    if (s->kind == MTI_BYTE_TOKENS) {
        const int byte = byte_of(text, n);
        const char c = (char)byte;
        if (byte < 0)
            return end_run(out, run, whole) && mti_text_add(&out->all, text, n) && end_text(out);
        if (*run == SIZE_MAX) *run = out->all.n;
        return mti_text_add(&out->all, &c, 1);
    }
    if (s->kind == MTI_BYTES) return add_bytes(&out->all, text, n);
    if (s->kind == MTI_FUSE) return mti_text_add(&out->all, text, n);
    const bool ok = s->kind == MTI_STRIP    ? strip(s, text, n, out)
                    : s->kind == MTI_WORDS  ? add_word(s, i, text, n, &out->all)
                    : s->kind == MTI_BLANKS ? add_blanks(s, i, text, n, &out->all)
                                            : replace(s, m, text, n, &out->all);
    return ok && end_text(out);
}

/* ---- tokens ---- */

static bool start(const mt_tokenizer *t, const int64_t *ids, size_t n, bool skip_special, texts *x)
{
    const mti_vocabulary *v = &t->vocabulary;
    bool ok = mti_text_add(&x->all, "", 0);
    for (size_t i = 0; i < n && ok; i++) {
        const int64_t id = ids[i];
        if (id < 0 || (uint64_t)id >= v->tokens.n || !v->tokens.at[id].there)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "tokenizer: there is no token %lld; the ids go from 0 to %zu",
                                 (long long)id, v->tokens.n - 1);
        if (skip_special && v->tokens.at[id].special) continue;
        if (x->ends.n && !t->decoders.n) ok = mti_text_add(&x->all, " ", 1);
        ok = ok &&
             mti_text_add(&x->all, v->texts.at + v->tokens.at[id].written_at,
                          v->tokens.at[id].written_n) &&
             end_text(x);
    }
    return ok;
}

/* All bytes of the tokens. whole: false: more tokens may follow. */
static bool decode(const mt_tokenizer *t, const int64_t *ids, size_t n, bool skip_special,
                   bool whole, mt_text *bytes)
{
    texts x = {0}, y = {0};
    mti_matcher m = {0};
    bool ok = mti_matcher_open(&m) && start(t, ids, n, skip_special, &x);
    for (size_t k = 0; k < t->decoders.n && ok; k++) {
        const mti_text_step *s = &t->decoders.at[k];
        size_t run = SIZE_MAX, at = 0;
        y.all.n = y.ends.n = 0;
        for (size_t i = 0; i < x.ends.n && ok; at = x.ends.at[i++])
            ok = apply(s, &m, i, x.all.at + at, x.ends.at[i] - at, whole, &run, &y);
        ok = ok && mti_text_add(&y.all, "", 0) && end_run(&y, &run, whole);
        if (ok && (s->kind == MTI_BYTES || s->kind == MTI_FUSE)) ok = end_text(&y);
        const texts swapped = x;
        x = y, y = swapped;
    }
    ok = ok && mti_text_add(bytes, x.all.at, x.all.n);
    texts_free(&x), texts_free(&y);
    mti_matcher_close(&m);
    return ok;
}

mt_status mt_tokenizer_decode(const mt_tokenizer *t, const int64_t *ids, size_t n,
                              bool skip_special, mt_text *text)
{
    if (!mti_given(t, "tokenizer", "the tokenizer")) return mt_last_status();
    if (!text || (!ids && n))
        return mti_fail(MT_ERR_ARGUMENT, "tokenizer: the %s is NULL", text ? "list" : "text");
    const size_t before = text->n;
    mt_text bytes = {0};
    bool ok = decode(t, ids, n, skip_special, true, &bytes) &&
              mti_text_repaired(text, bytes.at, bytes.n, false, NULL);
    mt_text_free(&bytes);
    if (ok) return MT_OK;
    text->n = before;
    if (text->at) text->at[before] = 0;
    return mt_last_status();
}

/* ---- streams ---- */

/* Tokens whose text has not come out as a whole, behind one that has, since a decoder treats the
 * first of a text in another way. */
struct mt_token_stream {
    const mt_tokenizer *t;
    bool skip_special;
    mt_token_list ids;
    size_t done; /* bytes of their text that have come out */
};

mt_token_stream *mt_token_stream_new(const mt_tokenizer *t, bool skip_special)
{
    if (!mti_given(t, "tokenizer", "the tokenizer")) return NULL;
    mt_token_stream *s = mti_calloc(1, sizeof *s);
    if (s) s->t = t, s->skip_special = skip_special;
    return s;
}

void mt_token_stream_free(mt_token_stream *s)
{
    if (!s) return;
    mt_token_list_free(&s->ids);
    mti_free(s);
}

/* Appends what is new in the text of the tokens; last: all of it. */
static bool bring(mt_token_stream *s, bool last, mt_text *text)
{
    mt_text bytes = {0};
    size_t n_read = 0;
    bool ok = decode(s->t, s->ids.at, s->ids.n, false, false, &bytes);
    if (ok && bytes.n > s->done) {
        ok = mti_text_repaired(text, bytes.at + s->done, bytes.n - s->done, !last, &n_read);
        s->done += n_read;
    }
    if (ok && s->done == bytes.n && s->ids.n > 1) {
        const int64_t last_id = s->ids.at[s->ids.n - 1];
        bytes.n = 0;
        ok = decode(s->t, &last_id, 1, false, false, &bytes);
        if (ok) s->ids.at[0] = last_id, s->ids.n = 1, s->done = bytes.n;
    }
    mt_text_free(&bytes);
    return ok;
}

mt_status mt_token_stream_next(mt_token_stream *s, int64_t id, mt_text *text)
{
    if (!mti_given(s, "tokenizer", "the stream")) return mt_last_status();
    if (!text) return mti_fail(MT_ERR_ARGUMENT, "tokenizer: the text is NULL");
    if (s->skip_special && mt_tokenizer_is_special(s->t, id)) return MT_OK;
    const mt_token_list ids = s->ids;
    const size_t done = s->done, before = text->n;
    if (MTI_PUSH(&s->ids, id) && bring(s, false, text)) return MT_OK;
    s->ids.n = ids.n, s->done = done, text->n = before;
    if (text->at) text->at[before] = 0;
    return mt_last_status();
}

mt_status mt_token_stream_end(mt_token_stream *s, mt_text *text)
{
    if (!mti_given(s, "tokenizer", "the stream")) return mt_last_status();
    if (!text) return mti_fail(MT_ERR_ARGUMENT, "tokenizer: the text is NULL");
    const bool ok = bring(s, true, text);
    s->ids.n = s->done = 0;
    return ok ? MT_OK : mt_last_status();
}
