/* fill, unary, unary backward, binary and compare on the device, against the CPU. */
#include "twins.h"

/* The difference of two libraries' exp, tanh and so on, plus rounding to 16 bits. */
static double tolerance_of(mt_dtype dtype)
{
    return dtype == MT_F32 ? 16 * 0x1p-23 : dtype == MT_F64 ? 16 * 0x1p-52 : mtt_epsilon(dtype);
}

static bool needs_positive(mti_unary op) { return op == MTI_UNARY_log || op == MTI_UNARY_sqrt; }

static void check_unary(const mtt_pair *p, mti_unary op, mt_dtype dtype, const mtt_shape *shape,
                        mtt_placing x_placing, mtt_placing y_placing, int64_t skip)
{
    double lo = needs_positive(op) ? 0.1 : -6;
    mtt_twin x = mtt_twin_make(p, dtype, shape->rank, shape->at, x_placing, skip, lo, 6);
    mtt_twin y = mtt_twin_make(p, dtype, shape->rank, shape->at, y_placing, skip, 0, 1);
    mtt_ok(p->cpu->unary(p->cpu_ctx, op, 0.3, 0.7, &x.host, &y.host), "unary");
    mtt_ok(p->dev->unary(p->dev_ctx, op, 0.3, 0.7, &x.dev, &y.dev), "unary");
    mtt_twin_check(p, &y, tolerance_of(dtype), "unary");
    mtt_twin dy = mtt_twin_make(p, dtype, shape->rank, shape->at, x_placing, skip, -2, 2);
    const mtt_twin *kept = &x;
    bool none = op == MTI_UNARY_affine;
    mtt_ok(p->cpu->unary_backward(p->cpu_ctx, op, 0.3, 0.7, none ? NULL : &kept->host, &dy.host,
                                  &y.host),
           "backward");
    mtt_ok(
        p->dev->unary_backward(p->dev_ctx, op, 0.3, 0.7, none ? NULL : &kept->dev, &dy.dev, &y.dev),
        "backward");
    mtt_twin_check(p, &y, 4 * tolerance_of(dtype), "unary backward");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y), mtt_twin_drop(p, &dy);
}

static void every_unary_op_and_its_backward_match_the_cpu(void **state)
{
    mtt_pair *p = *state;
    const mtt_shape dense = {2, {67, 130}}, rows = {3, {2, 3, 16}}, odd = {1, {1029}};
    for (mti_unary op = 0; op < MTI_UNARY_COUNT; op++)
        for (int t = 0; t < 4; t++) {
            check_unary(p, op, mtt_floats[t], &dense, MTT_PLACED_DENSE, MTT_PLACED_DENSE, 0);
            check_unary(p, op, mtt_floats[t], &odd, MTT_PLACED_DENSE, MTT_PLACED_DENSE, 1);
            check_unary(p, op, mtt_floats[t], &rows, MTT_PLACED_PADDED, MTT_PLACED_REVERSED, 0);
        }
}

static void every_layout_gives_what_the_cpu_gives(void **state)
{
    mtt_pair *p = *state;
    for (int s = 0; s < mtt_n_shapes; s++)
        for (mtt_placing x = 0; x <= MTT_PLACED_BROADCAST; x++)
            for (mtt_placing y = 0; y < MTT_PLACING_COUNT; y++)
                for (int64_t skip = 0; skip < 4; skip += 3) {
                    if (x == MTT_PLACING_COUNT) continue;
                    check_unary(p, MTI_UNARY_affine, MT_F32, &mtt_shapes[s], x, y, skip);
                    check_unary(p, MTI_UNARY_relu, MT_BF16, &mtt_shapes[s], x, y, skip);
                }
}

/* More elements than all threads take at once, so every block repeats its loop. */
static void long_tensors_are_processed_to_their_end(void **state)
{
    mtt_pair *p = *state;
    const mtt_shape narrow = {1, {300007}}, wide = {2, {1201, 2000}};
    check_unary(p, MTI_UNARY_affine, MT_F32, &narrow, MTT_PLACED_DENSE, MTT_PLACED_STEPPED, 0);
    check_unary(p, MTI_UNARY_affine, MT_F64, &wide, MTT_PLACED_DENSE, MTT_PLACED_DENSE, 0);
}

static void unary_works_in_place(void **state)
{
    mtt_pair *p = *state;
    for (int s = 0; s < mtt_n_shapes; s++)
        for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++) {
            mtt_twin x =
                mtt_twin_make(p, MT_F32, mtt_shapes[s].rank, mtt_shapes[s].at, placing, 0, -3, 3);
            mtt_ok(p->cpu->unary(p->cpu_ctx, MTI_UNARY_leaky_relu, 0.25, 0, &x.host, &x.host),
                   "unary");
            mtt_ok(p->dev->unary(p->dev_ctx, MTI_UNARY_leaky_relu, 0.25, 0, &x.dev, &x.dev),
                   "unary");
            mtt_twin_check(p, &x, 0, "in place");
            mtt_twin_drop(p, &x);
        }
}

static void extreme_values_give_what_the_cpu_gives(void **state)
{
    mtt_pair *p = *state;
    const double extremes[] = {
        0.0, -0.0, (double)INFINITY, -(double)INFINITY, (double)NAN, 60, -60, 1e-30, -1e-30};
    const int64_t n = sizeof extremes / sizeof *extremes;
    for (int t = 0; t < 4; t++)
        for (mti_unary op = 0; op < MTI_UNARY_COUNT; op++) {
            mtt_twin x = mtt_twin_make(p, mtt_floats[t], 1, &n, MTT_PLACED_DENSE, 0, 0, 1);
            mtt_twin y = mtt_twin_make(p, mtt_floats[t], 1, &n, MTT_PLACED_DENSE, 0, 0, 1);
            for (int64_t i = 0; i < n; i++) mtt_set(&x.host, i, extremes[i]);
            mtt_twin_push(p, &x);
            mtt_ok(p->cpu->unary(p->cpu_ctx, op, 0.3, 0.7, &x.host, &y.host), "unary");
            mtt_ok(p->dev->unary(p->dev_ctx, op, 0.3, 0.7, &x.dev, &y.dev), "unary");
            mtt_twin_check(p, &y, tolerance_of(mtt_floats[t]), "extremes");
            mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
        }
}

static void check_binary(const mtt_pair *p, mti_binary op, mt_dtype dtype, const mtt_shape *shape,
                         mtt_placing a_placing, mtt_placing b_placing, int64_t skip)
{
    mtt_twin a = mtt_twin_make(p, dtype, shape->rank, shape->at, a_placing, skip, -50, 50);
    mtt_twin b = mtt_twin_make(p, dtype, shape->rank, shape->at, b_placing, 0, 1, 40);
    mtt_twin y = mtt_twin_make(p, dtype, shape->rank, shape->at, MTT_PLACED_DENSE, skip, 0, 1);
    mtt_ok(p->cpu->binary(p->cpu_ctx, op, &a.host, &b.host, &y.host), "binary");
    mtt_ok(p->dev->binary(p->dev_ctx, op, &a.dev, &b.dev, &y.dev), "binary");
    mtt_twin_check(p, &y, 0, "binary");
    mtt_ok(p->cpu->binary(p->cpu_ctx, op, &y.host, &b.host, &y.host), "binary");
    mtt_ok(p->dev->binary(p->dev_ctx, op, &y.dev, &b.dev, &y.dev), "binary");
    mtt_twin_check(p, &y, 0, "binary in place");
    mtt_twin_drop(p, &a), mtt_twin_drop(p, &b), mtt_twin_drop(p, &y);
}

static void check_compare(const mtt_pair *p, mti_compare op, mt_dtype dtype, const mtt_shape *shape,
                          mtt_placing placing, int64_t skip)
{
    mtt_twin a = mtt_twin_make(p, dtype, shape->rank, shape->at, placing, skip, 0, 2);
    mtt_twin b = mtt_twin_make(p, dtype, shape->rank, shape->at, MTT_PLACED_BROADCAST, 0, 0, 2);
    mtt_twin y = mtt_twin_make(p, MT_BOOL, shape->rank, shape->at, MTT_PLACED_DENSE, skip, 0, 1);
    mtt_ok(p->cpu->compare(p->cpu_ctx, op, &a.host, &b.host, &y.host), "compare");
    mtt_ok(p->dev->compare(p->dev_ctx, op, &a.dev, &b.dev, &y.dev), "compare");
    mtt_twin_check(p, &y, 0, "compare");
    mtt_ok(p->cpu->compare(p->cpu_ctx, op, &a.host, &a.host, &y.host), "compare with itself");
    mtt_ok(p->dev->compare(p->dev_ctx, op, &a.dev, &a.dev, &y.dev), "compare with itself");
    mtt_twin_check(p, &y, 0, "compare with itself");
    mtt_twin_drop(p, &a), mtt_twin_drop(p, &b), mtt_twin_drop(p, &y);
}

static void comparisons_match_the_cpu(void **state)
{
    for (mti_compare op = 0; op < MTI_COMPARE_COUNT; op++)
        for (mt_dtype dtype = 0; dtype < MT_DTYPE_COUNT; dtype++)
            for (int s = 0; s < mtt_n_shapes; s++)
                check_compare(*state, op, dtype, &mtt_shapes[s],
                              (mtt_placing)(s % MTT_PLACING_COUNT), s % 2);
}

static void binary_ops_match_the_cpu_to_the_bit(void **state)
{
    mtt_pair *p = *state;
    const mt_dtype dtypes[] = {MT_F32, MT_F64, MT_BF16, MT_F16, MT_I64, MT_I32};
    for (mti_binary op = 0; op < MTI_BINARY_COUNT; op++)
        for (int t = 0; t < 6; t++)
            for (int s = 0; s < mtt_n_shapes; s++) {
                if (op == MTI_DIV && t >= 4) continue;
                mtt_placing b = (mtt_placing)(s % MTT_PLACING_COUNT);
                check_binary(p, op, dtypes[t], &mtt_shapes[s], MTT_PLACED_DENSE, b, s % 2);
                check_binary(p, op, dtypes[t], &mtt_shapes[s], b, MTT_PLACED_BROADCAST, 0);
            }
}

/* b repeated along the rows, along the columns, and as one number. */
static void broadcast_operands_are_read_in_vectors(void **state)
{
    mtt_pair *p = *state;
    const int64_t shape[2] = {5, 24};
    for (int t = 0; t < 4; t++)
        for (int kind = 1; kind < 4; kind++) {
            mt_dtype dtype = mtt_floats[t];
            mtt_twin a = mtt_twin_make(p, dtype, 2, shape, MTT_PLACED_DENSE, 0, -2, 2);
            mtt_twin b = mtt_twin_make(p, dtype, 2, shape, MTT_PLACED_DENSE, 0, 1, 2);
            mtt_twin y = mtt_twin_make(p, dtype, 2, shape, MTT_PLACED_DENSE, 0, 0, 1);
            for (int d = 0; d < 2; d++)
                if (kind >> d & 1) b.host.stride[d] = b.dev.stride[d] = 0;
            for (mti_binary op = 0; op < MTI_BINARY_COUNT; op++) {
                mtt_ok(p->cpu->binary(p->cpu_ctx, op, &b.host, &a.host, &y.host), "binary");
                mtt_ok(p->dev->binary(p->dev_ctx, op, &b.dev, &a.dev, &y.dev), "binary");
                mtt_twin_check(p, &y, 0, "broadcast a");
                mtt_ok(p->cpu->binary(p->cpu_ctx, op, &a.host, &b.host, &y.host), "binary");
                mtt_ok(p->dev->binary(p->dev_ctx, op, &a.dev, &b.dev, &y.dev), "binary");
                mtt_twin_check(p, &y, 0, "broadcast b");
            }
            mtt_twin_drop(p, &a), mtt_twin_drop(p, &b), mtt_twin_drop(p, &y);
        }
}

static void fill_writes_every_type_and_layout(void **state)
{
    mtt_pair *p = *state;
    const double values[] = {0, 1, -3.7, 1e30};
    for (mt_dtype dtype = 0; dtype < MT_DTYPE_COUNT; dtype++)
        for (int s = 0; s < mtt_n_shapes; s++)
            for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++)
                for (int v = 0; v < 4; v++) {
                    mtt_twin y = mtt_twin_make(p, dtype, mtt_shapes[s].rank, mtt_shapes[s].at,
                                               placing, v % 3, 0, 2);
                    mtt_ok(p->cpu->fill(p->cpu_ctx, &y.host, values[v]), "fill");
                    mtt_ok(p->dev->fill(p->dev_ctx, &y.dev, values[v]), "fill");
                    mtt_twin_check(p, &y, 0, "fill");
                    mtt_twin_drop(p, &y);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_unary_op_and_its_backward_match_the_cpu),
        cmocka_unit_test(every_layout_gives_what_the_cpu_gives),
        cmocka_unit_test(long_tensors_are_processed_to_their_end),
        cmocka_unit_test(unary_works_in_place),
        cmocka_unit_test(extreme_values_give_what_the_cpu_gives),
        cmocka_unit_test(binary_ops_match_the_cpu_to_the_bit),
        cmocka_unit_test(comparisons_match_the_cpu),
        cmocka_unit_test(broadcast_operands_are_read_in_vectors),
        cmocka_unit_test(fill_writes_every_type_and_layout),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}
