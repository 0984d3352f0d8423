/* training.c: some steps of one process, and of ranks that share it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "as_ranks.h"
#include "base/philox.h"

enum { BATCH = MTT_BATCH, SEQ = MTT_SEQ, SEED = 5, MOST_MICROBATCHES = 8 };

/* A gradient that is exactly 0 on paper, such as that of the keys' bias, which softmax cancels, is
 * rounding in a run, and differs with the division. AdamW, which divides a gradient by its own
 * size, would make a whole step of it: eps is above such rounding. With 1e-6 one process whose lr
 * is 1e-7 larger ends 2e-5 away, four times MTT_ROUNDING; with 2e-6 all divisions end within. */
const mt_adamw_options mtt_adamw = {
    .lr = 3e-3, .eps = 2e-6, .weight_decay = 0.1, .decay_matrices_only = true};

int mtt_steps(void)
{
    const char *kind = getenv("MTT_DEVICE");
    bool simulated = kind && !strcmp(kind, "cudasim");
    return mtt_long() ? simulated ? 6 : MTT_MOST_STEPS : 4;
}

static int64_t at_least_1(int64_t n) { return n ? n : 1; }

/* ---- batches ---- */

/* Rows [from, from + n) of a step's microbatch; targets are a function of the tokens, so that there
 * is something to learn. */
static mt_tensor *ids(mt_device *device, const mt_model_config *c, int step, int64_t micro,
                      int64_t from, int64_t n, bool target)
{
    int64_t values[BATCH * SEQ];
    for (int64_t i = 0; i < n * SEQ; i++) {
        uint64_t at = (uint64_t)((step * 64 + micro) * BATCH * SEQ + from * SEQ + i);
        int64_t token = (int64_t)(mti_philox(77, at).v[0] % 13);
        values[i] = target ? (token * 5 + 1) % c->vocab : token;
    }
    return mt_from_data(device, MT_I64, MT_SHAPE(n, SEQ), values,
                        (size_t)(n * SEQ) * sizeof *values);
}

/* Of [n,SEQ], taken over, the positions that a rank has. */
static mt_tensor *piece(mt_tensor *x, const mt_parallel *h)
{
    int64_t length = SEQ / at_least_1(h->context);
    mt_set(&x, mt_slice(x, 1, h->context_rank * length, length));
    mt_set(&x, mt_contiguous(x));
    return x;
}

/* ---- one process ---- */

/* A step's forwards and backwards. -> the mean loss */
static double alone_backward(const mtt_training *t, mt_device *device, mt_module *model, int step)
{
    int64_t n = at_least_1(t->parallel.microbatches);
    double loss = 0;
    for (int64_t m = 0; m < n; m++) {
        mt_tensor *x = ids(device, t->config, step, m, 0, BATCH, false);
        mt_tensor *target = ids(device, t->config, step, m, 0, BATCH, true);
        mt_tensor *y = mt_model_forward_loss(model, x, target);
        loss += mt_item(y) / (double)n;
        mt_set(&y, mt_mul_scalar(y, 1 / (double)n));
        mtt_ok(mt_backward(mtt_made(y)));
        mt_release(y), mt_release(x), mt_release(target);
    }
    return loss;
}

/* Always on the CPU, with which ranks on other devices are compared. */
void mtt_train_alone(mtt_training *t)
{
    mt_device *device = mt_device_open("cpu");
    mtt_ok(mt_device_set_threads(device, 1));
    mt_seed(device, SEED);
    mt_module *model = mt_model_new(device, t->config);
    if (t->lora) mtt_ok(mt_lora_add(model, t->lora, NULL));
    mt_optimizer *optimizer = mt_adamw_new(model, &mtt_adamw);
    assert_non_null(optimizer);
    for (int step = 0; step < mtt_steps(); step++) {
        mt_rng_set(device, SEED, (uint64_t)step << 32);
        t->losses[step] = alone_backward(t, device, model, step);
        if (t->max_norm > 0) mtt_ok(mt_clip_grad_norm(model, t->max_norm, NULL));
        mtt_ok(mt_optimizer_step(optimizer));
        mtt_ok(mt_module_zero_grad(model));
    }
    mt_optimizer_free(optimizer);
    mt_module_free(model);
    mt_device_release(device);
}

/* ---- ranks ---- */

static void one_step(const mtt_training *t, const mt_parallel *h, mt_stage *stage,
                     mt_device *device, mt_optimizer *optimizer, int step, double *loss)
{
    mt_tensor *x[MOST_MICROBATCHES], *target[MOST_MICROBATCHES];
    int64_t n = BATCH / at_least_1(h->data), micro = at_least_1(h->microbatches);
    mt_rng_set(device, SEED, (uint64_t)step << 32);
    for (int64_t m = 0; m < micro; m++) {
        x[m] = piece(ids(device, t->config, step, m, h->data_rank * n, n, false), h);
        target[m] = piece(ids(device, t->config, step, m, h->data_rank * n, n, true), h);
    }
    MTT_NEED(mt_stage_backward(stage, x, target, loss) == MT_OK);
    MTT_NEED(mt_stage_step(stage, optimizer, t->max_norm, NULL) == MT_OK);
    for (int64_t m = 0; m < micro; m++) mt_release(x[m]), mt_release(target[m]);
}

static void train_rank(mt_comm *world, void *user)
{
    mtt_training *t = user;
    mt_parallel h = t->parallel;
    mt_group all = mt_comm_group(world);
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    mt_device *device = mtt_device();
    MTT_NEED(device && mt_device_set_threads(device, 1) == MT_OK);
    mt_seed(device, SEED);
    mt_stage *stage = t->lora ? mt_stage_new_lora(device, t->config, &h, t->lora)
                              : mt_stage_new(device, t->config, &h);
    MTT_NEED(stage);
    if (t->checkpoint)
        for (int64_t i = 0; mt_stage_part(stage, i); i++)
            MTT_NEED(mt_model_checkpoint(mt_stage_part(stage, i), t->checkpoint) == MT_OK);
    mt_optimizer *optimizer = mt_adamw_new(mt_stage_stepped(stage), &mtt_adamw);
    const mt_scaler_options scaled = {.scale = t->scale, .fixed = true};
    mt_scaler *scaler = t->scale > 0 ? mt_scaler_new(&scaled) : NULL;
    MTT_NEED(optimizer && mt_stage_set_scaler(stage, scaler) == MT_OK);
    for (int step = 0; step < mtt_steps(); step++) {
        double loss;
        one_step(t, &h, stage, device, optimizer, step, &loss);
        if (all.rank == 0) t->losses[step] = loss;
        MT_AUTO mt_tensor *own = mt_full(device, MT_F64, 0, NULL, loss);
        MT_AUTO mt_tensor *sum = mt_all_reduce(own, &all);
        MTT_NEED(sum && fabs(mt_item(sum) / (double)all.ranks - loss) < 1e-12);
    }
    if (t->look) t->look(&h, stage);
    if (scaler) MTT_NEED(mt_scaler_get(scaler).steps == mtt_steps());
    mt_scaler_free(scaler);
    mt_optimizer_free(optimizer);
    mt_stage_free(stage);
    mt_device_release(device);
    mt_parallel_close(&h);
}

void mtt_train(mtt_training *t) { mtt_as_ranks(mtt_count_ranks(&t->parallel), train_rank, t); }

double mtt_difference(const mtt_training *a, const mtt_training *b)
{
    double most = 0;
    for (int i = 0; i < mtt_steps(); i++)
        if (!(fabs(a->losses[i] - b->losses[i]) <= most)) most = fabs(a->losses[i] - b->losses[i]);
    return most / a->losses[0];
}

void mtt_show(const char *model, const mt_parallel *h, double difference, const char *from)
{
    print_message(
        "%-12s t %lld%s c %lld d %lld zero %lld p %lld/%lld, %lld microbatches: %.1e from %s\n",
        model, (long long)at_least_1(h->tensor), h->sequence ? " sp" : "",
        (long long)at_least_1(h->context), (long long)at_least_1(h->data), (long long)h->zero,
        (long long)at_least_1(h->pipeline), (long long)at_least_1(h->interleave),
        (long long)at_least_1(h->microbatches), difference, from);
}
