/* duplicates.c: finds values held in two dtypes at once. A storage has the serial of the one it was
 * cast from; this lists the pairs of which both are alive. */
#include <stdlib.h>
#include "memtape/autocast.h"
#include "ops/ops.h"

typedef struct entry {
    uint64_t serial, copy_of;
    mt_dtype dtype;
    mt_category category;
    size_t bytes;
    const char *module, *op;
} entry;

typedef struct listing {
    MTI_VEC(entry) v;
    bool failed;
} listing;

static void note(void *user, const mti_block *block)
{
    listing *f = user;
    mti_storage *s = block->owner;
    if (!s || f->failed) return;
    f->failed = !MTI_PUSH(&f->v, ((entry){.serial = block->serial,
                                          .copy_of = atomic_load(&s->copy_of),
                                          .dtype = s->dtype,
                                          .category = block->category,
                                          .bytes = s->bytes,
                                          .module = s->module,
                                          .op = s->op}));
}

static int by_serial(const void *a, const void *b)
{
    uint64_t x = ((const entry *)a)->serial, y = ((const entry *)b)->serial;
    return (x > y) - (x < y);
}

mt_status mt_visit_duplicates(mt_device *device, void (*fn)(void *user, const mt_duplicate *pair),
                              void *user)
{
    if (!mti_given(device, "visit_duplicates", "the device")) return mt_last_status();
    if (!fn) return mti_fail(MT_ERR_ARGUMENT, "visit_duplicates: the function is NULL");
    listing f = {.failed = false};
    mti_pool_visit(device->pool, note, &f);
    if (f.v.n) qsort(f.v.at, f.v.n, sizeof *f.v.at, by_serial);
    for (size_t i = 0; !f.failed && i < f.v.n; i++) {
        const entry *copy = &f.v.at[i], key = {.serial = copy->copy_of};
        const entry *source =
            copy->copy_of ? bsearch(&key, f.v.at, f.v.n, sizeof key, by_serial) : NULL;
        if (!source) continue;
        fn(user, &(mt_duplicate){.source = source->serial,
                                 .copy = copy->serial,
                                 .source_dtype = source->dtype,
                                 .copy_dtype = copy->dtype,
                                 .source_category = source->category,
                                 .copy_category = copy->category,
                                 .source_bytes = source->bytes,
                                 .copy_bytes = copy->bytes,
                                 .module = copy->module,
                                 .op = copy->op});
    }
    mti_free(f.v.at);
    return f.failed ? MT_ERR_MEMORY : MT_OK;
}
