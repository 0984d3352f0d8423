/* tokens.c: any text as a tokenizer.json, or as the arrays of a GGUF, gives a tokenizer or an error
 * with a message; what it makes of any text are tokens that it has, and of these it makes UTF-8. */
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "tokens/token_arrays.h"
#include "tokens/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* Through a stream, too, which gives as much text or less, where it holds nothing back any more. */
static void check(const mt_tokenizer *t, const char *text, size_t n)
{
    mt_token_list ids = {0};
    mt_text out = {0}, parts = {0};
    mt_token_stream *s = mt_token_stream_new(t, true);
    mt_clear_error();
    if (mt_tokenizer_encode(t, text, n, true, &ids) == MT_OK) {
        for (size_t i = 0; i < ids.n; i++)
            if (!mt_tokenizer_token(t, ids.at[i], NULL)) abort();
        for (size_t i = 0; i < ids.n && i < 200; i++)
            if (mt_token_stream_next(s, ids.at[i], &parts) != MT_OK) break;
        mt_token_stream_end(s, &parts);
        mt_clear_error();
        if (mt_tokenizer_decode(t, ids.at, ids.n, false, &out) != MT_OK && !*mt_last_error())
            abort();
    } else if (mt_last_status() == MT_OK || !*mt_last_error() || ids.n) {
        abort();
    }
    const mt_text *const both[] = {&out, &parts};
    for (int i = 0; i < 2; i++)
        if (both[i]->n && !memchr(both[i]->at, 0, both[i]->n) && !mti_is_utf8(both[i]->at)) abort();
    mt_token_list_free(&ids), mt_text_free(&out), mt_text_free(&parts);
    mt_token_stream_free(s);
}

/* Lines: tokens, the first letter of each its type; those that begin with a blank are merges. */
static mt_tokenizer *from_lines(const char *text, size_t n)
{
    mti_token_text texts[256], merges[256];
    int32_t types[256];
    float scores[256];
    mti_token_arrays a = {.path = "input",
                          .model = n && *text == 'l' ? "llama" : "gpt2",
                          .pre = "smollm",
                          .texts = texts,
                          .types = types,
                          .scores = scores,
                          .merges = merges,
                          .bos = 1,
                          .eos = 2,
                          .eot = -1,
                          .unknown = 0,
                          .add_bos = n & 1,
                          .add_eos = n & 2,
                          .add_space_prefix = n & 4};
    for (size_t at = 0, end; at < n && a.n < 256 && a.n_merges < 256; at = end + 1) {
        const char *line = memchr(text + at, '\n', n - at);
        end = line ? (size_t)(line - text) : n;
        if (end - at < 2) continue;
        const mti_token_text part = {text + at + 1, end - at - 1};
        if (text[at] == ' ') {
            merges[a.n_merges++] = part;
        } else {
            types[a.n] = text[at] & 7, scores[a.n] = (float)(text[at] >> 3);
            texts[a.n++] = part;
        }
    }
    return mti_tokenizer_from_arrays(&a);
}

/* The input: a file, and behind a zero byte the text to divide. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    const char *file = (const char *)data, *end = memchr(file, 0, n_bytes);
    const size_t n = end ? (size_t)(end - file) : n_bytes, n_text = end ? n_bytes - n - 1 : n;
    char *copy = malloc(n_text + 1);
    if (!copy) return 0;
    memcpy(copy, end ? end + 1 : file, n_text);
    mt_clear_error();
    mt_tokenizer *t = n && *file == '{' ? mti_tokenizer_parse("f", file, n) : from_lines(file, n);
    if (t)
        check(t, copy, n_text);
    else if (mt_last_status() == MT_OK || !*mt_last_error())
        abort();
    mt_tokenizer_free(t);
    free(copy);
    return 0;
}
