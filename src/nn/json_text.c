/* json_text.c: instead of json_dumps, which silently leaves keys out if its buffer cannot grow:
 * asks for the size first, and checks it after writing. */
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
    mti_fail_around(failures, MT_ERR_MEMORY, "json: no memory for the text");
    return NULL;
}
