/* Where it is known which experts the tokens take, meta counts the scratch memory of their products
 * as the CPU takes it: the routing of a model on the CPU is recorded, and told to meta. */
#include <stdio.h>
#include "mtt.h"
#include "base/base.h"
#include "workload/routing.h"
#include "measure/two_steps.h"
#include "nn/model.h"

/* With few tokens to an expert, and with many; of moe-tiny, whose experts are narrow. */
typedef struct mixture {
    const char *name;
    mt_expert_form form;
    int64_t batch, seq, experts, k;
    double capacity;
    bool padded;
    const char *checkpoint;
    mti_offload_choice offload;
    bool qlora;
} mixture;

static const mixture mixtures[] = {
    {"grouped", MT_EXPERTS_GROUPED, 2, 64, 8, 2},
    {"few experts", MT_EXPERTS_GROUPED, 4, 64, 2, 1},
    {"many experts", MT_EXPERTS_GROUPED, 1, 64, 16, 4},
    {"torchtitan", MT_EXPERTS_TORCHTITAN, 2, 64, 4, 2},
    {"torchtitan before", MT_EXPERTS_TORCHTITAN_BEFORE, 2, 64, 4, 2},
    {"megatron", MT_EXPERTS_MEGATRON, 2, 64, 4, 2},
    {"loop", MT_EXPERTS_LOOP, 2, 64, 4, 2},
    {"bounded", MT_EXPERTS_MEGATRON, 2, 64, 4, 2, .capacity = 0.8},
    {"padded", MT_EXPERTS_MEGATRON, 2, 64, 4, 2, .capacity = 1.2, .padded = true},
    {"checkpoints", MT_EXPERTS_GROUPED, 2, 64, 4, 2, .checkpoint = "full"},
    {"offload", MT_EXPERTS_GROUPED, 2, 64, 4, 2, .offload = MTI_OFFLOAD_CPU},
    {"offload to disk", MT_EXPERTS_GROUPED, 2, 64, 4, 2, .offload = MTI_OFFLOAD_DISK},
    {"codes", MT_EXPERTS_GROUPED, 2, 64, 4, 2, .qlora = true},
};

static mti_workload workload_of(const mixture *m, mt_dtype dtype, int64_t threads)
{
    mti_workload w = {.name = "it", .batch = m->batch, .seq = m->seq, .optimizer = MTI_OPT_NONE};
    mt_model_config c;
    mtt_ok(mt_model_preset("moe-tiny", &c));
    c.dtype = dtype, c.experts = m->experts, c.experts_per_token = m->k;
    c.ops.expert_form = m->form, c.expert_capacity = m->capacity, c.expert_padding = m->padded;
    mtt_ok(mt_model_config_resolve(&c, &w.config));
    w.memory = (mti_memory_options){
        .checkpoint = m->checkpoint, .offload = m->offload, .lora_rank = m->qlora ? 4 : 0};
    w.memory.qlora = m->qlora;
    w.device = (mti_device_options){.kind = "cpu", .threads = threads};
    return w;
}

/* Steps without an optimizer have the same weights and inputs, and so the same routing. */
static void record(const mti_workload *w, const char *path)
{
    mti_subject s = {0};
    mti_recorder recorder;
    mt_device *device = mti_device_make(&w->device);
    assert_true(device && mti_subject_make(&s, device, w, false));
    assert_true(mti_recorder_start(&recorder, s.stage.parts[0], &w->config));
    mt_release(mtt_made(mt_forward(s.stage.parts[0], s.input)));
    assert_true(mti_recorder_write(&recorder, path));
    mti_recorder_free(&recorder);
    mti_subject_free(&s);
    mt_device_release(device);
}

/* The scratch memory of two steps: how often it was asked for, and for how much in all. */
typedef struct scratch {
    size_t n, bytes, peak; /* peak: of all memory */
} scratch;

static void note(void *user, const mt_mem_event *e)
{
    scratch *s = user;
    if (e->kind == MT_MEM_ALLOC && e->category == MT_WORKSPACE) s->n++, s->bytes += e->requested;
    if (e->current > s->peak) s->peak = e->current;
}

static scratch measure(const mti_workload *w)
{
    mti_measurement m;
    scratch s = {0};
    mt_device *device = mti_device_make(&w->device);
    int observer = mt_mem_add_observer(device, note, &s);
    if (!mti_measure(&m, device, w, NULL)) fail_msg("%s", mt_last_error());
    mti_measurement_free(&m);
    mt_mem_remove_observer(device, observer);
    mt_device_release(device);
    return s;
}

static int compare(const mixture *m, mt_dtype dtype, int64_t threads, const char *path)
{
    char routing[MTT_PATH + 16];
    mti_workload w = workload_of(m, dtype, threads);
    record(&w, path);
    const scratch cpu = measure(&w);
    snprintf(routing, sizeof routing, "recorded=%s", path);
    w.device = mti_device_twin(&w.device);
    w.routing = routing;
    const scratch meta = measure(&w);
    if (meta.n == cpu.n && meta.bytes == cpu.bytes && meta.peak == cpu.peak) return 0;
    print_error("%s in %s, %d threads: meta has %zu bytes of scratch in %zu calls, peak %zu; the "
                "CPU %zu in %zu, %zu\n",
                m->name, mt_dtype_name(dtype), (int)threads, meta.bytes, meta.n, meta.peak,
                cpu.bytes, cpu.n, cpu.peak);
    return 1;
}

static void known_rows_have_the_scratch_memory_of_the_cpu(void **state)
{
    (void)state;
    static const mt_dtype dtypes[] = {MT_F32, MT_BF16, MT_F16};
    char path[MTT_PATH];
    int different = 0;
    mtt_temporary_file(path);
    for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++)
        for (size_t d = 0; d < 3; d++)
            for (int64_t threads = 1; threads < 4; threads += 2)
                different += compare(&mixtures[i], dtypes[d], threads, path);
    remove(path);
    assert_int_equal(different, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_rows_have_the_scratch_memory_of_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
