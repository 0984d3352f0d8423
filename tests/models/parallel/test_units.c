/* ZeRO 3's units: what is gathered together, and what of their gradients is summed together. */
#include <string.h>
#include "as_ranks.h"

enum { SEQ = MTT_SEQ, MOST_PARAMS = 64 };

/* ---- parameters that backward does not reach ---- */

/* One rank's gradients after a backward. */
typedef struct gradients {
    const mt_model_config *config;
    mt_parallel parallel;
    const char *unreached; /* the end of their names */
    size_t n;
    double squares[MOST_PARAMS]; /* rank 0's; -1: there is no gradient */
} gradients;

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

static double squares_of(mt_tensor *grad)
{
    MT_AUTO mt_tensor *square = mt_mul(grad, grad), *sum = mt_sum_all(square);
    return sum ? mt_item(sum) : -2;
}

/* Forward is run with the parameters frozen, so that the tape does not lead to them. */
static void set_frozen(const gradients *g, const mt_named_tensor *list, bool frozen)
{
    for (size_t i = 0; i < g->n; i++)
        if (ends_in(list[i].name, g->unreached))
            MTT_NEED(mt_set_requires_grad(list[i].tensor, !frozen) == MT_OK);
}

static void find_gradients(mt_comm *world, void *user)
{
    gradients *g = user;
    mt_parallel h = g->parallel;
    const mt_named_tensor *list;
    size_t n = 0;
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    mt_device *device = mt_device_open("cpu");
    MTT_NEED(device && mt_device_set_threads(device, 1) == MT_OK);
    mt_seed(device, 3);
    mt_module *m = mt_rank_new(device, g->config, &h, 0);
    MTT_NEED(m && mt_module_params(m, &list, &n) == MT_OK && n < MOST_PARAMS);
    if (mt_comm_group(world).rank == 0) g->n = n;
    gradients own = *g;
    own.n = n;
    for (int step = 0; step < 2; step++) {
        MT_AUTO mt_tensor *ids = mt_zeros(device, MT_I64, MT_SHAPE(1, SEQ));
        set_frozen(&own, list, true);
        mt_tensor *y = mt_forward(m, ids);
        mt_set(&y, mt_cross_entropy(y, ids, MT_IGNORE));
        set_frozen(&own, list, false);
        MTT_NEED(y && mt_backward(y) == MT_OK);
        mt_release(y);
    }
    for (size_t i = 0; i < n && mt_comm_group(world).rank == 0; i++)
        g->squares[i] = mt_grad(list[i].tensor) ? squares_of(mt_grad(list[i].tensor)) : -1;
    mt_module_free(m);
    mt_device_release(device);
    mt_parallel_close(&h);
}

/* The others' gradients are summed at the end of backward, of each of several, as they are where
 * each is summed by itself. */
static void what_backward_does_not_reach_takes_no_other_gradient_with_it(void **state)
{
    (void)state;
    static const unsigned forms[] = {MT_FSDP_BLOCK, MT_FSDP_AHEAD,
                                     MT_FSDP_AHEAD | MT_FSDP_KEEP_LAST,
                                     MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT};
    static const char *const unreached[] = {"h.0.ln_1.weight", "mlp.fc.weight", "ln_f.weight"};
    mt_model_config c = mtt_models[MTT_GPT_UNTIED];
    for (size_t k = 0; k < sizeof unreached / sizeof *unreached; k++) {
        gradients by_module = {
            .config = &c, .parallel = {.data = 2, .zero = 3}, .unreached = unreached[k]};
        mtt_as_ranks(2, find_gradients, &by_module);
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
            gradients g = by_module;
            memset(g.squares, 0, sizeof g.squares);
            g.parallel.fsdp = forms[f];
            mtt_as_ranks(2, find_gradients, &g);
            assert_int_equal(g.n, by_module.n);
            size_t missing = 0;
            for (size_t i = 0; i < g.n; i++) {
                missing += g.squares[i] == -1;
                assert_true(g.squares[i] == by_module.squares[i]);
            }
            assert_int_equal(missing, k == 1 ? c.layers : 1);
        }
    }
}

/* ---- what is gathered, kept and summed otherwise ---- */

typedef struct form {
    mt_parallel parallel;
    const char *checkpoint;
    bool same_bits; /* sums are in the order of plain data parallelism */
} form;

#define GROUPED (MT_FSDP_AHEAD | MT_FSDP_GROUP_ENDS)
static const form forms[] = {
    {{.data = 2, .zero = 3, .fsdp = GROUPED}, NULL, true},
    {{.data = 3, .zero = 3, .fsdp = GROUPED, .reshard = MT_RESHARD_ALWAYS}, "full", true},
    {{.data = 2, .zero = 3, .fsdp = GROUPED, .reshard = MT_RESHARD_NEVER}, "every=2", true},
    {{.data = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK | MT_FSDP_GROUP_ENDS, .reduce_inputs = 3},
     NULL,
     true},
    {{.data = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK, .reshard = MT_RESHARD_NEVER, .microbatches = 2},
     "full",
     false},
    {{.data = 4, .zero = 3, .fsdp = GROUPED, .reshard = 2}, NULL, true},
    {{.data = 4, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT, .reshard = 2}, "ops", true},
    {{.data = 4, .zero = 3, .fsdp = GROUPED, .replicas = 2, .reduce_inputs = 2}, NULL, false},
    {{.data = 4, .zero = 3, .fsdp = MT_FSDP_BLOCK, .replicas = 2, .microbatches = 2}, NULL, false},
    {{.data = 4, .zero = 3, .replicas = 2}, "full", false},
    {{.data = 2, .zero = 3, .fsdp = GROUPED, .replicas = 2}, NULL, false},
    {{.tensor = 2, .data = 4, .zero = 3, .fsdp = GROUPED, .replicas = 2, .reshard = 2},
     NULL,
     false},
    {{.data = 2, .zero = 3, .fsdp = GROUPED | MT_FSDP_REDUCE_LAST, .microbatches = 3}, NULL, true},
    {{.data = 4,
      .zero = 3,
      .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT | MT_FSDP_REDUCE_LAST,
      .replicas = 2,
      .microbatches = 2},
     "selective",
     false},
    {{.data = 1, .zero = 3, .fsdp = GROUPED, .microbatches = 2}, "ops", true},
    {{.data = 2,
      .zero = 3,
      .pipeline = 2,
      .microbatches = 4,
      .fsdp = MT_FSDP_AHEAD | MT_FSDP_REDUCE_LAST,
      .reshard = MT_RESHARD_NEVER},
     NULL,
     false},
    {{.data = 2,
      .zero = 3,
      .pipeline = 2,
      .interleave = 2,
      .microbatches = 4,
      .fsdp = MT_FSDP_BLOCK | MT_FSDP_REDUCE_LAST,
      .reshard = MT_RESHARD_NEVER},
     "full",
     false},
};
enum { FORMS = sizeof forms / sizeof *forms };
static const int untied[] = {MTT_GPT_UNTIED, MTT_LLAMA};

static void every_form_trains_as_plain_ranks_do(void **state)
{
    (void)state;
    for (size_t k = 0; k < FORMS; k++)
        for (size_t i = 0; i < 2; i++) {
            if (!mtt_is_taken(i, k)) continue;
            mt_model_config c = mtt_models[untied[i]];
            c.layers = 4;
            mtt_training t = {.config = &c,
                              .parallel = forms[k].parallel,
                              .checkpoint = forms[k].checkpoint,
                              .max_norm = 1};
            mtt_training plain = t;
            plain.parallel = (mt_parallel){.tensor = t.parallel.tensor,
                                           .data = t.parallel.data,
                                           .pipeline = t.parallel.pipeline,
                                           .interleave = t.parallel.interleave,
                                           .microbatches = t.parallel.microbatches};
            mtt_train(&plain);
            mtt_train(&t);
            const double difference = mtt_difference(&plain, &t);
            mtt_show(mtt_model_names[untied[i]], &t.parallel, difference, "plain ranks");
            assert_true(difference < MTT_ROUNDING);
            if (forms[k].same_bits) assert_memory_equal(plain.losses, t.losses, sizeof t.losses);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_trains_as_plain_ranks_do),
        cmocka_unit_test(what_backward_does_not_reach_takes_no_other_gradient_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
