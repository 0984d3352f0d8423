/* balance.c: checks the memory statistics. The sums over all blocks must equal the counters, and
 * each block an op made must have a category or be freed when the op ends. */
#include <string.h>
#include "autograd/autograd.h"

mt_status mt_set_balance_check(mt_device *device, bool on)
{
    if (!mti_given(device, "set_balance_check", "the device")) return mt_last_status();
    atomic_store(&device->balance_check, on);
    return MT_OK;
}

typedef struct count {
    size_t by_category[MT_CATEGORY_COUNT], total;
    const void *thread;
    const mt_device *device;
    bool found; /* a block that outlives its op; the rest describes the first one */
    mti_block block;
    const char *op, *module;
    int references, saved;
} count;

static void add_block(void *user, const mti_block *b)
{
    count *c = user;
    c->by_category[b->category] += b->size;
    c->total += b->size;
    mti_storage *s = b->owner;
    bool of_device = b == c->device->workspace[0] || b == c->device->workspace[1];
    bool scratch = b->category == MT_WORKSPACE || b->category == MT_COMMUNICATION;
    bool stray = s ? s->unclassified_in == c->thread : scratch && !of_device;
    if (!stray || c->found) return;
    c->found = true;
    c->block = *b;
    c->op = s ? s->op : "", c->module = s ? s->module : "";
    c->references = s ? atomic_load(&s->refs) : 0;
    c->saved = s ? atomic_load(&s->saved) : 0;
}

static bool balance(mt_device *device, const char *op)
{
    count c = {.thread = mti_thread_token(), .device = device};
    mt_mem_stats stats;
    if (!mti_pool_check(device->pool)) return false;
    mti_pool_visit(device->pool, add_block, &c);
    mti_pool_get_stats(device->pool, &stats);
    if (c.found)
        return mti_fail_bool(MT_ERR_INTERNAL,
                             "balance after %s: %zu bytes (storage %llu, %s, made in %s%s%s, %d "
                             "reference%s) outlive their op without a class",
                             op, c.block.requested, (unsigned long long)c.block.serial,
                             mt_category_name(c.block.category), *c.op ? c.op : "a kernel",
                             *c.module ? " of " : "", c.module, c.references,
                             c.references == 1 ? "" : "s");
    for (int i = 0; i < MT_CATEGORY_COUNT; i++)
        if (c.by_category[i] != stats.by_category[i])
            return mti_fail_bool(
                MT_ERR_INTERNAL, "balance after %s: %s blocks have %zu bytes, the books say %zu",
                op, mt_category_name((mt_category)i), c.by_category[i], stats.by_category[i]);
    return c.total == stats.allocated.current ||
           mti_fail_bool(MT_ERR_INTERNAL,
                         "balance after %s: the classes sum to %zu, %zu are allocated", op, c.total,
                         stats.allocated.current);
}

bool mti_balance_after(mt_device *device, const char *op)
{
    return !atomic_load_explicit(&device->balance_check, memory_order_relaxed) ||
           balance(device, op);
}

mt_status mt_check_balance(mt_device *device)
{
    if (!mti_given(device, "check_balance", "the device")) return mt_last_status();
    return balance(device, "(now)") ? MT_OK : mt_last_status();
}
