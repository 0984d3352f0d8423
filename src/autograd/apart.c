/* apart.c: runs a function with this thread's default modes, and restores the modes. */
#include "autograd/autograd.h"

bool mt_recomputing(void) { return mti_modes_now()->recompute; }

mt_status mt_run_apart(const mt_apart *options, mt_status (*fn)(void *user), void *user)
{
    static const mt_apart defaults;
    if (!fn) return mti_fail(MT_ERR_ARGUMENT, "run_apart: the function is NULL");
    if (!options) options = &defaults;
    const char *module = options->module ? mti_intern(options->module) : mt_scope_path();
    const char *phase = options->phase ? mti_intern(options->phase) : mti_where_now()->phase;
    if (!module || !phase) return mt_last_status();

    mti_modes *modes = mti_modes_now(), outer_modes = *modes;
    mti_making outer_making = *mti_making_now();
    mti_where *where = mti_where_now(), outer_where = *where;
    int depth = mti_scope_depth();
    *modes = (mti_modes){.recompute = outer_modes.recompute || options->recompute,
                         .op_in_progress = mti_op_in_progress(),
                         .walk = outer_modes.walk};
    *mti_making_now() = (mti_making){MT_INPUT, false};
    *where = (mti_where){"", module, phase, outer_where.in_backward};

    mt_status status = fn(user);

    mti_hooks_pop_all();
    mti_op_hooks_pop_all();
    *modes = outer_modes;
    *mti_making_now() = outer_making;
    *where = outer_where;
    mti_scope_restore(depth);
    return status;
}
