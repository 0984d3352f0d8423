/* gguf_tokens.c: the tokenizer of a GGUF file. */
#include <string.h>
#include "io/gguf.h"

/* With a zero byte behind it, to be freed with mti_free; NULL without an error: there is none. */
static char *text_of(const mti_gguf *f, const char *key, bool *ok)
{
    mti_gguf_text text;
    const mti_gguf_value *v = mti_gguf_find(f, key);
    if (!v || v->n != 1 || !mti_gguf_texts(v, &text)) return NULL;
    char *copy = mti_malloc(text.n + 1);
    if (copy) memcpy(copy, text.at, text.n), copy[text.n] = '\0';
    *ok = *ok && copy;
    return copy;
}

/* NULL: there is none. *n: how many. */
static mti_gguf_text *texts_of(const mti_gguf *f, const char *key, size_t *n, bool *ok)
{
    const mti_gguf_value *v = mti_gguf_find(f, key);
    mti_gguf_text *texts = v ? mti_calloc((size_t)v->n + 1, sizeof *texts) : NULL;
    *n = v ? (size_t)v->n : 0;
    if (v && !texts) *ok = false;
    if (texts && !mti_gguf_texts(v, texts))
        *ok = mti_fail_bool(MT_ERR_FORMAT, "%s: %s is not an array of texts", f->path, key);
    return texts;
}

/* An array as long as the tokens, of 4-byte values; they are copied, as they may lie anywhere. */
static void *numbers_of(const mti_gguf *f, const char *key, size_t n, bool floats, bool *ok)
{
    const mti_gguf_value *v = mti_gguf_find(f, key);
    if (!v) return NULL;
    if (v->n != n || !mti_gguf_is_array(v, floats)) {
        *ok =
            mti_fail_bool(MT_ERR_FORMAT, "%s: %s is not an array of %zu numbers", f->path, key, n);
        return NULL;
    }
    void *copy = mti_malloc(n * 4 + 1);
    if (copy) memcpy(copy, v->data, n * 4);
    *ok = *ok && copy;
    return copy;
}

static bool flag(const mti_gguf *f, const char *key, bool usual)
{
    const mti_gguf_value *v = mti_gguf_find(f, key);
    return v ? mti_gguf_integer(v, 0) == 1 : usual;
}

static int64_t token(const mti_gguf *f, const char *key)
{
    return mti_gguf_integer(mti_gguf_find(f, key), 0);
}

/* Whether texts begin with a token unless the file says otherwise, as in llama.cpp. */
static bool begins(const char *model, const char *pre)
{
    return (model && !strcmp(model, "llama")) ||
           (pre &&
            (!strcmp(pre, "llama-bpe") || !strcmp(pre, "llama3") || !strcmp(pre, "llama-v3")));
}

#define KEY "tokenizer.ggml."

mt_tokenizer *mti_gguf_tokenizer(const char *path)
{
    mti_gguf *f = mti_gguf_open(path);
    if (!f) return NULL;
    bool ok = true;
    size_t n, n_merges;
    char *model = text_of(f, KEY "model", &ok), *pre = text_of(f, KEY "pre", &ok),
         *chat = text_of(f, "tokenizer.chat_template", &ok);
    mti_gguf_text *texts = texts_of(f, KEY "tokens", &n, &ok),
                  *merges = texts_of(f, KEY "merges", &n_merges, &ok);
    float *scores = numbers_of(f, KEY "scores", n, true, &ok);
    int32_t *types = numbers_of(f, KEY "token_type", n, false, &ok);
    const mti_token_arrays arrays = {
        .path = path,
        .model = model,
        .pre = pre,
        .n = n,
        .texts = texts,
        .scores = scores,
        .types = types,
        .n_merges = n_merges,
        .merges = merges,
        .bos = token(f, KEY "bos_token_id"),
        .eos = token(f, KEY "eos_token_id"),
        .eot = token(f, KEY "eot_token_id"),
        .unknown = token(f, KEY "unknown_token_id"),
        .add_bos = flag(f, KEY "add_bos_token", begins(model, pre)),
        .add_eos = flag(f, KEY "add_eos_token", false),
        .add_space_prefix = flag(f, KEY "add_space_prefix", model && !strcmp(model, "llama")),
        .chat_template = chat};
    mt_tokenizer *t = ok ? mti_tokenizer_from_arrays(&arrays) : NULL;
    mti_free(model), mti_free(pre), mti_free(chat), mti_free(texts), mti_free(merges);
    mti_free(scores), mti_free(types);
    mti_gguf_free(f);
    return t;
}
