/* apart.c: run a function as if nothing were going on around it, and put everything back. */
#include "autograd/autograd.h"

bool mt_recomputing(void) { return mti_modes_now()->recompute; }

mt_status mt_run_apart(const mt_apart *how, mt_status (*fn)(void *user), void *user)
{
    static const mt_apart plain;
    if (!fn) return mti_fail(MT_ERR_ARGUMENT, "run_apart: the function is NULL");
    if (!how) how = &plain;
    const char *module = how->module ? mti_intern(how->module) : mt_scope_path();
    const char *phase = how->phase ? mti_intern(how->phase) : mti_where_now()->phase;
    if (!module || !phase) return mt_last_status();

    mti_modes *modes = mti_modes_now(), modes_were = *modes;
    mti_making making_was = *mti_making_now();
    mti_where *where = mti_where_now(), where_was = *where;
    int depth = mti_scope_depth();
    *modes = (mti_modes){.recompute = modes_were.recompute || how->recompute,
                         .op_in_progress = mti_op_in_progress(),
                         .in_backward = modes_were.in_backward,
                         .walk = modes_were.walk};
    *mti_making_now() = (mti_making){MT_INPUT, false};
    *where = (mti_where){"", module, phase};

    mt_status status = fn(user);

    mti_hooks_pop_all();
    mti_op_hooks_pop_all();
    *modes = modes_were;
    *mti_making_now() = making_was;
    *where = where_was;
    mti_scope_restore(depth);
    return status;
}
