/* token_arrays.c: a tokenizer from a vocabulary as arrays, as a GGUF file has one: what a
 * tokenizer.json says in steps follows from the names of the model and of its pattern. */
#include <stdlib.h>
#include "tokens/token_arrays.h"
#include "tokens/tokenizer.h"

#define BLANK "\xE2\x96\x81" /* SentencePiece's */
#define DIGIT "\\p{N}"
#define PIECE_BYTES                                                                                \
    256 /* the most that a token of SentencePiece has here; its own limit is below */

/* The patterns by the names that ggml.pre gives them: each is a Split, one after the other. */
static const struct {
    const char *names; /* each between blanks */
    const char *patterns[2];
    bool ignore_merges;
} known[] = {
    {" gpt-2 mpt olmo phi-2 ", {MTI_GPT2_PATTERN}, false},
    {" smollm starcoder refact command-r ", {DIGIT, MTI_GPT2_PATTERN}, false},
    {" llama-bpe llama3 llama-v3 ", {MTI_LLAMA3_PATTERN("{1,3}")}, true},
    {" qwen2 ", {MTI_LLAMA3_PATTERN("")}, false},
};

static bool add_step(mti_steps *to, mti_step_kind kind, const char *content, const char *pattern,
                     bool regular)
{
    mti_text_step *step = mti_step_new(to, kind, kind == MTI_SPLIT ? MTI_ISOLATED : 0, content);
    if (!step || !pattern) return step != NULL;
    return regular ? mti_pattern_compile(&step->pattern, pattern, strlen(pattern))
                   : mti_text_add(&step->pattern.literal, pattern, strlen(pattern));
}

/* ---- the model ---- */

/* "left right", of byte-level BPE. */
static bool add_merge(mt_tokenizer *t, const mti_token_text *merge, uint32_t rank)
{
    const char *gap = memchr(merge->at, ' ', merge->n);
    const size_t n = gap ? (size_t)(gap - merge->at) : 0;
    const int done = gap ? mti_model_merge(t, merge->at, n, gap + 1, merge->n - n - 1, rank) : 0;
    return done > 0 ||
           (done == 0 &&
            mti_fail_bool(MT_ERR_FORMAT, "merge %u is not of two tokens that make a third", rank));
}

typedef struct scored {
    float score;
    uint32_t id;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    return (x->score < y->score) - (x->score > y->score);
}

/* SentencePiece joins any two neighbours that make a token, first those that make the token of the
 * highest score: each way to divide a token is a merge, ranked by the token's score. */
static bool add_scored(mt_tokenizer *t, const mti_token_arrays *a)
{
    scored *order = mti_malloc((a->n + 1) * sizeof *order);
    bool ok = order != NULL;
    for (size_t i = 0; i < a->n && ok; i++) {
        order[i] = (scored){a->scores[i], (uint32_t)i};
        ok = a->scores[i] == a->scores[i] ||
             mti_fail_bool(MT_ERR_FORMAT, "the score of token %zu is no number", i);
    }
    if (ok) qsort(order, a->n, sizeof *order, by_score);
    for (size_t i = 0, rank = 0; i < a->n && ok; i++) {
        const mti_token_text *text = &a->texts[order[i].id];
        if (i && order[i].score != order[i - 1].score) rank = i;
        const bool is = t->vocabulary.tokens.at[order[i].id].in_model;
        for (size_t cut = 1; is && cut < text->n && ok; cut++)
            ok = mti_model_merge(t, text->at, cut, text->at + cut, text->n - cut, (uint32_t)rank) >=
                 0;
    }
    mti_free(order);
    return ok;
}

/* ---- tokens ---- */

static bool add_token(mt_tokenizer *t, const mti_token_arrays *a, size_t i)
{
    const mti_token_text *text = &a->texts[i];
    const int32_t type = a->types ? a->types[i] : MTI_TOKEN_NORMAL;
    const bool added = type == MTI_TOKEN_CONTROL || type == MTI_TOKEN_USER;
    if (!mti_text_is_valid(text->at, text->n))
        return mti_fail_bool(MT_ERR_FORMAT, "token %zu is not UTF-8", i);
    if (a->scores && text->n > PIECE_BYTES)
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "token %zu has %zu bytes; at most %d are read", i,
                             text->n, PIECE_BYTES);
    if (!mti_token_add(&t->vocabulary, text->at, text->n, (int64_t)i, type != MTI_TOKEN_CONTROL,
                       a->n))
        return false;
    t->vocabulary.tokens.at[i].special = type == MTI_TOKEN_CONTROL;
    return !added || mti_added_add(&t->raw, text->at, text->n, (mti_added){.id = (uint32_t)i});
}

static bool add_around(mt_token_list *list, const mti_token_arrays *a, int64_t id, bool wanted)
{
    if (!wanted) return true;
    if (id < 0 || (uint64_t)id >= a->n)
        return mti_fail_bool(MT_ERR_FORMAT,
                             "token %lld, which begins or ends a text, is not one of %zu",
                             (long long)id, a->n);
    return MTI_PUSH(list, id);
}

static bool add_tokens(mt_tokenizer *t, const mti_token_arrays *a)
{
    bool ok = true;
    for (size_t i = 0; i < a->n && ok; i++) ok = add_token(t, a, i);
    const bool known_end = a->eos >= 0 && (uint64_t)a->eos < a->n,
               known_turn = a->eot >= 0 && (uint64_t)a->eot < a->n && a->eot != a->eos;
    return ok && add_around(&t->before, a, a->bos, a->add_bos) &&
           add_around(&t->after, a, a->eos, a->add_eos) &&
           add_around(&t->ends, a, a->eos, known_end) &&
           add_around(&t->ends, a, a->eot, known_turn);
}

/* ---- the two kinds ---- */

static bool make_gpt2(mt_tokenizer *t, const mti_token_arrays *a)
{
    char name[64];
    size_t i = 0;
    snprintf(name, sizeof name, " %.60s ", a->pre ? a->pre : "");
    while (i < sizeof known / sizeof *known && !strstr(known[i].names, name)) i++;
    if (!a->pre || i == sizeof known / sizeof *known)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "the pattern \"%.60s\" (tokenizer.ggml.pre) is not known here",
                             a->pre ? a->pre : "");
    t->model.unknown = MTI_NO_TOKEN;
    t->model.ignore_merges = known[i].ignore_merges;
    bool ok = !a->add_space_prefix || add_step(&t->pre_tokenizers, MTI_PREPEND, " ", NULL, false);
    for (size_t k = 0; k < 2 && known[i].patterns[k] && ok; k++)
        ok = add_step(&t->pre_tokenizers, MTI_SPLIT, "", known[i].patterns[k], true);
    ok = ok && add_step(&t->pre_tokenizers, MTI_BYTES, "", NULL, false) &&
         add_step(&t->decoders, MTI_BYTES, "", NULL, false);
    for (size_t k = 0; k < a->n_merges && ok; k++) ok = add_merge(t, &a->merges[k], (uint32_t)k);
    return ok;
}

static bool make_llama(mt_tokenizer *t, const mti_token_arrays *a)
{
    if (!a->scores) return mti_fail_bool(MT_ERR_FORMAT, "tokenizer.ggml.scores is missing");
    t->model.unknown =
        a->unknown >= 0 && (uint64_t)a->unknown < a->n ? (uint32_t)a->unknown : MTI_NO_TOKEN;
    t->model.fuse_unknown = t->model.byte_fallback = true;
    bool ok =
        (!a->add_space_prefix || add_step(&t->normalizers, MTI_PREPEND, BLANK, NULL, false)) &&
        add_step(&t->normalizers, MTI_REPLACE, BLANK, " ", false) &&
        add_step(&t->decoders, MTI_REPLACE, " ", BLANK, false) &&
        add_step(&t->decoders, MTI_BYTE_TOKENS, "", NULL, false) &&
        add_step(&t->decoders, MTI_FUSE, "", NULL, false);
    if (ok && a->add_space_prefix && (ok = add_step(&t->decoders, MTI_STRIP, " ", NULL, false)))
        t->decoders.at[t->decoders.n - 1].start = 1;
    return ok && add_scored(t, a);
}

static bool make(mt_tokenizer *t, const mti_token_arrays *a)
{
    const char *model = a->model ? a->model : "";
    const bool gpt2 = !strcmp(model, "gpt2");
    if (!gpt2 && strcmp(model, "llama"))
        return mti_fail_bool(
            MT_ERR_UNSUPPORTED,
            "the tokenizer \"%.60s\" (tokenizer.ggml.model) is not known here; gpt2 and llama are",
            model);
    if (!a->n || !a->texts) return mti_fail_bool(MT_ERR_FORMAT, "tokenizer.ggml.tokens is missing");
    if (!add_tokens(t, a) || !(gpt2 ? make_gpt2(t, a) : make_llama(t, a))) return false;
    mti_model_finish(t);
    return !a->chat_template || (t->chat_template = mti_strdup(a->chat_template));
}

mt_tokenizer *mti_tokenizer_from_arrays(const mti_token_arrays *a)
{
    mt_tokenizer *t = mti_calloc(1, sizeof *t);
    if (!t || make(t, a)) return t;
    mt_tokenizer_free(t);
    mti_tokenizer_blame(a->path);
    return NULL;
}
