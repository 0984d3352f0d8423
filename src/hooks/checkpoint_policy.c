/* checkpoint_policy.c: results of ops that a checkpoint keeps instead of recomputing them. Hooks on
 * ops ask the policy after each call in forward, and supply what was kept in backward. */
#include <string.h>
#include "hooks/checkpoint.h"
#include "memtape/ops.h"
#include "memtape/op_table.h"

static const char *const names[MT_POLICY_COUNT] = {"prefer recompute", "prefer save",
                                                   "must recompute", "must save", "offload"};

const char *mt_policy_name(mt_policy policy)
{
    return (unsigned)policy < MT_POLICY_COUNT ? names[policy] : "no policy";
}

/* No answer: a checkpoint without a policy inside one with a policy. */
#define NONE MT_POLICY_COUNT

mt_policy mt_policy_ops(void *user, const mt_op_call *call)
{
    (void)user;
    if (!call) {
        mti_fail(MT_ERR_ARGUMENT, "policy_ops: the call is NULL");
        return NONE;
    }
    bool kept = !strcmp(call->op, "flash_attention") || !strcmp(call->op, "reduce_scatter") ||
                (!strcmp(call->op, "linear") && call->nth % 2 == 0) ||
                (!strcmp(call->op, "matmul") && call->nth % 2 == 1);
    return kept ? MT_MUST_SAVE : MT_PREFER_RECOMPUTE;
}

static bool is_must(mt_policy p) { return p >= MT_MUST_RECOMPUTE && p < MT_POLICY_COUNT; }
static bool keeps(mt_policy p)
{
    return p == MT_PREFER_SAVE || p == MT_MUST_SAVE || p == MT_OFFLOAD;
}

static bool refuse_policy(const mt_op_call *call, const mti_frame *f, const char *reason,
                          mt_policy before, mt_policy now)
{
    return mti_fail_bool(MT_ERR_STATE, "checkpoint %s: policy for %s%s%s: %s: %s, then %s",
                         f->options.label, call->op, *call->module ? " in " : "", call->module,
                         reason, mt_policy_name(before), mt_policy_name(now));
}

/* Not for autocast's copies of parameters: forward may make them outside of the checkpoint. */
static bool is_asked(const mt_op_call *call)
{
    return strcmp(call->op, "cast") != 0 || mt_storage_of(call->inputs[0]).category != MT_PARAMETER;
}

/* ---- what the policies say ---- */

/* How many of f's decisions are on this op. */
static int64_t decisions_on(const mti_frame *f, const char *op)
{
    for (size_t i = f->decisions.n; i--;)
        if (!strcmp(f->decisions.at[i].op, op)) return f->decisions.at[i].nth + 1;
    return 0;
}

/* f's own answer; the policy is asked once per call, even for several checkpoints. */
static bool ask(mti_frame *f, const mt_op_call *call, mt_policy *out)
{
    *out = NONE;
    if (f->again) {
        if (f->call < f->decisions.n) *out = f->decisions.at[f->call].own;
        return true;
    }
    if (!f->options.policy) return true;
    mt_op_call asked = *call;
    asked.nth = decisions_on(f, call->op);
    if (!f->answered) f->answer = f->options.policy(f->options.policy_user, &asked);
    f->answered = true;
    *out = f->answer;
    return (unsigned)*out < MT_POLICY_COUNT ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "checkpoint %s: its policy answered %d for %s; need 0 to %d",
                         f->options.label, (int)*out, call->op, MT_POLICY_COUNT - 1);
}

/* After the outermost checkpoint has handled the call, or after a failure. */
static void forget_answers(mti_frame *f)
{
    while (f->outer) f = f->outer;
    for (; f; f = f->inner) f->answered = false;
}

/* Merges the answers of all checkpoints around the call: a must beats a prefer, then the inner one.
 */
static bool merge(mti_frame *f, const mt_op_call *call, mt_policy *merged)
{
    mti_frame *at = f;
    while (at->outer) at = at->outer;
    for (*merged = NONE; at; at = at->inner) {
        mt_policy p;
        if (!ask(at, call, &p)) return false;
        if (is_must(p) && is_must(*merged) && p != *merged)
            return refuse_policy(call, at, "two musts disagree, outer and inner", *merged, p);
        if (p != NONE && (is_must(p) || !is_must(*merged))) *merged = p;
    }
    if (*merged == NONE) *merged = MT_PREFER_RECOMPUTE;
    if (!call->in_place || !keeps(*merged)) return true;
    if (*merged != MT_PREFER_SAVE)
        return refuse_policy(call, f, "an op in place cannot be kept", *merged, MT_MUST_RECOMPUTE);
    *merged = MT_PREFER_RECOMPUTE;
    return true;
}

/* ---- keeping ---- */

static void drop_kept(mti_decision *d)
{
    for (int i = 0; d->kept && i < d->n_kept; i++) mt_saved_free(d->kept[i]);
    mti_free(d->kept);
    d->kept = NULL;
}

void mti_policy_release(mti_frame *f, size_t n_live)
{
    while (f->n_kept && f->decisions.at[f->n_kept - 1].position >= n_live)
        drop_kept(&f->decisions.at[--f->n_kept]);
}

static mt_op_info row_of(const char *op)
{
    int i = mt_op_find(op);
    if (i >= 0) return mt_op_get(i);
    return (mt_op_info){.outputs = {"y", "y"}, .auxiliaries = {"aux", "aux", "aux"}};
}

static bool keep_each(mti_frame *f, mti_decision *d, const mt_op_call *call,
                      const mt_op_result *result)
{
    mt_op_info row = row_of(call->op);
    for (int i = 0; i < d->n_kept; i++) {
        int aux = i - d->n_outputs;
        mt_tensor *t = aux < 0 ? result->outputs[i] : result->auxiliaries[aux];
        if (!t) continue;
        const mt_save_info info = {.op = call->op,
                                   .argument = aux < 0 ? row.outputs[i == 1] : row.auxiliaries[aux],
                                   .index = aux < 0 ? i : aux,
                                   .role = aux < 0 ? MT_SAVE_OUTPUT : MT_SAVE_AUX,
                                   .module = call->module,
                                   .p = aux < 0 ? 0 : result->p,
                                   .seed = result->seed,
                                   .offset = result->offset};
        d->kept[i] = mt_saved_new(t, &info);
        if (!d->kept[i]) return false;
        f->policy_bytes += mt_storage_of(t).bytes;
    }
    return true;
}

/* Saves through the hooks around f, not through those that its function pushed. */
static bool keep_all(mti_frame *f, mti_decision *d, const mt_op_call *call,
                     const mt_op_result *result)
{
    d->kept = mti_calloc((size_t)d->n_kept, sizeof *d->kept);
    void *place = d->kept ? mt_step_below_saved_hooks(f) : NULL;
    if (!place) return false;
    bool away = d->merged == MT_OFFLOAD && f->options.away, ok = true;
    if (away) {
        mt_saved_hooks hooks = *f->options.away;
        hooks.destroy = NULL;
        ok = mt_push_saved_hooks(&hooks, f->options.away_user) == MT_OK;
    }
    if (ok) {
        ok = keep_each(f, d, call, result);
        if (away) mt_pop_saved_hooks();
    }
    mt_step_back_to_saved_hooks(place);
    return ok;
}

static bool decide(mti_frame *f, const mt_op_call *call, const mt_op_result *result)
{
    mti_decision d = {.op = call->op,
                      .module = call->module,
                      .nth = decisions_on(f, call->op),
                      .position = f->entries.n,
                      .result = *result,
                      .n_outputs = call->n_outputs,
                      .n_kept = call->n_outputs + call->n_auxiliaries};
    if (!MTI_RESERVE(&f->decisions) || !ask(f, call, &d.own) || !merge(f, call, &d.merged))
        return false;
    d.result.outputs = d.result.auxiliaries = NULL;
    bool ok = !keeps(d.merged) || keep_all(f, &d, call, result);
    f->decisions.at[f->decisions.n++] = d;
    f->n_kept = f->decisions.n;
    return ok;
}

/* ---- supplying ---- */

/* Whether this is the call that forward decided on, and the policy gives the same answer. */
static bool same_call(mti_frame *f, const mti_decision *d, const mt_op_call *call)
{
    if (f->call >= f->decisions.n || strcmp(d->op, call->op) != 0 ||
        strcmp(d->module, call->module) != 0)
        return mti_fail_bool(
            MT_ERR_STATE, "checkpoint %s: running it again calls %s%s%s as op %zu; forward %s %s",
            f->options.label, call->op, *call->module ? " in " : "", call->module, f->call,
            f->call < f->decisions.n ? "called" : "made fewer calls: the last was",
            f->decisions.at[f->call < f->decisions.n ? f->call : f->decisions.n - 1].op);
    if (!f->options.policy) return true;
    mt_op_call then = *call;
    then.flops = d->result.flops;
    then.nth = d->nth;
    mt_policy own = f->options.policy(f->options.policy_user, &then);
    return own == d->own ||
           refuse_policy(call, f, "it answers otherwise in backward than in forward", d->own, own);
}

static mt_status on_before(void *user, const mt_op_call *call, mt_op_result *supply, bool *supplied)
{
    mti_frame *f = user;
    if (!f->again || !is_asked(call)) return MT_OK;
    if (mti_failed_since(f->failures)) return MT_OK; /* another branch goes on */
    const mti_decision *d = f->decisions.at + f->call;
    if (!same_call(f, d, call)) return mt_last_status();
    if (!d->kept) return MT_OK;
    for (int i = 0; i < d->n_kept; i++) {
        if (!d->kept[i]) continue;
        mt_tensor *t = mt_saved_get(d->kept[i]);
        if (!t) return mt_last_status();
        *(i < d->n_outputs ? &supply->outputs[i] : &supply->auxiliaries[i - d->n_outputs]) = t;
    }
    supply->flops = d->result.flops;
    supply->p = d->result.p, supply->seed = d->result.seed, supply->offset = d->result.offset;
    *supplied = true;
    return MT_OK;
}

static mt_status on_after(void *user, const mt_op_call *call, const mt_op_result *result)
{
    mti_frame *f = user;
    if (!is_asked(call)) return MT_OK;
    bool ok = true;
    if (f->again)
        f->call++;
    else
        ok = decide(f, call, result);
    if (!ok || !f->outer) forget_answers(f);
    return ok ? MT_OK : mt_last_status();
}

const mt_op_hooks mti_checkpoint_op_hooks = {.before = on_before, .after = on_after};
