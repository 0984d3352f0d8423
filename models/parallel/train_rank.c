/* train_rank.c: training steps of one rank, which all ranks make together. */
#include "memtape/ops.h"
#include "nn/lora.h"
#include "optim/optimizers.h"
#include "collectives/collectives.h"
#include "parallel/parallel.h"

/* ---- making ---- */

static mt_stage *stage_new(mt_device *device, const mt_model_config *config,
                           const mt_parallel *parallel, const mt_lora_options *lora)
{
    mt_stage *s = mti_calloc(1, sizeof *s);
    if (s && mti_stage_make(s, device, config, parallel, 0, lora)) return s;
    mt_stage_free(s);
    return NULL;
}

mt_stage *mt_stage_new(mt_device *device, const mt_model_config *config,
                       const mt_parallel *parallel)
{
    if (!mti_given(device, "stage_new", "the device")) return NULL;
    return stage_new(device, config, parallel, NULL);
}

mt_stage *mt_stage_new_lora(mt_device *device, const mt_model_config *config,
                            const mt_parallel *parallel, const mt_lora_options *lora)
{
    if (!mti_given(device, "stage_new_lora", "the device") || !mti_lora_check(config, lora))
        return NULL;
    return stage_new(device, config, parallel, lora);
}

void mt_stage_free(mt_stage *s)
{
    if (s) mti_stage_free(s);
    mti_free(s);
}

mt_module *mt_stage_part(const mt_stage *s, int64_t i)
{
    return s && i >= 0 && i < s->schedule.n_parts ? s->parts[i] : NULL;
}

mt_status mt_stage_set_scaler(mt_stage *s, mt_scaler *scaler)
{
    if (!mti_given(s, "stage_set_scaler", "the stage")) return mt_last_status();
    s->scaler = scaler;
    return MT_OK;
}

mt_module *mt_stage_stepped(const mt_stage *s) { return s ? mti_zero_stepped(s->zero) : NULL; }

/* ---- forward and backward ---- */

/* One call of mt_stage_backward. */
typedef struct batches {
    mt_stage *stage;
    mt_tensor *const *tokens, *const *targets; /* [microbatches] */
    double loss;                               /* the sum of this rank's */
    uint64_t seed, *draws; /* [microbatches + 1]: where one process draws for each, and at last;
                            * NULL: in the order of these forwards */
} batches;

/* Each microbatch's tokens may be of another shape. */
static bool find_draws(const batches *t, int64_t micro)
{
    const int64_t *shape = mt_shape(t->tokens[micro]);
    return mti_draws_find(&t->stage->draws, t->stage->shards, shape[0], shape[1]);
}

static bool place_draws(batches *t)
{
    const int64_t n = t->stage->shards->parallel.microbatches;
    if (!mti_draws_needed(t->stage->device, t->stage->shards)) return true;
    if (!(t->draws = mti_calloc((size_t)n + 1, sizeof *t->draws))) return false;
    mt_rng_get(t->stage->device, &t->seed, &t->draws[0]);
    for (int64_t i = 0; i < n; i++) {
        if (!find_draws(t, i)) return false;
        t->draws[i + 1] = t->draws[i] + mti_draws_before(&t->stage->draws, t->stage->draws.n);
    }
    return true;
}

/* From where this part draws for this microbatch. */
static bool begin_draws(const batches *t, mti_turn turn)
{
    const mt_parallel *h = &t->stage->shards->parallel;
    if (!t->draws) return true;
    if (!find_draws(t, turn.micro)) return false;
    uint64_t before = mti_draws_before(&t->stage->draws, turn.part * h->pipeline + h->stage);
    mt_rng_set(t->stage->device, t->seed, t->draws[turn.micro] + before);
    return true;
}

static void end_draws(const batches *t)
{
    if (t->draws)
        mt_rng_set(t->stage->device, t->seed, t->draws[t->stage->shards->parallel.microbatches]);
}

mt_tensor *mti_stage_input(const mt_stage *s, int64_t part, mt_tensor *tokens)
{
    const mti_model_shard *shard = &s->shards[part];
    if (shard->first) return mt_retain(tokens);
    return mt_rank_wire(s->parts[part], s->device, mt_shape(tokens)[0],
                        mt_shape(tokens)[1] * shard->parallel.context);
}

static bool take(void *user, mti_turn turn, mti_in_flight *f)
{
    const batches *t = user;
    if (!begin_draws(t, turn)) return false;
    f->learns = true;
    if (f->last) f->target = mt_retain(t->targets[turn.micro]);
    if (mti_copies_embedding(&t->stage->shards[turn.part]))
        f->tokens = mt_retain(t->tokens[turn.micro]);
    return (f->input = mti_stage_input(t->stage, turn.part, t->tokens[turn.micro])) != NULL;
}

static bool add_loss(void *user, mt_tensor *loss)
{
    batches *t = user;
    if (mt_device_has_data(t->stage->device)) t->loss += mt_item(loss);
    return true;
}

static bool make_turns(batches *t)
{
    mti_step step = {0};
    bool ok = place_draws(t) &&
              mti_step_begin(&step, t->stage, &(mti_batches){take, add_loss, t}) &&
              mti_step_ahead(&step) && mti_step_backward(&step);
    if (ok) end_draws(t);
    mti_step_end(&step);
    return ok;
}

static bool check_batch(const mt_stage *s, mt_tensor *const *tokens, mt_tensor *const *targets)
{
    int64_t n = s->shards->parallel.microbatches;
    if (!tokens || !targets)
        return mti_fail_bool(MT_ERR_ARGUMENT, "stage_backward: the %s are NULL",
                             tokens ? "targets" : "tokens");
    if (!mti_is_whole(s->shards->whole.kind))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "stage_backward: a block has no loss; need gpt, bert or llama");
    for (int64_t i = 0; i < n; i++)
        if (!mti_given(tokens[i], "stage_backward", "a microbatch's tokens") ||
            !mti_given(targets[i], "stage_backward", "a microbatch's targets") ||
            !mti_check_tokens("stage_backward", tokens[i]) ||
            !mti_check_length("stage_backward", s->shards,
                              mt_shape(tokens[i])[1] * s->shards->parallel.context))
            return false;
    return true;
}

/* What an optimizer that steps in backward would step without; NULL: nothing. The same on all
 * ranks, so that all refuse it. */
static const char *not_yet(const mt_stage *s)
{
    const mt_parallel *h = &s->shards->parallel;
    if (s->scaler) return "the loss's scale is divided out of all gradients at once";
    if (mti_stage_losses(s) > 1)
        return "microbatches, data or context ranks have parts of each gradient";
    if (h->tensor > 1 && (mti_stage_lora(s) || mti_zero_has_partial_grads(s->zero)))
        return "tensor ranks have parts of some gradients";
    if (h->pipeline > 1 && (!s->shards->whole.untied || s->shards->whole.mtp_layers))
        return "the first stage and the last have parts of the embedding's gradient";
    return NULL;
}

static bool check_steps(const mt_stage *s)
{
    const mt_named_tensor *list;
    const char *why = not_yet(s);
    size_t n;
    bool ok = !why || mt_module_params(mti_zero_stepped(s->zero), &list, &n) == MT_OK;
    for (size_t i = 0; why && ok && i < n; i++)
        ok = !mti_steps_in_backward(list[i].tensor) ||
             mti_fail_bool(MT_ERR_STATE,
                           "stage_backward: the optimizer steps in backward, and %s; need the "
                           "step by mt_stage_step",
                           why);
    return ok;
}

mt_status mt_stage_backward(mt_stage *s, mt_tensor *const *tokens, mt_tensor *const *targets,
                            double *loss)
{
    if (!mti_given(s, "stage_backward", "the stage") || !check_batch(s, tokens, targets) ||
        !check_steps(s))
        return mt_last_status();
    const mt_parallel *h = &s->shards->parallel;
    batches t = {.stage = s, .tokens = tokens, .targets = targets};
    bool ok = make_turns(&t);
    mti_free(t.draws);
    const mt_group data = mti_data_group(h), stages = mti_stages(h);
    ok = ok && mti_sum_value(s->device, &data, &t.loss) &&
         mti_sum_value(s->device, &stages, &t.loss);
    if (ok && loss) *loss = t.loss / mti_stage_losses(s);
    return ok ? MT_OK : mt_last_status();
}

/* ---- the step ---- */

mt_status mt_stage_step(mt_stage *s, mt_optimizer *optimizer, double max_norm, double *norm)
{
    if (!mti_given(s, "stage_step", "the stage") ||
        !mti_given(optimizer, "stage_step", "the optimizer"))
        return mt_last_status();
    if (!(max_norm >= 0))
        return mti_fail(MT_ERR_ARGUMENT, "stage_step: max_norm is %g; need it >= 0", max_norm);
    if (max_norm > 0 && mti_optimizer_is_in_backward(optimizer))
        return mti_fail(MT_ERR_STATE,
                        "stage_step: max_norm is %g, and the optimizer steps in backward, when "
                        "there is no joint norm yet; need 0",
                        max_norm);
    return mti_step_optimizer(s, optimizer, max_norm, norm) ? MT_OK : mt_last_status();
}
