/* What meta predicts for a rank is what the rank takes, whatever its device is given: device
 * options, models and divisions are drawn, and threads of the test stand for the ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../models/parallel/as_ranks.h"
#include "base/base.h"
#include "measure/rank.h"

enum { MOST_THREADS = 6 };

/* Its pages are 2 MiB, and its simulator is slow. */
static bool is_gpu(void)
{
    const char *kind = getenv("MTT_DEVICE");
    return kind && strcmp(kind, "cpu") != 0;
}

static int count_draws(void)
{
    static const int draws[2][2] = {{48, 480}, {8, 48}};
    return draws[is_gpu()][mtt_long()];
}

static int64_t below(uint64_t *state, int64_t n) { return (int64_t)mtt_draw(state, 0, (double)n); }

static mti_device_options draw_device(uint64_t *state)
{
    static const size_t granules[2][3] = {{0, 4096, 65536}, {0, 2 << 20, 4 << 20}};
    mti_device_options o = {.kind = is_gpu() ? getenv("MTT_DEVICE") : "cpu",
                            .threads = below(state, MOST_THREADS + 1)};
    if (below(state, 3) == 0) o.capacity = (size_t)1 << 30; /* more than any of them takes */
    o.expandable = below(state, 2) == 0;
    if (o.expandable)
        o.granule = granules[is_gpu()][below(state, 3)], o.reclaim = below(state, 2) == 0;
    return o;
}

static mt_parallel draw_division(uint64_t *state)
{
    mt_parallel h = {.microbatches = 1 + below(state, 3)};
    switch (below(state, 4)) {
    case 0: h.tensor = 2, h.sequence = below(state, 2) == 0; break;
    case 1: h.pipeline = 2, h.microbatches = 2 * (1 + below(state, 2)); break;
    case 2: h.context = 2; break;
    default: h.data = 2;
    }
    if (below(state, 4) == 0) {
        if (h.tensor) h.data = 2;
        if (h.pipeline) h.tensor = 2;
    }
    if (h.data || h.context) h.zero = (int)below(state, 4);
    return h;
}

/* Products in 16 bits have scratch memory for each thread. */
static mti_workload draw_workload(uint64_t *state)
{
    static const mt_dtype dtypes[] = {MT_BF16, MT_BF16, MT_F16, MT_F32};
    mti_workload w = {.name = "it", .batch = 1 + below(state, 3), .seq = 16 << below(state, 4)};
    w.config = mtt_models[below(state, MTT_MODELS)];
    w.config.hidden = 64, w.config.ffn = 0, w.config.context = 128, w.config.vocab = 64;
    w.config.dtype = dtypes[below(state, 4)];
    w.config.attention = below(state, 2) ? MT_ATTENTION_FLASH : MT_ATTENTION_MATH;
    w.ranked = true;
    w.parallel = draw_division(state);
    w.memory.master = below(state, 2) == 0;
    if (below(state, 4) == 0) w.memory.checkpoint = "full";
    w.device = draw_device(state);
    return w;
}

static void describe(const mti_workload *w, char *text, size_t size)
{
    const mt_parallel *h = &w->parallel;
    const mti_device_options *d = &w->device;
    snprintf(text, size,
             "tp %d cp %d dp %d pp %d zero %d, %d x %d of %s in %s; %d threads, capacity %zu, "
             "expandable %d, granule %zu, reclaim %d",
             (int)h->tensor, (int)h->context, (int)h->data, (int)h->pipeline, (int)h->zero,
             (int)w->batch, (int)w->seq, mt_model_kind_name(w->config.kind),
             mt_dtype_name(w->config.dtype), (int)d->threads, d->capacity, d->expandable,
             d->granule, d->reclaim);
}

typedef struct twin {
    const mti_workload *workload;
    size_t differences[8]; /* of the ranks, in bytes */
} twin;

static void compare(mt_comm *world, void *user)
{
    twin *t = user;
    mti_rank_run r = {0};
    mti_workload w = *t->workload;
    MTT_NEED(mt_parallel_place(&w.parallel, world) == MT_OK);
    w.rank = mt_comm_group(world).rank;
    MTT_NEED(mti_rank_run_predict(&r, &w, "need less") &&
             mti_rank_run_measure(&r, &w, "need less"));
    t->differences[w.rank] = mti_rank_run_difference(&r.figures);
    mti_rank_run_free(&r);
    mt_parallel_close(&w.parallel);
}

static void a_rank_takes_what_meta_predicts_whatever_its_device_is_given(void **state)
{
    (void)state;
    uint64_t drawn = 41;
    size_t wrong = 0;
    for (int i = 0; i < count_draws(); i++) {
        mti_workload w = draw_workload(&drawn);
        mt_model_config given = w.config;
        twin t = {.workload = &w};
        mtt_ok(mt_model_config_resolve(&given, &w.config));
        mtt_as_ranks(mtt_count_ranks(&w.parallel), compare, &t);
        for (int rank = 0; rank < 8; rank++) {
            char text[400];
            if (!t.differences[rank]) continue;
            describe(&w, text, sizeof text);
            print_error("rank %d differs by %zu bytes: %s\n", rank, t.differences[rank], text);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_takes_what_meta_predicts_whatever_its_device_is_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
