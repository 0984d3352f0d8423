/* left_out.c: what an answer does not count; left_out.def has the rows. */
#include <string.h>
#include "options/option_table.h"
#include "nn/model.h"

#define OF_TRANSFORMERS (MTI_RECIPE_HF | MTI_RECIPE_TRL | MTI_RECIPE_PEFT | MTI_RECIPE_LLAMAFACTORY)

static bool has(const mti_options *o, unsigned recipes) { return (o->recipe & recipes) != 0; }

static bool checkpointed(const mti_memory_options *m)
{
    return m->checkpoint && !mti_checkpoints(m, "none");
}

/* Whether ranks share so: a fit that is not told tries some that do. */
static bool may_be_several(const mti_options *o, int64_t n)
{
    return n > 1 || (!n && o->verb == MTI_FIT && o->gpu.n > 1);
}

/* Whether it is GPT-2 with the attention that Transformers had for it alone until 4.44. */
static bool is_eager_gpt2(const mti_options *o, const mt_model_config *c)
{
    return has(o, OF_TRANSFORMERS) && c->kind == MT_MODEL_GPT && mti_learns_positions(c) &&
           !c->position_offset && c->attention == MT_ATTENTION_MATH;
}

static bool trains_all(const mti_workload *w)
{
    return w->optimizer != MTI_OPT_NONE && !w->memory.lora_rank && !w->memory.step_in_backward;
}

static int64_t parameters(const mt_model_config *c)
{
    uint64_t n = 0;
    if (mt_model_config_params(c, &n) != MT_OK) mt_clear_error();
    return (int64_t)n;
}

/* Elements that DeepSpeed gathers ahead; LLaMA-Factory's configuration leaves them to Transformers.
 */
static int64_t prefetched(const mti_options *o, const mt_model_config *c)
{
    return has(o, MTI_RECIPE_LLAMAFACTORY) ? c->hidden * c->hidden * 9 / 10 : 50000000;
}

/* Elements of norms and biases. */
static int64_t small_parameters(const mt_model_config *c)
{
    if (c->kind == MT_MODEL_LLAMA) return (2 * c->layers + 1) * c->hidden;
    return c->layers * (8 * c->hidden + c->ffn + 2 * c->hidden) + 2 * c->hidden;
}

/* Bytes of all GPUs' outputs, which torch.nn.DataParallel lays side by side on the first. */
static int64_t gathered(const mti_options *o, const mt_model_config *c)
{
    const mti_workload *w = &o->workload;
    const mti_memory_options *m = &w->memory;
    const mti_loss_row *loss = mti_loss_row_of(c->ops.loss);
    const int64_t batch = w->batch * (o->verb == MTI_FIT ? 1 : w->parallel.data),
                  logits = loss->fused || loss->chunked ? 0 : c->vocab,
                  cached = checkpointed(m) ? 0 : 2 * c->layers * c->kv_heads * c->head_dim;
    return (int64_t)mt_dtype_size(c->dtype) * batch * w->seq * (logits + cached);
}

/* Elements that are in no linear of a block. */
static int64_t other_parameters(const mt_model_config *c)
{
    return (1 + c->untied) * c->vocab * c->hidden + small_parameters(c);
}

static void add(mti_workload *w, int64_t bytes, const char *what)
{
    if (w->n_left_out < MTI_MOST_LEFT_OUT)
        w->left_out[w->n_left_out++] = (mti_left_out){what, bytes > 0 ? (uint64_t)bytes : 0};
}

void mti_find_left_out(mti_options *o)
{
    mti_workload *w = &o->workload;
    const mti_memory_options *m = &w->memory;
    const mt_parallel *h = &w->parallel;
    mt_model_config resolved;
    const mt_model_config *c = &resolved;
    w->n_left_out = 0;
    if (!mti_is_whole(w->config.kind) || mt_model_config_resolve(&w->config, &resolved) != MT_OK)
        return;
    const int64_t width = (int64_t)mt_dtype_size(c->dtype),
                  rows = w->batch * w->seq * c->experts_per_token;
#define LEFT_OUT(test, bytes, what, source)                                                        \
    if (test) add(w, bytes, what);
#include "options/left_out.def"
#undef LEFT_OUT
}
