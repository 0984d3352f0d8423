/* Products with a matrix whose rows begin at no multiples of 16 bytes, as the logits of a
 * vocabulary of odd size: forward, and the two of backward, on the device against the CPU. */
#include "double.h"
#include "twins.h"
#include <string.h>
#include "memtape/status.h"

typedef struct sizes {
    int64_t tokens, vocabulary, hidden;
} sizes;

static bool simulated(void)
{
    const char *kind = getenv("MTT_DEVICE");
    return !kind || !strcmp(kind, "cudasim");
}

/* Several panels on each: the simulator's workspace is made small, and a GPU needs large products.
 */
static sizes chosen(void)
{
    return simulated() ? (sizes){300, 1003, 264} : (sizes){1024, 50257, 512};
}

/* c = a b / 4 + beta c */
static void multiply(const mti_backend *be, mti_ctx *ctx, const mti_view *a, const mti_view *b,
                     double beta, const mti_view *c)
{
    size_t n_bytes = be->gemm_scratch(ctx, a, b, c);
    void *scratch = n_bytes ? be->alloc(ctx, n_bytes) : NULL;
    assert_true(scratch || !n_bytes);
    mtt_ok(be->gemm(ctx, 0.25, a, b, beta, c, NULL, scratch, n_bytes), "gemm");
    mtt_ok(be->sync(ctx), "sync");
    if (scratch) be->free(ctx, scratch, n_bytes);
}

/* flip: bit 0: a is transposed, bit 1: b is. divided: whether the simulator must make several
 * products of it. */
static void check(const mtt_pair *p, const mtt_twin *a, const mtt_twin *b, int flip, double beta,
                  const mtt_twin *c, bool divided, const char *what)
{
    mti_view host[2] = {flip & 1 ? mtt_transposed(&a->host) : a->host,
                        flip & 2 ? mtt_transposed(&b->host) : b->host};
    mti_view dev[2] = {flip & 1 ? mtt_transposed(&a->dev) : a->dev,
                       flip & 2 ? mtt_transposed(&b->dev) : b->dev};
    multiply(p->cpu, p->cpu_ctx, &host[0], &host[1], beta, &c->host);
    long before = mtt_double_products(false);
    multiply(p->dev, p->dev_ctx, &dev[0], &dev[1], beta, &c->dev);
    if (before >= 0) assert_int_equal(mtt_double_products(false) - before > 1, divided);
    bool narrow = mt_dtype_size(c->host.dtype) == 2;
    mtt_twin_check(p, c, (narrow ? 2 : 256) * mtt_epsilon(c->host.dtype), what);
}

static void three_products(const mtt_pair *p, mt_dtype dtype, mtt_placing placing, int64_t skip)
{
    sizes n = chosen();
    bool odd = mt_dtype_size(dtype) == 2, by_beta = odd && placing == MTT_PLACED_DENSE;
    const int64_t all[2] = {n.tokens, n.vocabulary}, text[2] = {n.tokens, n.hidden},
                  table[2] = {n.vocabulary, n.hidden};
    mtt_twin logits = mtt_twin_make(p, dtype, 2, all, placing, skip, -1, 1);
    mtt_twin x = mtt_twin_make(p, dtype, 2, text, MTT_PLACED_DENSE, 0, -1, 1);
    mtt_twin dx = mtt_twin_make(p, dtype, 2, text, MTT_PLACED_DENSE, 0, 5, 6);
    mtt_twin w = mtt_twin_make(p, dtype, 2, table, MTT_PLACED_DENSE, 0, -1, 1);
    mtt_twin dw = mtt_twin_make(p, dtype, 2, table, MTT_PLACED_DENSE, 0, 5, 6);
    check(p, &logits, &w, 0, 0, &dx, odd, "dx");
    check(p, &logits, &w, 0, 1, &dx, odd, "dx, added");
    check(p, &logits, &x, 1, 0, &dw, odd, "dw");
    check(p, &logits, &x, 1, 1, &dw, odd, "dw, added");
    check(p, &x, &w, 2, 0, &logits, odd, "logits");
    if (by_beta) check(p, &x, &w, 2, 1, &logits, false, "logits, added"); /* rare, so left slow */
    mtt_twin_drop(p, &logits), mtt_twin_drop(p, &x), mtt_twin_drop(p, &dx), mtt_twin_drop(p, &w);
    mtt_twin_drop(p, &dw);
}

static void products_with_an_odd_matrix_go_through_panels(void **state)
{
    for (int t = 0; t < 4; t++) {
        if (!simulated() && mt_dtype_size(mtt_floats[t]) != 2) continue;
        three_products(*state, mtt_floats[t], MTT_PLACED_DENSE, 0);
    }
}

/* Rows that are an even number of elements long, and a start that is not aligned. */
static void so_does_one_that_begins_at_an_odd_place(void **state)
{
    if (!simulated()) skip();
    three_products(*state, MT_BF16, MTT_PLACED_DENSE, 1);
    three_products(*state, MT_F16, MTT_PLACED_DENSE, 2);
    three_products(*state, MT_BF16, MTT_PLACED_PADDED, 3);
}

/* As the fused loss keeps its logits: each row is aligned, and only the sizes are in the way. */
static void padded_rows_are_divided_without_copies(void **state)
{
    const mtt_pair *p = *state;
    sizes n = chosen();
    int64_t padded[2] = {n.tokens, (n.vocabulary + 7) / 8 * 8};
    mtt_twin logits = mtt_twin_make(p, MT_BF16, 2, padded, MTT_PLACED_DENSE, 0, -1, 1);
    mtt_twin x =
        mtt_twin_make(p, MT_BF16, 2, (int64_t[]){n.tokens, n.hidden}, MTT_PLACED_DENSE, 0, -1, 1);
    mtt_twin dx =
        mtt_twin_make(p, MT_BF16, 2, (int64_t[]){n.tokens, n.hidden}, MTT_PLACED_DENSE, 0, 5, 6);
    mtt_twin w = mtt_twin_make(p, MT_BF16, 2, (int64_t[]){n.vocabulary, n.hidden}, MTT_PLACED_DENSE,
                               0, -1, 1);
    mtt_twin dw = mtt_twin_make(p, MT_BF16, 2, (int64_t[]){n.vocabulary, n.hidden},
                                MTT_PLACED_DENSE, 0, -1, 1);
    logits.host.shape[1] = logits.dev.shape[1] = n.vocabulary;
    check(p, &logits, &w, 0, 0, &dx, true, "dx");
    check(p, &logits, &x, 1, 1, &dw, false, "dw");
    check(p, &x, &w, 2, 1, &logits, true, "logits");
    mtt_twin_drop(p, &logits), mtt_twin_drop(p, &x), mtt_twin_drop(p, &w), mtt_twin_drop(p, &dx);
    mtt_twin_drop(p, &dw);
}

/* Nothing is copied where all is aligned, or where too little is computed with a copy. */
static void others_do_not(void **state)
{
    const mtt_pair *p = *state;
    mtt_twin x = mtt_twin_make(p, MT_BF16, 2, (int64_t[]){300, 264}, MTT_PLACED_DENSE, 0, -1, 1);
    mtt_twin w = mtt_twin_make(p, MT_BF16, 2, (int64_t[]){1000, 264}, MTT_PLACED_DENSE, 0, -1, 1);
    mtt_twin y = mtt_twin_make(p, MT_BF16, 2, (int64_t[]){300, 1000}, MTT_PLACED_DENSE, 0, -1, 1);
    check(p, &x, &w, 2, 0, &y, false, "aligned");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &w), mtt_twin_drop(p, &y);
    x = mtt_twin_make(p, MT_BF16, 2, (int64_t[]){300, 64}, MTT_PLACED_DENSE, 0, -1, 1);
    w = mtt_twin_make(p, MT_BF16, 2, (int64_t[]){1003, 64}, MTT_PLACED_DENSE, 0, -1, 1);
    y = mtt_twin_make(p, MT_BF16, 2, (int64_t[]){300, 1003}, MTT_PLACED_DENSE, 0, -1, 1);
    check(p, &x, &w, 2, 0, &y, false, "a short sum");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &w), mtt_twin_drop(p, &y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_with_an_odd_matrix_go_through_panels),
        cmocka_unit_test(so_does_one_that_begins_at_an_odd_place),
        cmocka_unit_test(padded_rows_are_divided_without_copies),
        cmocka_unit_test(others_do_not),
    };
    if (simulated()) setenv("CUBLAS_WORKSPACE_CONFIG", ":256:1", true);
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}
