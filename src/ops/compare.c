/* compare.c: y = a > b and the other five of backends/compare.def, broadcasting as NumPy does.
 *   a, b: one dtype, floating or not; y: bool
 * A bool has no gradient: nothing is recorded, and nothing saved. */
#include <math.h>
#include "ops/ops.h"

static bool compare_shape(mti_call *c)
{
    return mti_need_same_dtype(c, 0, 1) && mti_shape_broadcast(c, MT_BOOL);
}

static bool compare(mti_call *c, mti_compare op)
{
    const mti_view *y = mti_out(c, 0);
    mti_view a = mti_broadcast_view(mti_in(c, 0), y->rank, y->shape);
    mti_view b = mti_broadcast_view(mti_in(c, 1), y->rank, y->shape);
    return c->k->compare(c->ctx, op, &a, &b, y);
}

#define COMPARE(name, sign)                                                                        \
    static bool name(mti_call *c) { return compare(c, MTI_COMPARE_##name); }                       \
    const mti_op_code mti_code_##name = {compare_shape, name, NULL};
#include "backends/compare.def"

mt_tensor *mt_eq(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_eq, NULL, a, b); }
mt_tensor *mt_ne(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_ne, NULL, a, b); }
mt_tensor *mt_lt(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_lt, NULL, a, b); }
mt_tensor *mt_le(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_le, NULL, a, b); }
mt_tensor *mt_gt(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_gt, NULL, a, b); }
mt_tensor *mt_ge(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_ge, NULL, a, b); }

/* Whether an integer dtype or bool holds c. */
static bool dtype_holds(mt_dtype dtype, double c)
{
    mt_bits bits = mt_dtype_bits(dtype);
    double limit = ldexp(1, bits.mantissa), lowest = bits.sign ? -limit : 0;
    return c >= lowest && c < limit && c == floor(c);
}

mt_tensor *mt_compare_scalar(mt_tensor *x, mt_comparison how, double c)
{
    static const mti_op *const ops[] = {
#define COMPARE(name, sign) &mti_op_##name, /* in the order of mt_comparison */
#include "backends/compare.def"
    };
    if ((unsigned)how > MT_GE)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "compare_scalar: unknown comparison %d; need MT_EQ to MT_GE",
                             (int)how);
    const char *caller = ops[how]->name;
    if (!mti_given(x, caller, "x")) return NULL;
    mt_dtype dtype = x->view.dtype;
    if (!mti_dtype_is_real(dtype) && !dtype_holds(dtype, c))
        return mti_fail_null(MT_ERR_ARGUMENT, "%s: x is %s, which cannot hold %g; cast x", caller,
                             mt_dtype_name(dtype), c);
    MT_AUTO mt_tensor *other = mt_full(mt_device_of(x), dtype, 0, NULL, c);
    return other ? mti_op2(ops[how], NULL, x, other) : NULL;
}
