/* encode.c: from text to tokens. A text is cut at the added tokens that are looked for in it as it
 * is; each part is normalized and cut at the other added tokens; the pre-tokenizers hand their
 * pieces on, one to the next, and the last one's go to the model. */
#include "tokens/tokenizer.h"

typedef struct encoding {
    const mt_tokenizer *t;
    mti_matcher matcher;
    mti_bpe *bpe;
    mt_text *texts; /* [pre-tokenizers]: what each makes of a piece */
    mt_token_list *ids;
} encoding;

typedef struct piece {
    const char *text;
    size_t n;
    bool first; /* it begins where the whole text does */
} piece;

static bool pre_tokenize(encoding *e, size_t step, piece p);

/* ---- pieces ---- */

/* Whether a part joins the one before it: is_match and was_match say what they are. */
static bool joins(int behavior, bool was_match, bool is_match)
{
    switch (behavior) {
    case MTI_CONTIGUOUS: return is_match == was_match;
    case MTI_WITH_PREVIOUS: return is_match && !was_match;
    case MTI_WITH_NEXT: return was_match && !is_match;
    default: return false;
    }
}

typedef struct splitting {
    encoding *e;
    size_t step;
    piece whole;
    size_t begin, end; /* of the piece that may still grow; empty: there is none */
    bool was_match;
} splitting;

static bool hand_on(splitting *s)
{
    const piece p = {s->whole.text + s->begin, s->end - s->begin, s->whole.first && s->begin == 0};
    return s->begin == s->end || pre_tokenize(s->e, s->step + 1, p);
}

static bool add_part(splitting *s, size_t begin, size_t end, bool is_match)
{
    const mti_text_step *step = &s->e->t->pre_tokenizers.at[s->step];
    if (begin == end) return true;
    is_match ^= step->invert;
    const bool removed = step->which == MTI_REMOVED && is_match;
    const bool grows = s->begin < s->end && joins(step->which, s->was_match, is_match);
    s->was_match = is_match;
    if (!grows) {
        if (!hand_on(s)) return false;
        s->begin = begin;
    }
    s->end = removed ? s->begin : end;
    return true;
}

static bool split(encoding *e, size_t step, piece p)
{
    splitting s = {.e = e, .step = step, .whole = p};
    size_t from = 0, begin = 0, end = 0;
    int found;
    while ((found = mti_pattern_find(&e->t->pre_tokenizers.at[step].pattern, &e->matcher, p.text,
                                     p.n, &begin, &end)) > 0) {
        if (!add_part(&s, from, begin, false) || !add_part(&s, begin, end, true)) return false;
        from = begin = end;
    }
    return found == 0 && add_part(&s, from, p.n, false) && hand_on(&s);
}

/* By the pre-tokenizers from `step` on, and then the model. */
static bool pre_tokenize(encoding *e, size_t step, piece p)
{
    if (!p.n) return true;
    if (step == e->t->pre_tokenizers.n)
        return e->t->model.kind == MTI_BPE ? mti_bpe_encode(e->t, e->bpe, p.text, p.n, e->ids)
                                           : mti_wordpiece_encode(e->t, p.text, p.n, e->ids);
    const mti_text_step *s = &e->t->pre_tokenizers.at[step];
    if (s->kind == MTI_SPLIT) return split(e, step, p);
    mt_text *out = &e->texts[step];
    out->n = 0;
    return mti_text_add(out, "", 0) && mti_step_apply(s, &e->matcher, p.text, p.n, p.first, out) &&
           pre_tokenize(e, step + 1, (piece){out->at, out->n, p.first});
}

/* ---- a text ---- */

static bool normalized(encoding *e, piece p);

/* Cuts at the added tokens before normalizing, or after it. */
static bool cut(encoding *e, bool raw, piece p)
{
    const mti_added_tokens *added = raw ? &e->t->raw : &e->t->normalized;
    const mti_added *token = NULL;
    size_t done = 0, from = 0, begin, end;
    do {
        begin = end = p.n;
        token = mti_added_find(added, p.text, p.n, done, &from, &begin, &end);
        const piece part = {p.text + done, begin > done ? begin - done : 0, p.first && done == 0};
        if (!(raw ? normalized(e, part) : pre_tokenize(e, 0, part))) return false;
        if (token && !MTI_PUSH(e->ids, (int64_t)token->id)) return false;
        done = end;
    } while (token);
    return true;
}

static bool normalized(encoding *e, piece p)
{
    if (!p.n || !e->t->normalizers.n) return cut(e, false, p);
    mt_text text = {0};
    bool ok = mti_normalize(e->t, &e->matcher, p.text, p.n, p.first, &text) &&
              cut(e, false, (piece){text.at, text.n, p.first});
    mt_text_free(&text);
    return ok;
}

static bool encode(const mt_tokenizer *t, const char *text, size_t n, bool with_special,
                   mt_token_list *ids)
{
    const size_t n_steps = t->pre_tokenizers.n;
    encoding e = {.t = t, .ids = ids};
    bool ok = mti_matcher_open(&e.matcher) && (e.bpe = mti_bpe_new()) &&
              (e.texts = mti_calloc(n_steps + 1, sizeof *e.texts)) &&
              (!with_special || mti_tokens_add(ids, &t->before)) &&
              cut(&e, true, (piece){text, n, true}) &&
              (!with_special || mti_tokens_add(ids, &t->after));
    for (size_t i = 0; e.texts && i < n_steps; i++) mt_text_free(&e.texts[i]);
    mti_free(e.texts);
    mti_bpe_free(e.bpe);
    mti_matcher_close(&e.matcher);
    return ok;
}

mt_status mt_tokenizer_encode(const mt_tokenizer *t, const char *text, size_t n_bytes,
                              bool with_special, mt_token_list *ids)
{
    if (!mti_given(t, "tokenizer", "the tokenizer")) return mt_last_status();
    if (!text || !ids)
        return mti_fail(MT_ERR_ARGUMENT, "tokenizer: the %s is NULL", text ? "list" : "text");
    if (n_bytes > INT32_MAX)
        return mti_fail(MT_ERR_ARGUMENT, "tokenizer: a text of %zu bytes; at most 2 GiB at once",
                        n_bytes);
    const size_t before = ids->n;
    mt_text valid = {0};
    bool ok = mti_text_repaired(&valid, text, n_bytes, false, NULL) &&
              encode(t, valid.at, valid.n, with_special, ids);
    mt_text_free(&valid);
    if (!ok) ids->n = before;
    return ok ? MT_OK : mt_last_status();
}
