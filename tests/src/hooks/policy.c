#include <string.h>
#include "policy.h"

mt_policy answer(void *user, const mt_op_call *call)
{
    policy *p = user;
    bool is = !strcmp(p->op, "*") || !strcmp(p->op, call->op);
    if (++p->asked == p->change_at) is = !is;
    if (is) p->flops += call->flops;
    return is ? p->yes : p->no;
}
