/* no_tokens.c: what a build without PCRE2 and utf8proc has in the place of tokenizers. */
#include "base/base.h"
#include "tokens/token_arrays.h"

static mt_status refuse(void)
{
    return mti_fail(MT_ERR_UNSUPPORTED,
                    "tokenizer: this build has no tokenizers: it was made without PCRE2 and "
                    "utf8proc; install libpcre2-dev and libutf8proc-dev, and build again");
}

/* What fails for a NULL that an earlier call gave keeps that call's error. */
static mt_status refuse_object(const void *object, const char *what)
{
    return mti_given(object, "tokenizer", what) ? refuse() : mt_last_status();
}

mt_tokenizer *mt_tokenizer_open(const char *path)
{
    if (path) refuse();
    return path ? NULL : mti_fail_null(MT_ERR_ARGUMENT, "tokenizer: the path is NULL");
}

mt_tokenizer *mti_tokenizer_from_arrays(const mti_token_arrays *arrays)
{
    (void)arrays;
    refuse();
    return NULL;
}

void mt_tokenizer_free(mt_tokenizer *t) { (void)t; }

int64_t mt_tokenizer_size(const mt_tokenizer *t) { return (void)t, 0; }

int64_t mt_tokenizer_id(const mt_tokenizer *t, const char *token)
{
    (void)t, (void)token;
    return -1;
}

const char *mt_tokenizer_token(const mt_tokenizer *t, int64_t id, size_t *n_bytes)
{
    (void)t, (void)id, (void)n_bytes;
    return NULL;
}

bool mt_tokenizer_is_special(const mt_tokenizer *t, int64_t id) { return (void)t, (void)id, false; }

size_t mt_tokenizer_ends(const mt_tokenizer *t, const int64_t **ids)
{
    (void)t;
    if (ids) *ids = NULL;
    return 0;
}

const char *mt_tokenizer_chat_template(const mt_tokenizer *t) { return (void)t, NULL; }

mt_status mt_tokenizer_encode(const mt_tokenizer *t, const char *text, size_t n_bytes,
                              bool with_special, mt_token_list *ids)
{
    (void)text, (void)n_bytes, (void)with_special, (void)ids;
    return refuse_object(t, "the tokenizer");
}

mt_status mt_tokenizer_decode(const mt_tokenizer *t, const int64_t *ids, size_t n,
                              bool skip_special, mt_text *text)
{
    (void)ids, (void)n, (void)skip_special, (void)text;
    return refuse_object(t, "the tokenizer");
}

mt_token_stream *mt_token_stream_new(const mt_tokenizer *t, bool skip_special)
{
    (void)skip_special;
    refuse_object(t, "the tokenizer");
    return NULL;
}

void mt_token_stream_free(mt_token_stream *s) { (void)s; }

mt_status mt_token_stream_next(mt_token_stream *s, int64_t id, mt_text *text)
{
    (void)id, (void)text;
    return refuse_object(s, "the stream");
}

mt_status mt_token_stream_end(mt_token_stream *s, mt_text *text)
{
    (void)text;
    return refuse_object(s, "the stream");
}
