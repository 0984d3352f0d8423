/* pooled.c: the pool of pooled.h. */
#include "pooled.h"

mti_ctx mtt_fake;
mti_pool *mtt_pool;

int mtt_open_pool(void **state)
{
    (void)state;
    mtt_fake_init(&mtt_fake, (size_t)1 << 40);
    mtt_pool = mti_pool_new(&mtt_fake_backend, &mtt_fake);
    return mtt_pool ? 0 : -1;
}

int mtt_close_pool(void **state)
{
    (void)state;
    int bad = !mti_pool_check(mtt_pool);
    mti_pool_free_all(mtt_pool);
    mt_clear_error();
    /* Every segment must have been freed. */
    return bad || mtt_fake.n || mtt_fake.n_ranges || mtt_fake.n_granules;
}

mt_mem_stats mtt_pool_stats(void)
{
    mt_mem_stats s;
    mti_pool_get_stats(mtt_pool, &s);
    return s;
}

mti_block *mtt_get(size_t n_bytes) { return mti_pool_alloc(mtt_pool, n_bytes, MT_ACTIVATION); }
void mtt_put(mti_block *b) { mti_pool_free(mtt_pool, b, b->requested); }
