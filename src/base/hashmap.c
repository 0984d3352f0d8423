/* hashmap.c: a map from 64-bit keys to places, by open addressing. */
#include "base/base.h"

#define FREE 0
#define GONE SIZE_MAX

/* held: 1 + the place; FREE; or GONE after a removal: a search continues past it. */
struct mti_hashmap_entry {
    uint64_t key;
    size_t held;
};

/* The entry number `probe` in the search for the key. */
static struct mti_hashmap_entry *look(const mti_hashmap *m, uint64_t key, size_t probe)
{
    /* Keys are often consecutive (serials, addresses): the golden ratio scatters them. */
    size_t home = (size_t)(key * 0x9E3779B97F4A7C15u >> 32);
    return &m->at[(home + probe) & (m->n_entries - 1)];
}

static void put(mti_hashmap *m, uint64_t key, size_t place)
{
    size_t probe = 0;
    while (look(m, key, probe)->held != FREE) probe++;
    *look(m, key, probe) = (struct mti_hashmap_entry){key, place + 1};
    m->n++, m->n_used++;
}

/* Makes room for one more with a quarter left free; growing drops the GONE entries. */
static bool reserve(mti_hashmap *m)
{
    if (4 * (m->n_used + 1) <= 3 * m->n_entries) return true;
    mti_hashmap grown = {.n_entries = 16};
    while (2 * grown.n_entries < 3 * (m->n + 1)) grown.n_entries *= 2;
    grown.at = mti_calloc(grown.n_entries, sizeof *grown.at);
    if (!grown.at) return false;
    for (size_t i = 0; i < m->n_entries; i++)
        if (m->at[i].held != FREE && m->at[i].held != GONE)
            put(&grown, m->at[i].key, m->at[i].held - 1);
    mti_free(m->at);
    *m = grown;
    return true;
}

bool mti_hashmap_add(mti_hashmap *m, uint64_t key, size_t place)
{
    if (!reserve(m)) return false;
    put(m, key, place);
    return true;
}

size_t mti_hashmap_next(const mti_hashmap *m, uint64_t key, size_t *probe)
{
    while (m->n) {
        const struct mti_hashmap_entry *e = look(m, key, (*probe)++);
        if (e->held == FREE) break;
        if (e->key == key && e->held != GONE) return e->held - 1;
    }
    return MTI_NO_PLACE;
}

size_t mti_hashmap_find(const mti_hashmap *m, uint64_t key)
{
    size_t probe = 0;
    return mti_hashmap_next(m, key, &probe);
}

bool mti_hashmap_remove(mti_hashmap *m, uint64_t key, size_t place)
{
    size_t probe = 0, found;
    do found = mti_hashmap_next(m, key, &probe);
    while (found != MTI_NO_PLACE && found != place);
    if (found == MTI_NO_PLACE) return false;
    look(m, key, probe - 1)->held = GONE;
    m->n--;
    return true;
}

size_t mti_hashmap_each(const mti_hashmap *m, size_t *i)
{
    while (*i < m->n_entries) {
        size_t held = m->at[(*i)++].held;
        if (held != FREE && held != GONE) return held - 1;
    }
    return MTI_NO_PLACE;
}

void mti_hashmap_free(mti_hashmap *m)
{
    mti_free(m->at);
    *m = (mti_hashmap){0};
}
