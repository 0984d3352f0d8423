/* codec.c: tokens that were made elsewhere. */
#include "trainer/codec.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "files/files.h"

#define LARGEST_FILE ((size_t)64 << 20)

/* Adds the numbers of a line, which a zero byte ends. */
static bool read_line(const char *path, long long number, const char *line, int64_t vocab,
                      mti_ids *ids)
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
    mti_ids *ids = &prompts->ids;
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
    mti_free(prompts->ids.at);
    mti_free(prompts->ends.at);
    *prompts = (mti_prompts){0};
}
