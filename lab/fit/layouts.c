/* layouts.c: the ways to divide a model among GPUs, and what to do with saved tensors. */
#include <string.h>
#include "fit/search.h"
#include "nn/model.h"

#define MOST_PARTS 8 /* of a stage, unless the options say how many */

static bool allowed(int64_t wanted, int64_t value) { return wanted == 0 || wanted == value; }

/* Whether the model can be divided so; in stages of different lengths only where they are asked
 * for, as the longest sets the pace. */
static bool divides(const mti_fit_task *task, const mt_parallel *h)
{
    const mt_model_config *c = &task->workload->config;
    if (!task->options->pipeline && c->layers % (h->pipeline * h->interleave)) return false;
    bool ok = mt_parallel_check(h, c) == MT_OK;
    if (!ok) mt_clear_error();
    return ok;
}

static bool add_experts(mti_layouts *all, const mti_fit_task *task, mt_parallel h)
{
    const int64_t same = h.data * h.context, most = task->workload->config.experts ? same : 1;
    for (h.expert = 1; h.expert <= most; h.expert++) {
        if (same % h.expert || !allowed(task->options->expert, h.expert) || !divides(task, &h))
            continue;
        if (!MTI_PUSH(all, h)) return false;
    }
    return true;
}

static bool add_stages(mti_layouts *all, const mti_fit_task *task, mt_parallel h)
{
    const mt_fit_options *o = task->options;
    const mt_parallel *given = &task->workload->parallel;
    h.fsdp = given->fsdp;
    if (h.pipeline > 1) h.fsdp &= ~(unsigned)(MT_FSDP_KEEP_LAST | MT_FSDP_KEEP_ROOT);
    for (int zero = 0; zero <= (h.data * h.context > 1 ? 3 : 0); zero++) {
        h.zero = zero;
        h.buckets = zero || h.data * h.context == 1 ? MT_BUCKETS_NONE : given->buckets;
        h.bucket_bytes = h.buckets ? given->bucket_bytes : 0;
        h.reduce_bucket = zero ? given->reduce_bucket : 0;
        h.sub_group = zero ? given->sub_group : 0;
        h.host_shards = zero == 3 && given->host_shards;
        bool codes = zero == 3 && task->workload->memory.qlora; /* cannot be gathered */
        bool factors = zero > 0 && mti_optimizer_takes_matrices(task->workload->optimizer);
        bool early = zero < 2 && h.data * h.context > 1 &&
                     mti_optimizer_row_of(task->workload->optimizer)->host; /* moved, not summed */
        bool whole = zero < 3 && (given->fsdp || given->host_shards); /* there are no shards */
        bool history = zero == 3 && task->workload->config.ops.linear == MT_LINEAR_TE_DELAYED;
        if (codes || factors || early || whole || history ||
            (o->zero_stages && !(o->zero_stages >> zero & 1)))
            continue;
        if (!add_experts(all, task, h)) return false;
    }
    return true;
}

static bool add_parts(mti_layouts *all, const mti_fit_task *task, mt_parallel h)
{
    const mt_fit_options *o = task->options;
    int64_t most = h.pipeline == 1 ? 1 : o->interleave ? o->interleave : MOST_PARTS;
    for (h.interleave = 1; h.interleave <= most; h.interleave++) {
        h.microbatches = h.pipeline;
        if (!allowed(o->interleave, h.interleave) || !divides(task, &h)) continue;
        if (!add_stages(all, task, h)) return false;
    }
    return true;
}

/* The rank with the last shard of a sequence is measured: with a causal mask its queries see all
 * keys, so it has most to do. */
bool mti_layout_cut(const mti_fit_task *task, const mt_parallel *layout, int64_t c,
                    mt_parallel *out)
{
    const int64_t n = layout->data * layout->context, t = layout->tensor;
    const mt_model_config *model = &task->workload->config;
    /* needs learned positions where the head is */
    const bool ahead = model->mtp_layers > 0 && mti_learns_positions(model);
    if ((ahead && c > 1) || n % c || task->batch % (n / c) || task->seq % c ||
        !allowed(task->options->context, c))
        return false;
    *out = *layout;
    out->sequence =
        t > 1 && task->seq / c % t == 0 && !mti_linear_keeps_codes(model->ops.linear) && !ahead;
    out->context = c;
    out->context_rank = c - 1;
    out->data = n / c;
    return true;
}

int64_t mti_layout_most_cut(const mt_parallel *layout)
{
    return layout->pipeline > 1 ? layout->context : layout->context * layout->data;
}

/* The one with fewest shards of a sequence, if there is one. */
static bool add_least_cut(mti_layouts *all, const mti_fit_task *task, const mt_parallel *layout)
{
    mt_parallel h;
    for (int64_t c = 1; c <= layout->data; c++)
        if (mti_layout_cut(task, layout, c, &h)) return add_parts(all, task, h);
    return true;
}

bool mti_layouts_make(mti_layouts *all, const mti_fit_task *task)
{
    const mt_fit_options *o = task->options;
    int64_t most = o->tensor ? o->tensor : task->gpu.in_a_node;
    bool ok = true;
    for (int64_t t = 1; t <= most && t <= task->gpus; t++) {
        if (!allowed(o->tensor, t) || task->gpus % t) continue;
        for (int64_t p = 1; ok && p <= task->gpus / t; p++) {
            if (!allowed(o->pipeline, p) || task->gpus / t % p) continue;
            const mt_parallel h = {
                .tensor = t, .pipeline = p, .context = 1, .data = task->gpus / t / p};
            ok = add_least_cut(all, task, &h);
        }
    }
    return ok;
}

/* ---- policies ---- */

/* How much is recomputed: each includes those of a lower level. */
static const struct {
    const char *name;
    int level;
} presets[] = {{"none", 0}, {"selective", 1}, {"ops", 1}, {"full", 2}, {"sqrt", 3}};
#define N_PRESETS (int)(sizeof presets / sizeof *presets)

static int preset_of(const char *checkpoint)
{
    int i = 0;
    while (i < N_PRESETS && strcmp(presets[i].name, checkpoint)) i++;
    return i;
}

/* An activation in place changes what "ops" keeps; linears of other forms have no result to keep.
 */
static bool applies(const mt_model_config *c, const char *name)
{
    bool kept = !c->ops.linear && (!c->inplace || c->mlp != MT_MLP_PLAIN);
    return strcmp(name, "ops") != 0 || kept;
}

void mti_policies_make(mti_fit_task *task)
{
    const mt_fit_options *o = task->options;
    const int most = o->checkpoint ? 1 : N_PRESETS;
    task->n_policies = 0;
    for (int i = 0; i < most; i++)
        for (int away = MTI_OFFLOAD_NONE; away <= MTI_OFFLOAD_CPU; away++) {
            const char *name = away ? "cpu" : "none";
            const char *checkpoint = o->checkpoint ? o->checkpoint : presets[i].name;
            if (o->offload && strcmp(o->offload, name)) continue;
            if (!applies(&task->workload->config, checkpoint)) continue;
            task->policies[task->n_policies++] =
                (mti_policy){.checkpoint = checkpoint, .offload = (mti_offload_choice)away};
        }
}

bool mti_policy_includes(const mti_policy *b, const mti_policy *a)
{
    int y = preset_of(b->checkpoint), x = preset_of(a->checkpoint);
    bool more = y == x || (y < N_PRESETS && x < N_PRESETS && presets[y].level > presets[x].level);
    return more && a->offload == MTI_OFFLOAD_NONE;
}
