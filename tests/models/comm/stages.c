/* stages.c: what each rank of a group checks as a stage of pipelines: every forward and backward of
 * every schedule gets the right message, nobody waits for ever, and the bytes are those that the
 * books of a device without data have, at every moment. */
#include <stdlib.h>
#include <string.h>
#include "memtape/ops.h"
#include "parallel/parallel.h"
#include "ranks.h"

#define WIDTH 6

/* One stage's run of a schedule. */
typedef struct stage_run {
    mt_group group;
    mti_schedule schedule;
    mt_device *device;
    mt_tensor **inputs, **outputs; /* by forward */
    size_t *allocated;             /* after each forward and backward */
    int64_t n_noted, n_sent;
} stage_run;

static int64_t nth_part(const stage_run *r, int64_t part)
{
    return part * r->group.ranks + r->group.rank;
}

static int64_t n_parts(const stage_run *r) { return r->group.ranks * r->schedule.n_parts; }

static void check_all(const stage_run *r, mt_tensor *x, double want)
{
    if (!mt_device_has_data(r->device)) return;
    double *got = mtt_doubles(x);
    for (int64_t i = 0; i < mt_numel(x); i++) MTT_NEED(got[i] == want);
    free(got);
}

static void note(stage_run *r) { r->allocated[r->n_noted++] = mtt_allocated(r->device); }

/* x of microbatch i is i + 1; every part doubles it, and the gradient on its way back. */
static void forward(stage_run *r, int64_t k)
{
    mti_turn turn = mti_schedule_at(&r->schedule, k, false);
    int64_t nth = nth_part(r, turn.part);
    double value = (double)((turn.micro + 1) << nth);
    mt_tensor *x = mt_zeros(r->device, MT_F32, MT_SHAPE(1, 1));
    if (nth == 0) mt_set(&x, mt_full(r->device, MT_F32, MT_SHAPE(2, WIDTH), value));
    MTT_NEED(x && mt_set_requires_grad(x, true) == MT_OK);
    r->inputs[k] = mt_retain(x);
    mt_set(&x, mt_expand(x, MT_SHAPE(2, WIDTH)));
    if (nth > 0) mt_set(&x, mt_recv(x, &r->group));
    MTT_NEED(x);
    check_all(r, x, value);
    mt_set(&x, mt_mul_scalar(x, 2));
    r->n_sent += nth + 1 < n_parts(r);
    if (nth + 1 < n_parts(r)) mt_set(&x, mt_send(x, &r->group));
    MTT_NEED(x);
    r->outputs[k] = x;
    note(r);
}

static int64_t forward_of(const stage_run *r, mti_turn turn)
{
    for (int64_t k = 0;; k++) {
        mti_turn t = mti_schedule_at(&r->schedule, k, false);
        if (t.micro == turn.micro && t.part == turn.part) return k;
    }
}

static void backward(stage_run *r, int64_t back)
{
    mti_turn turn = mti_schedule_at(&r->schedule, back, true);
    int64_t k = forward_of(r, turn), nth = nth_part(r, turn.part);
    double value = nth + 1 < n_parts(r) ? 0 : (double)(turn.micro + 3);
    MT_AUTO mt_tensor *dy = mt_full(r->device, MT_F32, MT_SHAPE(2, WIDTH), value);
    mt_tensor *y = r->outputs[k];
    MTT_NEED(dy && mt_backward_with(y, &(mt_backward_options){.gradient = dy}) == MT_OK);
    r->n_sent += nth > 0;
    double sum = nth == 0 ? 1 : 2 * WIDTH; /* of a wire, which is one element */
    check_all(r, mt_grad(r->inputs[k]), sum * (double)((turn.micro + 3) << (n_parts(r) - nth)));
    mt_release(y);
    mt_release(r->inputs[k]);
    note(r);
}

/* Takes the device over. Returns what was allocated after each turn; the caller's. */
static size_t *run(mt_comm *comm, mt_device *device, const mt_parallel *parallel)
{
    stage_run r = {.group = mt_comm_group(comm), .schedule = mti_schedule_of(parallel)};
    int64_t n = r.schedule.run * r.schedule.n_parts, next = 0;
    uint64_t before = mt_comm_sent(comm);
    double seconds = mt_comm_seconds(comm);
    r.device = device;
    r.inputs = calloc((size_t)n, sizeof *r.inputs);
    r.outputs = calloc((size_t)n, sizeof *r.outputs);
    r.allocated = calloc((size_t)(2 * n + 1), sizeof *r.allocated);
    MTT_NEED(r.device && r.inputs && r.outputs && r.allocated);
    MTT_NEED(mt_set_balance_check(r.device, true) == MT_OK);
    while (next < r.schedule.ahead) forward(&r, next++);
    for (int64_t back = 0; back < n; back++) {
        backward(&r, back);
        if (next < n) forward(&r, next++);
    }
    MTT_NEED(mt_comm_settle(comm) == MT_OK && mtt_allocated(r.device) == 0);
    uint64_t bytes = (uint64_t)r.n_sent * 2 * WIDTH * sizeof(float);
    MTT_NEED(mt_sent_get(r.device).stages == (r.group.ranks > 1 ? bytes : 0));
    if (mt_device_has_data(r.device))
        MTT_NEED(mt_comm_sent(comm) - before == mt_sent_get(r.device).stages);
    MTT_NEED(mt_comm_seconds(comm) - seconds > 0 || r.group.ranks == 1);
    mt_device_release(r.device);
    free(r.inputs);
    free(r.outputs);
    return r.allocated;
}

static void check_schedule(mt_comm *comm, int64_t interleave, int64_t microbatches)
{
    mt_group group = mt_comm_group(comm);
    mt_parallel parallel = {.tensor = 1,
                            .pipeline = group.ranks,
                            .interleave = interleave,
                            .stage = group.rank,
                            .microbatches = microbatches,
                            .data = 1};
    size_t *real = run(comm, mtt_device(), &parallel);
    size_t *meta = run(comm, mt_device_open("meta"), &parallel);
    MTT_NEED(!memcmp(real, meta, (size_t)(2 * interleave * microbatches) * sizeof *real));
    free(real);
    free(meta);
}

/* What is sent is held until it has arrived, and no longer; whatever its layout. */
static void check_layouts(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    static const mt_dtype dtypes[] = {MT_F32, MT_F64, MT_BF16, MT_F16};
    double values[2 * 3 * 5];
    for (int i = 0; i < 30; i++) values[i] = i - 11;
    mt_device *device = mtt_device();
    MTT_NEED(device && mt_set_balance_check(device, true) == MT_OK);
    for (int d = 0; d < 4; d++)
        for (mtt_layout layout = 0; layout < MTT_LAYOUT_COUNT; layout++) {
            MT_AUTO mt_tensor *want =
                mtt_laid_out(device, dtypes[d], 3, (int64_t[]){2, 3, 5}, values, MTT_DENSE);
            mt_tensor *x = mtt_laid_out(device, dtypes[d], 3, (int64_t[]){2, 3, 5}, values, layout);
            MT_AUTO mt_tensor *y = mt_send(x, &group);
            mt_release(x);
            MT_AUTO mt_tensor *one = mt_zeros(device, dtypes[d], MT_SHAPE(1, 1, 1));
            mt_set(&one, mt_expand(one, MT_SHAPE(2, 3, 5)));
            MT_AUTO mt_tensor *got = mt_recv(group.ranks > 1 ? one : y, &group);
            MTT_NEED(got && mtt_same_bits(got, want));
        }
    MTT_NEED(mtt_allocated(device) == 0);
    mt_device_release(device);
}

/* x may not change while it is on the way. On meta, where nobody reads it meanwhile. */
static void check_changed(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    mt_device *device = mt_device_open("meta");
    MT_AUTO mt_tensor *x = mt_zeros(device, MT_F32, MT_SHAPE(4));
    MT_AUTO mt_tensor *y = mt_send(x, &group);
    MTT_NEED(y && mt_fill(x, 1) == MT_OK);
    MT_AUTO mt_tensor *got = mt_recv(x, &group);
    if (group.ranks > 1) {
        MTT_NEED(!got);
        mtt_failed(MT_ERR_STATE, "send", "changed in place");
    }
    mt_device_release(device);
}

void mtt_check_stages(mt_comm *comm)
{
    int64_t stages = mt_comm_group(comm).ranks;
    for (int64_t n = 1; n <= 3 * stages; n++) check_schedule(comm, 1, n);
    for (int64_t interleave = 2; stages > 1 && interleave <= 3; interleave++)
        for (int64_t n = 1; n <= 3; n++) check_schedule(comm, interleave, n * stages);
    check_layouts(comm);
    check_changed(comm);
}
