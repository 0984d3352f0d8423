#include "mtt_fixture.h"

mt_device *device;

int mtt_open_device(void **state)
{
    (void)state;
    device = mtt_device();
    return device && mt_set_balance_check(device, true) == MT_OK ? 0 : -1;
}

int mtt_close_device(void **state)
{
    int left = mtt_nothing_left(state);
    mt_device_release(device);
    device = NULL;
    return left;
}

mt_tensor *mtt_leaf(int64_t n, const float *values)
{
    mt_tensor *x =
        mtt_made(mt_from_data(device, MT_F32, MT_SHAPE(n), values, (size_t)n * sizeof *values));
    mtt_ok(mt_set_requires_grad(x, true));
    return x;
}

int mtt_nothing_left(void **state)
{
    (void)state;
    const char *left = NULL;
    if (mt_last_status() != MT_OK) left = mt_last_error();
    if (mtt_allocated(device) != 0) left = "bytes that are still allocated";
    if (!mt_grad_mode()) left = "the grad mode off";
    if (*mt_scope_path()) left = mt_scope_path();
    if (left) {
        print_error("the test left: %s\n", left);
        return -1;
    }
    bool hooks = mt_pop_saved_hooks() == MT_OK, op_hooks = mt_pop_op_hooks() == MT_OK;
    mt_clear_error(); /* popping the empty stacks has set it */
    if (hooks || op_hooks) print_error("the test left a hook\n");
    return hooks || op_hooks ? -1 : 0;
}
