/* text_steps.c: what a step makes of a text. Steps that divide text are in encode.c, those of
 * decoders in decode.c. */
#include "tokens/tokenizer.h"

mti_text_step *mti_step_new(mti_steps *steps, mti_step_kind kind, int which, const char *content)
{
    mti_text_step step = {.kind = kind, .which = which};
    if (steps->n == MTI_STEPS)
        return mti_fail_null(MT_ERR_UNSUPPORTED, "more than %d steps in a row", MTI_STEPS);
    if (mti_text_add(&step.content, content, strlen(content)) && MTI_PUSH(steps, step))
        return &steps->at[steps->n - 1];
    mti_step_free(&step);
    return NULL;
}

void mti_step_free(mti_text_step *step)
{
    mti_pattern_free(&step->pattern);
    mt_text_free(&step->content);
}

/* Puts `content`, or nothing, in the place of each match. */
static bool replace(const mti_text_step *s, mti_matcher *m, const char *text, size_t n,
                    mt_text *out)
{
    size_t from = 0, begin = 0, end = 0;
    int found;
    while ((found = mti_pattern_find(&s->pattern, m, text, n, &begin, &end)) > 0) {
        if (!mti_text_add(out, text + from, begin - from) ||
            !mti_text_add(out, s->content.at, s->content.n))
            return false;
        from = begin = end;
    }
    return found == 0 && mti_text_add(out, text + from, n - from);
}

static bool prepend(const mti_text_step *s, const char *text, size_t n, bool first, mt_text *out)
{
    const mt_text *c = &s->content;
    const bool there = n >= c->n && !memcmp(text, c->at, c->n);
    const bool wanted =
        n && (s->which == MTI_ALWAYS || (!there && (s->which == MTI_UNLESS_THERE || first)));
    return mti_text_add(out, c->at, wanted ? c->n : 0) && mti_text_add(out, text, n);
}

static bool trim(const mti_text_step *s, const char *text, size_t n, mt_text *out)
{
    size_t begin = 0, end = n, next;
    while (s->start && begin < n) {
        next = begin;
        if (!mti_char_is_space(mti_char(text, n, &next))) break;
        begin = next;
    }
    for (size_t last = end; s->stop && last > begin;) {
        do last--;
        while (last > begin && ((unsigned char)text[last] & 0xC0) == 0x80);
        next = last;
        if (!mti_char_is_space(mti_char(text, n, &next))) break;
        end = last;
    }
    return mti_text_add(out, text + begin, end - begin);
}

static bool as_bytes(const char *text, size_t n, mt_text *out)
{
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++)
        ok = mti_text_char(out, mti_byte_char((unsigned char)text[i]));
    return ok;
}

bool mti_step_apply(const mti_text_step *s, mti_matcher *m, const char *text, size_t n, bool first,
                    mt_text *out)
{
    switch (s->kind) {
    case MTI_REPLACE:
    case MTI_DROP: return replace(s, m, text, n, out);
    case MTI_PREPEND: return prepend(s, text, n, first, out);
    case MTI_BYTES: return as_bytes(text, n, out);
    case MTI_FORM: return mti_text_form(out, text, n, (mti_normal_form)s->which);
    case MTI_LOWER: return mti_text_lower(out, text, n);
    case MTI_CLEAN: return mti_text_clean(out, text, n);
    case MTI_IDEOGRAPHS: return mti_text_ideographs(out, text, n);
    case MTI_TRIM: return trim(s, text, n, out);
    default: break;
    }
    return mti_text_add(out, text, n);
}

bool mti_normalize(const mt_tokenizer *t, mti_matcher *m, const char *text, size_t n, bool first,
                   mt_text *out)
{
    mt_text turns[2] = {{0}};
    bool ok = mti_text_add(out, "", 0);
    for (size_t i = 0; i < t->normalizers.n && ok; i++) {
        const bool last = i + 1 == t->normalizers.n;
        mt_text *to = last ? out : &turns[i & 1];
        if (!last) to->n = 0;
        ok =
            mti_text_add(to, "", 0) && mti_step_apply(&t->normalizers.at[i], m, text, n, first, to);
        text = to->at, n = to->n;
    }
    if (!t->normalizers.n) ok = mti_text_add(out, text, n);
    mt_text_free(&turns[0]), mt_text_free(&turns[1]);
    return ok;
}
