/* json_text.c: not json_dumps, which leaves keys out without a word when its buffer cannot
 * grow: the size is asked first, and what is written must have that size. */
#include "nn/json_text.h"

char *mti_json_text(const json_t *root, size_t flags)
{
    uint64_t failures = mti_failures();
    size_t n = root ? json_dumpb(root, NULL, 0, flags) : 0;
    char *text = n ? mti_malloc(n + 1) : NULL;
    if (text && json_dumpb(root, text, n, flags) == n) {
        text[n] = 0;
        return text;
    }
    mti_free(text);
    mti_fail_around(failures, MT_ERR_MEMORY, "json: memory ran out over the text");
    return NULL;
}
