/* draws.c: where in one process's order of random numbers the parts of a pipeline draw theirs. One
 * process draws for all parts of a microbatch, then for the next; so a part begins after those that
 * every microbatch before takes, and the parts before it. How many a part takes is seen by running
 * it on a device without data. */
#include "parallel/parallel.h"

bool mti_draws_needed(const mt_device *device, const mti_model_shard *s)
{
    return mt_device_has_data(device) && s->parallel.pipeline > 1 && s->whole.dropout > 0;
}

typedef struct counting {
    mti_part_draws *draws; /* of this batch */
    const mti_model_shard *shard;
    mt_device *device; /* without data */
} counting;

static mt_tensor *input_of(const counting *c, mt_module *part, bool first)
{
    const mti_part_draws *d = c->draws;
    return first ? mt_zeros(c->device, MT_I64, MT_SHAPE(d->batch, d->seq))
                 : mt_rank_wire(part, c->device, d->batch, d->seq);
}

static bool count_part(const counting *c, int64_t nth)
{
    mt_parallel h = c->shard->parallel;
    mt_model_config config = c->shard->whole;
    uint64_t seed;
    config.vocab = c->shard->vocab;
    h.pipeline_comm = h.ends_comm = NULL;
    h.stage = nth % h.pipeline;
    mt_module *part = mt_rank_new(c->device, &config, &h, nth / h.pipeline);
    MT_AUTO mt_tensor *x = part ? input_of(c, part, nth == 0) : NULL;
    bool ok = x && mti_shard_draws(part, &h);
    mt_rng_set(c->device, 0, 0);
    MT_AUTO mt_tensor *tokens = ok ? input_of(c, part, true) : NULL;
    MT_AUTO mt_tensor *y = !tokens                  ? NULL
                           : nth == c->draws->n - 1 ? mti_rank_forward_loss(part, x, tokens, tokens)
                                                    : mt_forward(part, x);
    mt_rng_get(c->device, &seed, &c->draws->parts[nth]);
    mt_module_free(part);
    return y != NULL;
}

static mt_status count_parts(void *user)
{
    const counting *c = user;
    mt_set_grad_mode(false);
    for (int64_t nth = 0; nth < c->draws->n; nth++)
        if (!count_part(c, nth)) return mt_last_status();
    return MT_OK;
}

bool mti_draws_find(mti_part_draws *d, const mti_model_shard *s, int64_t batch, int64_t seq)
{
    if (d->parts && d->batch == batch && d->seq == seq) return true;
    int64_t n = s->parallel.pipeline * s->parallel.interleave;
    uint64_t *parts = d->parts ? d->parts : mti_calloc((size_t)n, sizeof *parts);
    if (!parts) return false;
    *d = (mti_part_draws){batch, seq, n, parts};
    const counting c = {d, s, mt_device_open("meta")};
    bool ok = c.device && mt_run_apart(NULL, count_parts, (void *)&c) == MT_OK;
    mt_device_release(c.device);
    if (!ok) d->batch = 0; /* found for none */
    return ok;
}

uint64_t mti_draws_before(const mti_part_draws *d, int64_t nth)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < nth; i++) sum += d->parts[i];
    return sum;
}
