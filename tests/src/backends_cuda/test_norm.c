/* Layer norm and its backward on the device, against the CPU. */
#include "twins.h"

/* Rows that fit into a warp's registers, into a block's, and into neither; forward and backward. */
static const int64_t lengths[] = {1,   2,   3,   7,    8,    9,    31,   64,   65,   127,  255, 256,
                                  257, 512, 513, 1000, 1024, 1031, 2048, 4103, 4104, 8200, 9001};
#define N_LENGTHS (int)(sizeof lengths / sizeof *lengths)

static double tolerance_of(mt_dtype dtype)
{
    return (dtype == MT_F32 || dtype == MT_F64 ? 32 : 1) * mtt_epsilon(dtype);
}

typedef struct norm_case {
    mtt_twin x, w, b, y, mean, rstd, dy, dx, dw, db;
} norm_case;

static norm_case make(const mtt_pair *p, mt_dtype dtype, int64_t rows, int64_t n,
                      mtt_placing placing, int64_t skip)
{
    const int64_t shape[] = {rows, 2, n}, row[] = {n}, column[] = {2 * rows};
    mt_dtype wide = dtype == MT_F64 ? MT_F64 : MT_F32;
    mtt_placing dense = MTT_PLACED_DENSE;
    return (norm_case){.x = mtt_twin_make(p, dtype, 3, shape, placing, skip, -2, 3),
                       .y = mtt_twin_make(p, dtype, 3, shape, dense, 0, 0, 1),
                       .dy = mtt_twin_make(p, dtype, 3, shape, dense, skip, -1, 1),
                       .dx = mtt_twin_make(p, dtype, 3, shape, placing, 0, 0, 1),
                       .w = mtt_twin_make(p, dtype, 1, row, dense, skip, 0.5, 2),
                       .b = mtt_twin_make(p, dtype, 1, row, dense, 0, -1, 1),
                       .dw = mtt_twin_make(p, dtype, 1, row, dense, skip, 0, 1),
                       .db = mtt_twin_make(p, dtype, 1, row, dense, 0, 0, 1),
                       .mean = mtt_twin_make(p, wide, 1, column, dense, 0, 0, 1),
                       .rstd = mtt_twin_make(p, wide, 1, column, dense, 0, 0, 1)};
}

static void drop(const mtt_pair *p, norm_case *c)
{
    mtt_twin *all[] = {&c->x,    &c->w,  &c->b,  &c->y,  &c->mean,
                       &c->rstd, &c->dy, &c->dx, &c->dw, &c->db};
    for (int i = 0; i < 10; i++) mtt_twin_drop(p, all[i]);
}

static void forward(const mtt_pair *p, norm_case *c, bool has_w, bool has_b, bool has_stats)
{
    mtt_ok(p->cpu->layer_norm(p->cpu_ctx, 1e-5, &c->x.host, has_w ? &c->w.host : NULL,
                              has_b ? &c->b.host : NULL, &c->y.host,
                              has_stats ? &c->mean.host : NULL, has_stats ? &c->rstd.host : NULL),
           "layer_norm");
    mtt_ok(p->dev->layer_norm(p->dev_ctx, 1e-5, &c->x.dev, has_w ? &c->w.dev : NULL,
                              has_b ? &c->b.dev : NULL, &c->y.dev, has_stats ? &c->mean.dev : NULL,
                              has_stats ? &c->rstd.dev : NULL),
           "layer_norm");
}

/* wanted: 1 dx, 2 dw, 4 db */
static void backward(const mtt_pair *p, norm_case *c, bool has_w, int wanted)
{
    size_t n_cpu = p->cpu->layer_norm_backward_scratch(p->cpu_ctx, &c->x.host);
    size_t n_dev = p->dev->layer_norm_backward_scratch(p->dev_ctx, &c->x.dev);
    void *cpu = malloc(n_cpu), *dev = n_dev ? p->dev->alloc(p->dev_ctx, n_dev) : NULL;
    mtt_ok(p->cpu->layer_norm_backward(
               p->cpu_ctx, &c->dy.host, &c->x.host, has_w ? &c->w.host : NULL, &c->mean.host,
               &c->rstd.host, wanted & 1 ? &c->dx.host : NULL, wanted & 2 ? &c->dw.host : NULL,
               wanted & 4 ? &c->db.host : NULL, cpu),
           "layer_norm backward");
    mtt_ok(p->dev->layer_norm_backward(p->dev_ctx, &c->dy.dev, &c->x.dev, has_w ? &c->w.dev : NULL,
                                       &c->mean.dev, &c->rstd.dev, wanted & 1 ? &c->dx.dev : NULL,
                                       wanted & 2 ? &c->dw.dev : NULL,
                                       wanted & 4 ? &c->db.dev : NULL, dev),
           "layer_norm backward");
    mtt_ok(p->dev->sync(p->dev_ctx), "sync");
    free(cpu);
    if (dev) p->dev->free(p->dev_ctx, dev, n_dev);
}

/* Sums over rows grow with the number of rows, and so do their errors, which mtt_close compares
 * with 1. */
static void check(const mtt_pair *p, mt_dtype dtype, int64_t rows, int64_t n, mtt_placing placing,
                  int64_t skip, bool has_w, bool has_b, int wanted)
{
    double eps = tolerance_of(dtype);
    norm_case c = make(p, dtype, rows, n, placing, skip);
    forward(p, &c, has_w, has_b, true);
    mtt_twin_check(p, &c.y, 4 * eps, "y");
    mtt_twin_check(p, &c.mean, eps, "mean");
    mtt_twin_check(p, &c.rstd, 4 * eps, "rstd");
    backward(p, &c, has_w, wanted);
    mtt_twin_check(p, &c.dx, 4 * eps, "dx");
    mtt_twin_check(p, &c.dw, 8 * eps, "dw");
    mtt_twin_check(p, &c.db, 8 * eps, "db");
    drop(p, &c);
}

static void rows_of_any_length_match_the_cpu(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < N_LENGTHS; k++) {
            if (lengths[k] == 1) continue; /* rstd is 1/sqrt(eps): see the next test */
            check(p, mtt_floats[t], 3, lengths[k], MTT_PLACED_DENSE, 0, true, true, 7);
            check(p, mtt_floats[t], 2, lengths[k], MTT_PLACED_PADDED, 1, true, true, 7);
        }
}

static void rows_of_one_element_give_the_bias(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++) {
        norm_case c = make(p, mtt_floats[t], 3, 1, MTT_PLACED_DENSE, 0);
        forward(p, &c, true, true, true);
        mtt_twin_check(p, &c.y, 0, "y");
        mtt_twin_check(p, &c.mean, 0, "mean");
        drop(p, &c);
    }
}

static void more_rows_than_blocks_are_summed_in_parts(void **state)
{
    mtt_pair *p = *state;
    check(p, MT_F32, 700, 24, MTT_PLACED_DENSE, 0, true, true, 7);
    check(p, MT_BF16, 1300, 130, MTT_PLACED_DENSE, 0, true, true, 7);
    check(p, MT_F64, 300, 600, MTT_PLACED_DENSE, 0, true, true, 7);
    check(p, MT_F32, 300, 1032, MTT_PLACED_DENSE, 0, true, true, 7);
}

static void results_that_are_not_wanted_are_not_written(void **state)
{
    mtt_pair *p = *state;
    for (int wanted = 0; wanted < 8; wanted++) {
        check(p, MT_F32, 9, 40, MTT_PLACED_DENSE, 0, wanted & 1, wanted & 2, wanted);
        check(p, MT_BF16, 3, 9001, MTT_PLACED_DENSE, 0, !(wanted & 1), wanted & 4, wanted);
    }
    norm_case c = make(p, MT_F32, 3, 50, MTT_PLACED_DENSE, 0);
    forward(p, &c, true, false, false);
    mtt_twin_check(p, &c.y, 1e-5, "y");
    mtt_twin_check(p, &c.mean, 0, "mean");
    drop(p, &c);
}

static void no_rows_give_gradients_of_zero(void **state)
{
    check(*state, MT_F32, 0, 40, MTT_PLACED_DENSE, 0, true, true, 7);
}

static void a_nan_stays_in_its_row_and_reaches_every_sum(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++) {
        norm_case c = make(p, mtt_floats[t], 3, 300, MTT_PLACED_DENSE, 0);
        mtt_set(&c.x.host, 300 + 7, (double)NAN);
        mtt_set(&c.x.host, 900 + 299, (double)INFINITY);
        mtt_twin_push(p, &c.x);
        forward(p, &c, true, true, true);
        mtt_twin_check(p, &c.y, 4 * tolerance_of(mtt_floats[t]), "y");
        backward(p, &c, true, 7);
        mtt_twin_check(p, &c.dx, 4 * tolerance_of(mtt_floats[t]), "dx");
        mtt_twin_check(p, &c.dw, 4 * tolerance_of(mtt_floats[t]), "dw");
        drop(p, &c);
    }
}

/* Batch norm in both forms of its blocks: channels side by side, and one with a long s. */
static void check_batch_norm(const mtt_pair *p, mt_dtype dtype, const int64_t shape[3],
                             bool training, bool has_w)
{
    mt_dtype wide = dtype == MT_F64 ? MT_F64 : MT_F32;
    mtt_twin t[6], stats[4], *x = &t[0], *dy = &t[1], *y = &t[2], *dx = &t[3];
    mtt_twin w = mtt_twin_make(p, dtype, 1, &shape[1], MTT_PLACED_DENSE, 1, 0.5, 2),
             b = mtt_twin_make(p, dtype, 1, &shape[1], MTT_PLACED_DENSE, 0, -1, 1);
    for (int i = 0; i < 4; i++)
        t[i] = mtt_twin_make(p, dtype, 3, shape, MTT_PLACED_DENSE, i, -2, 3);
    for (int i = 4; i < 6; i++)
        t[i] = mtt_twin_make(p, dtype, 1, &shape[1], MTT_PLACED_DENSE, 0, 0, 1);
    for (int i = 0; i < 4; i++)
        stats[i] = mtt_twin_make(p, wide, 1, &shape[1], MTT_PLACED_DENSE, 0, 0.5, 1.5);
    for (int d = 0; d < 2; d++) {
        const mti_backend *be = d ? p->dev : p->cpu;
        mti_ctx *ctx = d ? p->dev_ctx : p->cpu_ctx;
#define AT(twin) (d ? &(twin).dev : &(twin).host)
        mtt_ok(be->batch_norm(ctx, training, 1e-5, 0.25, AT(*x), has_w ? AT(w) : NULL,
                              has_w ? AT(b) : NULL, AT(stats[0]), AT(stats[1]), AT(*y),
                              AT(stats[2]), AT(stats[3])),
               "batch_norm");
    }
    double tolerance = 4 * tolerance_of(dtype), of_stats = 32 * mtt_epsilon(wide);
    mtt_twin_check(p, y, tolerance, "y");
    for (int i = 0; i < 4; i++) mtt_twin_check(p, &stats[i], of_stats, "statistics");
    for (int wanted = 1; wanted < 8; wanted++) {
        for (int d = 0; d < 2; d++) {
            const mti_backend *be = d ? p->dev : p->cpu;
            mti_ctx *ctx = d ? p->dev_ctx : p->cpu_ctx;
            bool reads_x = wanted & 3;
            mtt_ok(
                be->batch_norm_backward(ctx, training, AT(*dy), reads_x ? AT(*x) : NULL,
                                        has_w ? AT(w) : NULL, reads_x ? AT(stats[2]) : NULL,
                                        reads_x ? AT(stats[3]) : NULL, wanted & 1 ? AT(*dx) : NULL,
                                        wanted & 2 ? AT(t[4]) : NULL, wanted & 4 ? AT(t[5]) : NULL),
                "batch_norm_backward");
        }
#undef AT
        mtt_twin_check(p, dx, tolerance, "dx");
        double of_sums = tolerance * (double)(shape[0] * shape[2]);
        mtt_twin_check(p, &t[4], of_sums, "dw"), mtt_twin_check(p, &t[5], of_sums, "db");
    }
    for (int i = 0; i < 6; i++) mtt_twin_drop(p, &t[i]);
    for (int i = 0; i < 4; i++) mtt_twin_drop(p, &stats[i]);
    mtt_twin_drop(p, &w), mtt_twin_drop(p, &b);
}

static void batch_norm_matches_the_cpu(void **state)
{
    /* the last four are shared by blocks: whole batches, parts of s, side by side, in vectors */
    const int64_t shapes[][3] = {{5, 3, 1},    {9, 33, 1},    {40, 70, 3},  {2, 2, 63},
                                 {2, 3, 64},   {3, 2, 257},   {1, 1, 1000}, {17, 0, 4},
                                 {65, 2, 257}, {2, 1, 12289}, {700, 3, 25}, {3, 2, 16384}};
    for (int t = 0; t < 4; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int form = 0; form < 4; form++)
                check_batch_norm(*state, mtt_floats[t], shapes[s], form & 1, form & 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_any_length_match_the_cpu),
        cmocka_unit_test(rows_of_one_element_give_the_bias),
        cmocka_unit_test(more_rows_than_blocks_are_summed_in_parts),
        cmocka_unit_test(results_that_are_not_wanted_are_not_written),
        cmocka_unit_test(no_rows_give_gradients_of_zero),
        cmocka_unit_test(a_nan_stays_in_its_row_and_reaches_every_sum),
        cmocka_unit_test(batch_norm_matches_the_cpu),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}
