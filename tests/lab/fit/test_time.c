/* The model of a step's time, by numbers that can be worked out by hand. */
#include <math.h>
#include "fit/search.h"
#include "mtt.h"

/* A GPU that does 1000 FLOP, moves 100 bytes of memory, and sends 10 bytes in its node and 2 to
 * others in a second. */
static const mt_gpu gpu = {.name = "slow",
                           .memory = 1 << 20,
                           .flops = 1000,
                           .bandwidth = 100,
                           .link = 10,
                           .network = 2,
                           .host = 5,
                           .in_a_node = 4};

static mti_workload workload(mt_dtype dtype)
{
    return (mti_workload){.config = {.dtype = dtype}, .optimizer = MTI_OPT_ADAMW};
}

static mt_fit_time time_of(const mti_workload *w, mt_parallel h, double utilisation,
                           const mti_measurement *work)
{
    const mti_fit_task task = {.workload = w, .gpu = gpu, .utilisation = utilisation};
    const mt_fit_setup s = {.parallel = h};
    return mti_fit_time_of(&task, &s, work);
}

static void near(double x, double y)
{
    if (fabs(x - y) > 1e-12 * fabs(y)) fail_msg("%.17g, need %.17g", x, y);
}

static const mt_parallel alone = {
    .tensor = 1, .pipeline = 1, .interleave = 1, .data = 1, .microbatches = 1};

static void products_memory_and_the_optimizer_add_up(void **state)
{
    (void)state;
    const mti_workload w = workload(MT_F32);
    const mti_measurement work = {.steady.flops = {1000, 2000, 500},
                                  .steady.traffic = {.products = 1 << 20, .others = 250},
                                  .grad_bytes = 40,       /* 10 elements */
                                  .optimizer_bytes = 80}; /* two moments */
    mt_fit_time t = time_of(&w, alone, 0.5, &work);
    near(t.products, 7); /* 3500 FLOP at 500 a second */
    near(t.memory, 2.5); /* the bytes of products are not the memory's */
    near(t.step, 2.8);   /* gradients read, parameters and moments read and written: 280 bytes */
    near(t.total, 12.3);
    near(t.layers + t.stages + t.bubble + t.data + t.host, 0);
    mti_workload idle = w;
    idle.optimizer = MTI_OPT_NONE;
    near(time_of(&idle, alone, 0.5, &work).total, 9.5);
}

static void layers_are_in_a_node_and_stages_may_not_be(void **state)
{
    (void)state;
    const mti_workload w = workload(MT_F32);
    const mti_measurement work = {.steady.flops = {1000, 2000, 0},
                                  .steady.sent = {.layers = 50, .stages = 20}};
    mt_parallel h = {.tensor = 2, .pipeline = 2, .interleave = 1, .data = 1, .microbatches = 4};
    mt_fit_time t = time_of(&w, h, 1, &work);
    near(t.layers, 5);
    near(t.stages, 2);                     /* four GPUs: all in a node */
    near(t.bubble, (3.0 + 5 + 2) * 1 / 4); /* (p-1)/m */
    near(t.total, 12.5);
    h.data = 2; /* eight GPUs: stages in other nodes, through the cards of ... */
    t = time_of(&w, h, 1, &work);
    near(t.stages, 10); /* ... one GPU, as a stage has a node to itself */
    h.interleave = 5;
    near(time_of(&w, h, 1, &work).bubble, (3.0 + 5 + 10) * 1 / 20);
}

static void zero_sends_what_its_stage_says(void **state)
{
    (void)state;
    mti_workload w = workload(MT_F32);
    mt_parallel h = alone;
    h.data = 4;
    const mti_measurement none = {.grad_bytes = 400};   /* 100 elements; nothing is computed */
    const mti_measurement pieces = {.grad_bytes = 100}; /* of the same */
    near(time_of(&w, h, 1, &none).data, 60);            /* 2 x 3/4 x 400 bytes at 10 a second */
    near(time_of(&w, h, 1, &none).step, 12);            /* all 100 elements: 12 bytes each */
    h.zero = 1;
    near(time_of(&w, h, 1, &none).data, 60); /* 3/4 of gradients, and of parameters */
    near(time_of(&w, h, 1, &none).step, 3);
    h.zero = 2;
    near(time_of(&w, h, 1, &pieces).data, 30); /* parameters; gradients are counted ops */
    h.zero = 3;
    mti_measurement counted = {.grad_bytes = 100, .steady.sent = {.shards = 900}};
    near(time_of(&w, h, 1, &counted).data, 90);
    counted.steady.flops.forward = 30000; /* half a minute hides as much */
    near(time_of(&w, h, 1, &counted).data, 60);
    h.microbatches = 3, h.zero = 0;
    const mti_measurement working = {.grad_bytes = 400, .steady.flops = {30000, 0, 0}};
    near(time_of(&w, h, 1, &working).data, 50); /* the last microbatch hides 10 s of 60 */
    w = workload(MT_BF16);
    w.memory.f32_gradients = true, h.zero = 1; /* 100 elements: 400 and 200 bytes */
    near(time_of(&w, h, 1, &none).data, 45);
    h.zero = 2; /* what is sent often has all microbatches to hide behind, the rest the last one */
    mti_measurement both = {
        .grad_bytes = 100, .steady.flops = {90000, 0, 0}, .steady.sent = {.shards = 800}};
    near(time_of(&w, h, 1, &both).data,
         5); /* 80 s and 3/4 x 200 bytes, 15 s: 95 s, 90 s computed */
    both.steady.sent.shards = 0;
    near(time_of(&w, h, 1, &both).data, 0);
    both.steady.flops.forward = 30000;
    near(time_of(&w, h, 1, &both).data, 5);
}

static void a_group_that_spans_nodes_uses_the_cards_of_all_its_ranks_there(void **state)
{
    (void)state;
    const mti_workload w = workload(MT_F32);
    const mti_measurement work = {.grad_bytes = 400};
    mt_parallel h = alone;
    h.data = 8;
    near(time_of(&w, h, 1, &work).data, 700 / 8.0); /* four cards of 2 bytes */
    h.tensor = 2;
    near(time_of(&w, h, 1, &work).data, 700 / 4.0);
    h.tensor = 4;
    near(time_of(&w, h, 1, &work).data, 700 / 2.0);
}

static void the_host_takes_while_forward_runs_and_gives_while_backward_runs(void **state)
{
    (void)state;
    const mti_workload w = workload(MT_F32);
    const mti_measurement work = {.steady.flops = {4000, 8000, 0}, .steady.offloaded = 30};
    mt_fit_time t = time_of(&w, alone, 1, &work); /* 6 s there, 6 s back; 4 and 8 s computed */
    near(t.host, 2);
    near(t.total, 14);
}

static void the_least_time_has_the_bubble(void **state)
{
    (void)state;
    const mti_workload w = workload(MT_F32);
    const mti_fit_task task = {.workload = &w, .gpu = gpu, .gpus = 4, .utilisation = 0.5};
    mt_parallel h = {.tensor = 1, .pipeline = 4, .interleave = 2, .data = 1, .microbatches = 6};
    double least = mti_fit_least_time(&task, &h, 8000, 2), exact = (4 + 2) * (1 + 3.0 / 12);
    assert_true(least <= exact && least > exact * (1 - 1e-8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_memory_and_the_optimizer_add_up),
        cmocka_unit_test(layers_are_in_a_node_and_stages_may_not_be),
        cmocka_unit_test(zero_sends_what_its_stage_says),
        cmocka_unit_test(a_group_that_spans_nodes_uses_the_cards_of_all_its_ranks_there),
        cmocka_unit_test(the_host_takes_while_forward_runs_and_gives_while_backward_runs),
        cmocka_unit_test(the_least_time_has_the_bubble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
