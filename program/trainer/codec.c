/* codec.c: tokens by a tokenizer, as bytes, or as they were made elsewhere. */
#include "trainer/codec.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "files/files.h"
#include "io/gguf.h"

#define LARGEST_FILE ((size_t)64 << 20)

bool mti_tokenizer_find(const char *path, const mt_model_config *config, mt_tokenizer **t)
{
    char file[4096];
    *t = NULL;
    const bool gguf = mti_is_gguf(path);
    const int n = snprintf(file, sizeof file, "%s%s", path, gguf ? "" : "/tokenizer.json");
    if (n < 0 || (size_t)n >= sizeof file || access(file, F_OK) != 0) return true;
    if (!(*t = gguf ? mti_gguf_tokenizer(path) : mt_tokenizer_open(path))) return false;
    const int64_t size = mt_tokenizer_size(*t);
    if (size <= config->vocab) return true;
    mt_tokenizer_free(*t);
    *t = NULL;
    return mti_fail_bool(MT_ERR_ARGUMENT,
                         "%s: has tokens up to %lld, and the model's vocabulary is %lld", file,
                         (long long)size - 1, (long long)config->vocab);
}

bool mti_encode(const mt_tokenizer *t, const void *text, size_t n_bytes, bool with_special,
                mt_token_list *ids)
{
    const unsigned char *bytes = text;
    if (t) return mt_tokenizer_encode(t, text, n_bytes, with_special, ids) == MT_OK;
    for (size_t i = 0; i < n_bytes; i++)
        if (!MTI_PUSH(ids, bytes[i])) return false;
    return true;
}

bool mti_ends_text(const mt_tokenizer *t, int64_t token)
{
    const int64_t *ends = NULL;
    const size_t n = mt_tokenizer_ends(t, &ends);
    for (size_t i = 0; i < n; i++)
        if (ends[i] == token) return true;
    return false;
}

/* Adds the numbers of a line, which a zero byte ends. */
static bool read_line(const char *path, long long number, const char *line, int64_t vocab,
                      mt_token_list *ids)
{
    for (const char *at = line; *(at += strspn(at, " \t\r,"));) {
        char *end;
        errno = 0;
        const long long id = strtoll(at, &end, 10);
        const size_t n = strcspn(at, " \t\r,");
        if (*at < '0' || *at > '9' || end != at + n)
            return mti_fail_bool(MT_ERR_FORMAT,
                                 "%s: line %lld: \"%.*s\" is not a token; need "
                                 "whole numbers",
                                 path, number, n < 40 ? (int)n : 40, at);
        if (errno || id >= vocab)
            return mti_fail_bool(MT_ERR_FORMAT,
                                 "%s: line %lld: token %.*s; the model's vocabulary is %lld", path,
                                 number, n < 40 ? (int)n : 40, at, (long long)vocab);
        if (!MTI_PUSH(ids, (int64_t)id)) return false;
        at = end;
    }
    return true;
}

bool mti_prompts_read(mti_prompts *prompts, const char *path, int64_t vocab)
{
    size_t n_bytes;
    mt_token_list *ids = &prompts->ids;
    *prompts = (mti_prompts){0};
    char *text = mti_file_read(path, LARGEST_FILE, &n_bytes), *rest = text, *line;
    bool ok = text != NULL;
    if (ok && strlen(text) != n_bytes)
        ok = mti_fail_bool(MT_ERR_FORMAT, "%s: has zero bytes; need whole numbers", path);
    for (long long number = 1; ok && (line = strsep(&rest, "\n")); number++) {
        const size_t before = ids->n;
        ok = read_line(path, number, line, vocab, ids) &&
             (ids->n == before || MTI_PUSH(&prompts->ends, ids->n));
    }
    if (ok && !ids->n) ok = mti_fail_bool(MT_ERR_FORMAT, "%s: has no tokens", path);
    mti_free(text);
    return ok;
}

void mti_prompts_free(mti_prompts *prompts)
{
    mt_token_list_free(&prompts->ids);
    mti_free(prompts->ends.at);
    *prompts = (mti_prompts){0};
}
