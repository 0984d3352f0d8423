/* policy.h: a policy of checkpoints that knows one op. */
#ifndef POLICY_H
#define POLICY_H

#include "mtt_fixture.h"

/* Answers `yes` for ops of this name ("*": every op), `no` for others. */
typedef struct policy {
    const char *op;
    mt_policy yes, no;
    int asked, change_at; /* this question gets the opposite answer */
    uint64_t flops;       /* of the calls with the answer `yes` */
} policy;
/* Answers as the policy `user` says. */
mt_policy answer(void *user, const mt_op_call *call);

#endif
