/* names.c: finds a name's place without searching a list; and the process's interned names. */
#include <pthread.h>
#include <string.h>
#include "base/base.h"

#define FEW 8 /* so few names are compared one by one: that is faster than to hash one */

static const mti_name_entry *find(const mti_name_index *x, const char *name, size_t n)
{
    if (x->entries.n <= FEW) {
        for (size_t i = 0; i < x->entries.n; i++) {
            const mti_name_entry *e = &x->entries.at[i];
            if (*e->name == *name && !strncmp(e->name, name, n) && !e->name[n]) return e;
        }
        return NULL;
    }
    uint64_t hash = mti_hash_bytes(MTI_HASH_BEGIN, name, n);
    for (size_t probe = 0, i; (i = mti_hashmap_next(&x->map, hash, &probe)) != MTI_NO_PLACE;) {
        const char *other = x->entries.at[i].name;
        if (!strncmp(other, name, n) && !other[n]) return &x->entries.at[i];
    }
    return NULL;
}

bool mti_name_index_add(mti_name_index *x, const char *name, size_t place)
{
    size_t n = strlen(name);
    if (find(x, name, n)) return true;
    if (!MTI_RESERVE(&x->entries) ||
        !mti_hashmap_add(&x->map, mti_hash_bytes(MTI_HASH_BEGIN, name, n), x->entries.n))
        return false;
    x->entries.at[x->entries.n++] = (mti_name_entry){name, place};
    return true;
}

size_t mti_name_index_find(const mti_name_index *x, const char *name, size_t n)
{
    const mti_name_entry *entry = find(x, name, n);
    return entry ? entry->place : MTI_NO_PLACE;
}

void mti_name_index_free(mti_name_index *x)
{
    mti_hashmap_free(&x->map);
    mti_free(x->entries.at);
    *x = (mti_name_index){0};
}

/* ---- interned names: one index for the process ---- */

static struct {
    pthread_mutex_t lock;
    mti_name_index index;
} names = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *intern_locked(const char *s)
{
    const mti_name_entry *known = find(&names.index, s, strlen(s));
    if (known) return known->name;
    char *name = mti_strdup(s);
    if (name && mti_name_index_add(&names.index, name, 0)) return name;
    mti_free(name);
    return NULL;
}

const char *mti_intern(const char *s)
{
    if (!s || !*s) return "";
    pthread_mutex_lock(&names.lock);
    const char *name = intern_locked(s);
    pthread_mutex_unlock(&names.lock);
    return name;
}
