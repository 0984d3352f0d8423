/* lora_targets.c: which linears get adapters, as a list of names. */
#include <stdio.h>
#include <string.h>
#include "nn/lora.h"

#define LONGEST 60 /* of a name */

static bool add(mti_lora_targets *t, const char *name, size_t length)
{
    char pattern[LONGEST + 3];
    if (!length || length > LONGEST || t->n == MTI_LORA_TARGETS)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "\"%.80s\" is not all, or 1 to %d names of linears joined by commas "
                             "or +, such as q,v,mlp.fc",
                             t->text, MTI_LORA_TARGETS);
    snprintf(pattern, sizeof pattern, "*.%.*s", (int)length, name);
    return (t->patterns[t->n++] = mti_intern(pattern)) != NULL;
}

bool mti_lora_targets_parse(mti_lora_targets *t, const char *text)
{
    *t = (mti_lora_targets){0};
    if (!strcmp(text, "all")) return true;
    t->text = mti_intern(text);
    for (const char *at = t->text; at; at++) {
        size_t length = strcspn(at, ",+");
        if (!add(t, at, length)) return false;
        at += length;
        if (!*at) return true;
    }
    return false;
}
