/* applied_plan.c: applying a plan to a model, and describing it. */
#include <stdio.h>
#include <string.h>
#include "memory/budget.h"

mt_budget_plan *mti_budget_plan_new(const mt_budget *b, int64_t room)
{
    mt_budget_plan *plan = mti_calloc(1, sizeof *plan);
    if (!plan) return NULL;
    plan->budget = b;
    plan->segments = mti_calloc((size_t)room, sizeof *plan->segments);
    plan->keeps = mti_calloc((size_t)room, sizeof *plan->keeps);
    if (plan->segments && plan->keeps) return plan;
    mti_budget_plan_free(plan);
    return NULL;
}

void mti_budget_plan_free(mt_budget_plan *plan)
{
    if (!plan) return;
    mti_free(plan->segments);
    mti_free(plan->keeps);
    mti_free(plan);
}

void mti_budget_plan_add(mt_budget_plan *plan, mti_budget_segment s)
{
    plan->keeps[plan->n] = (mti_budget_keeps){plan->budget, s.choice.keeps};
    plan->segments[plan->n++] = s;
}

/* ---- applying ---- */

static mt_policy keep_products(void *user, const mt_op_call *call)
{
    const mti_budget_keeps *k = user;
    const char *within = "";
    if (!call->flops || call->in_place || mti_budget_layer(call->module, &within) < 0)
        return MT_PREFER_RECOMPUTE;
    const mti_budget_op op = {.op = call->op, .module = within, .bytes = call->output_bytes};
    for (int i = 0; i < k->budget->n_products; i++)
        if (k->keeps >> i & 1 && mti_budget_op_is(&op, &k->budget->products[i]))
            return MT_PREFER_SAVE;
    return MT_PREFER_RECOMPUTE;
}

static mt_status apply_core(mt_module *m, int64_t layer, const mt_checkpoint_options *options)
{
    char path[64];
    snprintf(path, sizeof path, "h.%lld.attn.heads", (long long)layer);
    mt_module *core = mt_module_find(m, path);
    return core ? mt_module_set_checkpoint(core, options)
                : mti_fail(MT_ERR_ARGUMENT, "budget: %s has no %s, which the plan is made for",
                           mt_module_kind(m), path);
}

static mt_status apply_segment(const mt_budget_plan *plan, size_t i, mt_module *m,
                               mt_checkpoint_options options)
{
    const mti_budget_segment *s = &plan->segments[i];
    if (s->choice.form == MTI_BUDGET_PLAIN) return MT_OK;
    if (s->choice.form == MTI_BUDGET_CORE) return apply_core(m, s->from, &options);
    options.policy = s->choice.keeps ? keep_products : NULL;
    options.policy_user = &plan->keeps[i];
    return mt_model_checkpoint_layers(m, s->from, s->n, &options);
}

mt_status mt_budget_apply(const mt_budget_plan *plan, mt_module *m,
                          const mt_checkpoint_options *options)
{
    static const mt_checkpoint_options zero;
    if (!mti_given(plan, "budget_apply", "the plan") || !mti_given(m, "budget_apply", "the model"))
        return mt_last_status();
    if (options && options->policy)
        return mti_fail(MT_ERR_ARGUMENT, "budget_apply: the policy is the plan's; need none");
    if (options && options->discard_outputs)
        return mti_fail(MT_ERR_ARGUMENT, "budget_apply: the options discard outputs, which leaves "
                                         "a hook; need discard_outputs false");
    mt_status status = mt_model_checkpoint(m, "none");
    for (size_t i = 0; status == MT_OK && i < plan->n; i++)
        status = apply_segment(plan, i, m, options ? *options : zero);
    if (status != MT_OK) mt_model_checkpoint(m, "none");
    return status;
}

/* ---- describing ---- */

mt_budget_figures mt_budget_plan_figures(const mt_budget_plan *plan)
{
    return plan ? plan->figures : (mt_budget_figures){0};
}

static bool same(const mti_budget_segment *a, const mti_budget_segment *b)
{
    return a->choice.form == b->choice.form && a->choice.keeps == b->choice.keeps && a->n == b->n;
}

/* The first segment after i that does not do the same. */
static size_t end_of_part(const mt_budget_plan *plan, size_t i)
{
    size_t end = i + 1;
    while (end < plan->n && same(&plan->segments[end], &plan->segments[i])) end++;
    return end;
}

size_t mt_budget_plan_count(const mt_budget_plan *plan)
{
    size_t n = 0;
    for (size_t i = 0; plan && i < plan->n; i = end_of_part(plan, i)) n++;
    return n;
}

static void name_kept(const mt_budget *b, unsigned keeps, char *buf, size_t n_bytes)
{
    size_t at = 0;
    *buf = 0;
    for (int i = 0; i < b->n_products && at < n_bytes; i++)
        if (keeps >> i & 1)
            at += (size_t)snprintf(buf + at, n_bytes - at, "%s%s %s", at ? ", " : "",
                                   b->products[i].module, b->products[i].op);
}

mt_status mt_budget_plan_get(const mt_budget_plan *plan, size_t i, mt_budget_part *out, char *keeps,
                             size_t n_bytes)
{
    if (!mti_given(plan, "budget_plan", "the plan")) return mt_last_status();
    size_t count = mt_budget_plan_count(plan), begin = 0;
    if (i >= count || !out)
        return mti_fail(MT_ERR_ARGUMENT, "budget_plan: part %zu of %zu%s", i, count,
                        out ? "" : "; the result is NULL");
    for (; i; i--) begin = end_of_part(plan, begin);
    size_t end = end_of_part(plan, begin);
    const mti_budget_segment *s = &plan->segments[begin];
    *out = (mt_budget_part){.from = s->from,
                            .n = (int64_t)(end - begin) * s->n,
                            .group = s->choice.form == MTI_BUDGET_WHOLE ? s->n : 0,
                            .core = s->choice.form == MTI_BUDGET_CORE};
    if (keeps && n_bytes) name_kept(plan->budget, s->choice.keeps, keeps, n_bytes);
    return MT_OK;
}
