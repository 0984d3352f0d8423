/* pooled.h: each test has a pool on the fake backend, and must end with nothing allocated. */
#ifndef MTT_POOLED_H
#define MTT_POOLED_H

#include "fake.h"
#include "memtrack/pool.h" /* the pool's fields, to plant faults in them */

extern mti_ctx mtt_fake;
extern mti_pool *mtt_pool;
int mtt_open_pool(void **state);
int mtt_close_pool(void **state);

mt_mem_stats mtt_pool_stats(void);
mti_block *mtt_get(size_t n_bytes); /* as an activation */
void mtt_put(mti_block *b);

#define expect(figure, value) assert_int_equal(mtt_pool_stats().figure, value)
#define WITH_POOL(test)       cmocka_unit_test_setup_teardown(test, mtt_open_pool, mtt_close_pool)

#endif
