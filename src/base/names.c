/* names.c: which place in a list has this name, without walking the list. */
#include <string.h>
#include "base/base.h"

static bool is(const mti_name_entry *entry, const char *name, size_t n)
{
    return !strncmp(entry->name, name, n) && !entry->name[n];
}

/* The entry of the name of n bytes, or the free one where it belongs. */
static mti_name_entry *seek(const mti_name_index *x, const char *name, size_t n)
{
    size_t i = mti_hash_text(name, n) & (x->n_entries - 1);
    while (x->at[i].name && !is(&x->at[i], name, n)) i = (i + 1) & (x->n_entries - 1);
    return &x->at[i];
}

static bool grow(mti_name_index *x)
{
    mti_name_index grown = {.n = x->n, .n_entries = x->n_entries ? 2 * x->n_entries : 8};
    grown.at = mti_calloc(grown.n_entries, sizeof *grown.at);
    if (!grown.at) return false;
    for (size_t i = 0; i < x->n_entries; i++)
        if (x->at[i].name) *seek(&grown, x->at[i].name, strlen(x->at[i].name)) = x->at[i];
    mti_free(x->at);
    *x = grown;
    return true;
}

bool mti_name_index_add(mti_name_index *x, const char *name, size_t place)
{
    if (4 * (x->n + 1) > 3 * x->n_entries && !grow(x)) return false;
    mti_name_entry *entry = seek(x, name, strlen(name));
    if (!entry->name) *entry = (mti_name_entry){name, place}, x->n++;
    return true;
}

size_t mti_name_index_find(const mti_name_index *x, const char *name, size_t n)
{
    const mti_name_entry *entry = x->n ? seek(x, name, n) : NULL;
    return entry && entry->name ? entry->place : MTI_NO_PLACE;
}

void mti_name_index_free(mti_name_index *x)
{
    mti_free(x->at);
    *x = (mti_name_index){0};
}
