/* Ranks that train adapters follow the curve of one process that trains them; their files are those
 * of one process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "as_ranks.h"
#include "base/base.h"
#include "memtape/models/io.h"

enum { BATCH = MTT_BATCH, SEQ = MTT_SEQ };
#define MAX_NORM 1.0
#define N(list)  (sizeof(list) / sizeof *(list))

/* Beside every linear; beside some. */
static const char *const some[] = {"*attn.*", "*mlp.*"};
static const mt_lora_options everywhere = {.rank = 4, .alpha = 8};
static const mt_lora_options in_attention = {.rank = 3, .n_targets = 1, .targets = some};
static const mt_lora_options in_layers = {.rank = 3, .n_targets = 2, .targets = some};
static const char *const first_layer[] = {"h.0.*"}; /* other stages have none */
static const mt_lora_options in_first_layer = {.rank = 2, .n_targets = 1, .targets = first_layer};
static const mt_lora_options in_4_bits = {.rank = 4, .alpha = 8, .base = MT_LORA_NF4};
static const mt_lora_options in_4_bits_twice = {
    .rank = 3, .n_targets = 2, .targets = some, .base = MT_LORA_NF4_DOUBLE};

/* ---- curves ---- */

static void follows_one_process(int model, const mt_lora_options *lora, const mt_parallel *split,
                                const char *checkpoint)
{
    static const char *const checkpoints[] = {"none", "full", "selective"};
    mt_model_config c = mtt_models[model];
    c.layers = 4;
    mtt_training alone = {.config = &c, .lora = lora, .parallel = *split, .max_norm = MAX_NORM};
    mtt_training t = alone;
    t.checkpoint = checkpoint ? checkpoint : checkpoints[model % 3];
    mtt_train_alone(&alone);
    if (mtt_long()) /* a few steps do not show that it learns */
        assert_true(alone.losses[mtt_steps() - 1] < alone.losses[0] - 0.02);
    mtt_train(&t);
    mtt_show(mtt_model_names[model], split, mtt_difference(&alone, &t), "one process");
    assert_true(mtt_difference(&alone, &t) < MTT_ROUNDING);
}

static void ranks_with_adapters_follow_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.data = 1},
        {.data = 4, .zero = 2},
        {.tensor = 2},
        {.tensor = 4, .sequence = true, .microbatches = 2},
        {.tensor = 2, .data = 2, .zero = 1},
        {.tensor = 2, .sequence = true, .data = 2, .zero = 3},
        {.context = 2, .data = 2, .zero = 2},
        {.tensor = 2, .sequence = true, .context = 2},
        {.pipeline = 2, .interleave = 2, .microbatches = 2},
        {.tensor = 2, .sequence = true, .pipeline = 2, .data = 2, .zero = 3, .microbatches = 3},
        {.data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_LAST},
        {.pipeline = 2, .data = 2, .zero = 3, .microbatches = 3, .fsdp = MT_FSDP_AHEAD},
        {.data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT},
        {.data = 4, .zero = 3, .fsdp = MT_FSDP_BLOCK | MT_FSDP_KEEP_ROOT, .replicas = 2},
    };
    static const mt_lora_options *const adapters[] = {&everywhere, &in_attention, &in_layers};
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; k < N(splits); k++)
            if (mtt_long() || (((size_t)i + 2 * k) % 3 == 0 && mtt_turn((size_t)i + k)))
                follows_one_process(i, adapters[((size_t)i + k) % N(adapters)], &splits[k], NULL);
    const mt_parallel stages = {.pipeline = 4, .data = 2, .zero = 2, .microbatches = 4};
    follows_one_process(MTT_LLAMA, &in_first_layer, &stages, "full");
}

static void ranks_beside_weights_in_4_bits_follow_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {{.data = 2, .zero = 1},
                                         {.context = 2, .data = 2, .zero = 2},
                                         {.pipeline = 4, .microbatches = 4},
                                         {.pipeline = 2, .data = 2, .zero = 2, .microbatches = 2}};
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; k < N(splits); k++)
            if (mtt_is_taken((size_t)i, k))
                follows_one_process(i, k % 2 ? &in_4_bits : &in_4_bits_twice, &splits[k], "full");
}

/* A mixture of experts, with adapters beside the experts' products and on their weights. */
static void ranks_with_experts_follow_one_process(void **state)
{
    (void)state;
    static const char *const experts[] = {"*experts_*", "*attn.v"};
    static const mt_parallel splits[] = {{.data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD},
                                         {.pipeline = 2, .data = 2, .zero = 2, .microbatches = 2},
                                         {.context = 2}};
    mt_model_config c = mtt_models[MTT_LLAMA];
    c.experts = 3, c.experts_per_token = 2, c.layers = 2;
    for (size_t k = 0; k < N(splits); k++)
        for (int form = 0; form < 3; form++) {
            const mt_lora_options lora = {.rank = 2,
                                          .n_targets = 2,
                                          .targets = experts,
                                          .on_weights = form == 1,
                                          .base = form == 2 ? MT_LORA_NF4 : MT_LORA_KEEP};
            if (form && splits[k].zero == 3) continue;
            mtt_training alone = {
                .config = &c, .lora = &lora, .parallel = splits[k], .max_norm = MAX_NORM};
            mtt_training t = alone;
            mtt_train_alone(&alone), mtt_train(&t);
            assert_true(mtt_difference(&alone, &t) < MTT_ROUNDING);
        }
}

/* A tied weight is frozen: nothing is added in another order, at stage 3 neither. The first model
 * once more in 16 bits, beside which adapters are f32. */
static void zero_has_the_bits_of_plain_data_parallelism(void **state)
{
    (void)state;
    static const mt_lora_options in_f32 = {.rank = 4, .alpha = 8, .f32_adapters = true};
    mt_model_config narrow = mtt_models[0];
    narrow.dtype = MT_BF16;
    for (int i = 0; i <= MTT_MODELS; i++) {
        const bool all = i < MTT_MODELS;
        mtt_training plain = {.config = all ? &mtt_models[i] : &narrow,
                              .lora = all ? &everywhere : &in_f32,
                              .parallel.data = 4,
                              .max_norm = MAX_NORM};
        mtt_train(&plain);
        for (int zero = 1; zero <= 3; zero++) {
            if (!mtt_is_taken((size_t)i, (size_t)zero)) continue;
            mtt_training t = plain;
            t.parallel.zero = zero;
            mtt_train(&t);
            assert_memory_equal(plain.losses, t.losses, sizeof t.losses);
        }
    }
}

/* ---- blocks that are gathered ahead ---- */

/* Parameters on the device after a step's backward, of which the last layer alone has adapters. */
static size_t kept_after_backward(unsigned fsdp, const char *checkpoint)
{
    static const char *const last_layer[] = {"h.3.*"};
    const mt_lora_options lora = {.rank = 2, .n_targets = 1, .targets = last_layer};
    const mt_parallel h = {.data = 2, .zero = 3, .fsdp = fsdp};
    mt_model_config c = mtt_models[MTT_LLAMA];
    c.layers = 4;
    mt_device *meta = mt_device_open("meta");
    mt_stage *stage = mt_stage_new_lora(meta, &c, &h, &lora);
    mtt_ok(mt_model_checkpoint(mt_stage_part(stage, 0), checkpoint));
    mt_tensor *ids = mt_zeros(meta, MT_I64, MT_SHAPE(2, SEQ));
    mtt_ok(mt_stage_backward(stage, &ids, &ids, NULL));
    size_t n_bytes = mtt_allocated_as(meta, MT_PARAMETER);
    mt_release(ids);
    mt_stage_free(stage);
    mt_device_release(meta);
    return n_bytes;
}

static void what_comes_for_a_layer_without_a_backward_goes_with_the_backward_before(void **state)
{
    (void)state;
    static const char *const checkpoints[] = {"none", "full", "selective", "ops"};
    for (size_t i = 0; i < N(checkpoints); i++)
        for (unsigned root = 0; root <= MT_FSDP_KEEP_ROOT; root += MT_FSDP_KEEP_ROOT)
            assert_int_equal(kept_after_backward(MT_FSDP_AHEAD | root, checkpoints[i]),
                             kept_after_backward(0, checkpoints[i]));
}

/* ---- files ---- */

static char folder[64], one[128], two[128], adapters_of_one[128], adapters_of_two[128];

static int make_folder(void **state)
{
    (void)state;
    /* Thousands of files are synced: a folder in memory where there is one. */
    snprintf(folder, sizeof folder, "%s/mtt-lora-%ld",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (long)getpid());
    snprintf(one, sizeof one, "%s/one", folder);
    snprintf(two, sizeof two, "%s/two", folder);
    snprintf(adapters_of_one, sizeof adapters_of_one, "%s/adapters-of-one", folder);
    snprintf(adapters_of_two, sizeof adapters_of_two, "%s/adapters-of-two", folder);
    return mkdir(folder, 0700);
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(one), unlink(two), unlink(adapters_of_one), unlink(adapters_of_two);
    return rmdir(folder);
}

typedef struct passed {
    mt_model_config config;
    const mt_lora_options *lora;
    mt_parallel layout;
    bool weights_alone;
} passed;

/* What one process writes after a step; without adapters only weights. */
static void write_alone(const passed *p)
{
    mt_device *device = mt_device_open("cpu");
    mt_seed(device, 5);
    mt_module *model = mt_model_new(device, &p->config);
    if (p->lora) mtt_ok(mt_lora_add(model, p->lora, NULL));
    mt_optimizer *optimizer = mt_adamw_new(model, &mtt_adamw);
    for (int step = 0; p->lora && step < 2; step++) {
        mt_tensor *x = mt_zeros(device, MT_I64, MT_SHAPE(2, 8));
        mt_tensor *loss = mt_model_forward_loss(model, x, x);
        mtt_ok(mt_backward(mtt_made(loss)));
        mtt_ok(mt_optimizer_step(optimizer));
        mtt_ok(mt_module_zero_grad(model));
        mt_release(x), mt_release(loss);
    }
    mtt_ok(mt_checkpoint_save(one, model, p->lora ? optimizer : NULL, 2, 0, NULL));
    if (p->lora) mtt_ok(mt_lora_save(adapters_of_one, model));
    mt_optimizer_free(optimizer);
    mt_module_free(model);
    mt_device_release(device);
}

/* Reads the file of one process and writes it again. Of one without adapters: weights alone, beside
 * which the adapters keep their first values. */
static void pass_on(mt_comm *world, void *user)
{
    const passed *p = user;
    mt_parallel h = p->layout;
    mt_device *device = mt_device_open("cpu");
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK && mt_device_set_threads(device, 1) == MT_OK);
    mt_seed(device, 6); /* of a whole run what is loaded replaces it */
    mt_stage *stage = mt_stage_new_lora(device, &p->config, &h, p->lora);
    mt_optimizer *optimizer = stage ? mt_adamw_new(mt_stage_stepped(stage), &mtt_adamw) : NULL;
    mt_safetensors *file = mt_safetensors_open(one);
    MTT_NEED(optimizer && file);
    if (p->weights_alone)
        MTT_NEED(mt_stage_load_weights(file, stage) == MT_OK);
    else
        MTT_NEED(mt_stage_load(file, stage, optimizer, NULL) == MT_OK);
    mt_safetensors_free(file);
    mt_optimizer *stepped = p->weights_alone ? NULL : optimizer;
    MTT_NEED(mt_stage_save(two, stage, stepped, world, p->weights_alone ? 0 : 2, 0, NULL) == MT_OK);
    MTT_NEED(mt_stage_save_lora(adapters_of_two, stage, world) == MT_OK);
    mt_optimizer_free(optimizer);
    mt_stage_free(stage);
    mt_device_release(device);
    mt_parallel_close(&h);
}

static const mt_parallel layouts[] = {
    {.tensor = 2},
    {.tensor = 4, .sequence = true},
    {.tensor = 2, .data = 3, .zero = 3},
    {.data = 5, .zero = 1},
    {.data = 5, .zero = 2},
    {.context = 2, .data = 2, .zero = 1},
    {.pipeline = 2, .interleave = 2},
    {.pipeline = 4, .data = 2, .zero = 2},
};

/* The layouts of weights in 4 bits. */
static bool fits(const mt_lora_options *lora, const mt_parallel *h)
{
    return lora->base == MT_LORA_KEEP || (h->tensor < 2 && h->zero < 3);
}

static void both_files_come_back_from_any_ranks_to_the_byte(void **state)
{
    (void)state;
    static const mt_lora_options *const adapters[] = {&everywhere, &in_attention, &in_first_layer,
                                                      &in_4_bits, &in_4_bits_twice};
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t a = 0; a < N(adapters); a++) {
            passed p = {.config = mtt_models[i], .lora = adapters[a]};
            p.config.layers = 4;
            write_alone(&p);
            for (size_t k = 0; k < N(layouts); k++) {
                if (!fits(p.lora, &layouts[k]) || !mtt_is_taken((size_t)i + a, k)) continue;
                p.layout = layouts[k];
                unlink(two), unlink(adapters_of_two);
                mtt_as_ranks(mtt_count_ranks(&p.layout), pass_on, &p);
                bool same =
                    mtt_same_files(one, two) && mtt_same_files(adapters_of_one, adapters_of_two);
                if (!same)
                    print_message("%s, adapters %zu, layout %zu\n", mtt_model_names[i], a, k);
                assert_true(same);
            }
        }
}

static void adapters_begin_beside_weights_of_a_file(void **state)
{
    (void)state;
    static const mt_lora_options *const adapters[] = {&everywhere, &in_4_bits, &in_4_bits_twice};
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t a = 0; a < N(adapters); a++) {
            passed p = {.config = mtt_models[i]};
            p.config.layers = 4;
            write_alone(&p);
            mt_device *device = mt_device_open("cpu"); /* one process that begins from the file */
            mt_seed(device, 6);
            mt_module *model = mt_model_new(device, &p.config);
            mt_safetensors *file = mt_safetensors_open(one);
            mtt_ok(mt_safetensors_load_module(file, model));
            mt_safetensors_free(file);
            mtt_ok(mt_lora_add(model, adapters[a], NULL));
            mtt_ok(mt_checkpoint_save(adapters_of_one, model, NULL, 0, 0, NULL));
            mt_module_free(model);
            mt_device_release(device);
            p.lora = adapters[a];
            p.weights_alone = true;
            for (size_t k = 0; k < N(layouts); k++) {
                if (!fits(p.lora, &layouts[k]) || !mtt_is_taken((size_t)i + a, k)) continue;
                p.layout = layouts[k];
                unlink(two);
                mtt_as_ranks(mtt_count_ranks(&p.layout), pass_on, &p);
                assert_true(mtt_same_files(adapters_of_one, two));
            }
        }
}

/* ---- what fails ---- */

static void refuse(mt_comm *world, void *user)
{
    (void)user;
    static const mt_lora_options dropped = {.rank = 2, .dropout = 0.1};
    const mt_model_config *c = &mtt_models[MTT_GPT_UNTIED];
    mt_parallel tensor = {.tensor = 2}, data = {.data = 2, .zero = 3};
    MTT_NEED(mt_parallel_place(&tensor, world) == MT_OK);
    MTT_NEED(mt_parallel_place(&data, world) == MT_OK);
    mt_device *device = mt_device_open("cpu");
    MTT_NEED(!mt_stage_new_lora(device, c, &tensor, &dropped));
    MTT_NEED(strstr(mt_last_error(), "dropout 0.1"));
    MTT_NEED(!mt_stage_new_lora(device, c, &tensor, &in_4_bits));
    MTT_NEED(strstr(mt_last_error(), "4 bits among 2 tensor ranks"));
    MTT_NEED(!mt_stage_new_lora(device, c, &data, &in_4_bits));
    MTT_NEED(strstr(mt_last_error(), "ZeRO 3 gathers floats"));
    mt_stage *plain = mt_stage_new(device, c, &data);
    MTT_NEED(plain && mt_stage_save_lora("/nowhere/x", plain, world) == MT_ERR_STATE);
    MTT_NEED(strstr(mt_last_error(), "no adapters"));
    mt_stage_free(plain);
    mt_stage *stage = mt_stage_new_lora(device, c, &data, &everywhere);
    MTT_NEED(stage && mt_stage_save_lora("/nowhere/x", stage, world) == MT_ERR_IO);
    MTT_NEED(strstr(mt_last_error(), "rank 0 of 2") && strstr(mt_last_error(), "/nowhere/x"));
    mt_stage_free(stage);
    mt_clear_error();
    mt_device_release(device);
    mt_parallel_close(&tensor);
    mt_parallel_close(&data);
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    static const char *const unknown[] = {"*.nothing"};
    const mt_model_config *c = &mtt_models[MTT_GPT];
    mtt_as_ranks(2, refuse, NULL);
    mt_device *device = mt_device_open("cpu");
    assert_null(mt_stage_new_lora(device, c, NULL, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "the options are NULL");
    assert_null(mt_stage_new_lora(NULL, c, NULL, &everywhere));
    mtt_failed(MT_ERR_ARGUMENT, "the device");
    static const char *const last_layer[] = {"h.1.*"};
    const mt_lora_options late = {.rank = 2, .n_targets = 1, .targets = last_layer};
    mt_device *meta = mt_device_open("meta");
    assert_null(mt_stage_new_lora(meta, c, &(mt_parallel){.pipeline = 2}, &late));
    mtt_failed(MT_ERR_UNSUPPORTED, "no target", "the first stage's 1 layers", "pipeline 1");
    mt_device_release(meta);
    const mt_lora_options nothing = {.rank = 2, .n_targets = 1, .targets = unknown};
    assert_null(mt_stage_new_lora(device, c, NULL, &nothing));
    mtt_failed(MT_ERR_ARGUMENT, "*.nothing", "fits none");
    mt_stage *stage = mt_stage_new_lora(device, c, NULL, &everywhere);
    assert_int_equal(mt_stage_save_lora(NULL, stage, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "the path is NULL");
    assert_int_equal(mt_stage_save_lora(two, NULL, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "the stage");
    passed p = {.config = *c, .lora = &everywhere};
    write_alone(&p);
    mt_safetensors *file = mt_safetensors_open(one);
    assert_int_equal(mt_stage_load_weights(file, stage), MT_ERR_ARGUMENT); /* it has adapters */
    mtt_failed(MT_ERR_ARGUMENT, "does not fit the model");
    mt_safetensors_free(file);
    mt_stage_free(stage);
    mt_device_release(device);
}

/* A whole life of a stage with adapters; false if something fails. */
static bool live(const mt_lora_options *lora)
{
    const mt_parallel stages = {.pipeline = 2, .stage = 1, .tensor = 2};
    const mt_model_config c = {.hidden = 8, .heads = 2, .layers = 2, .vocab = 8, .context = 8};
    mt_device *device = mt_device_open("cpu"), *meta = mt_device_open("meta");
    mt_stage *stage = device ? mt_stage_new_lora(device, &c, NULL, lora) : NULL;
    mt_stage *part = meta ? mt_stage_new_lora(meta, &c, &stages, lora) : NULL;
    mt_safetensors *file = mt_safetensors_open(one);
    bool ok = stage && part && file && mt_stage_load_weights(file, stage) == MT_OK &&
              mt_stage_save_lora(two, stage, NULL) == MT_OK;
    mt_safetensors_free(file);
    mt_stage_free(stage);
    mt_stage_free(part);
    mt_device_release(device);
    mt_device_release(meta);
    return ok;
}

static void live_whole(void *lora)
{
    mti_fail_nth_alloc(UINT64_MAX);
    if (!live(lora)) abort();
    mti_fail_nth_alloc(0);
}

static void every_refused_request_for_memory_is_reported(void **state)
{
    (void)state;
    static const mt_lora_options *const adapters[] = {&in_layers, &in_4_bits};
    passed p = {.config = {.hidden = 8, .heads = 2, .layers = 2, .vocab = 8, .context = 8}};
    write_alone(&p);
    for (size_t i = 0; i < N(adapters); i++) {
        bool done = false;
        mtt_plan_refusals(live_whole, (void *)adapters[i]);
        for (uint64_t n = 1; !done; n = mtt_next_refusal(n)) {
            mti_fail_nth_alloc(n);
            bool ok = live(adapters[i]);
            done = ok && mti_alloc_count() < n;
            mti_fail_nth_alloc(0);
            assert_int_equal(mt_last_status(), ok ? MT_OK : MT_ERR_MEMORY);
            mt_clear_error();
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_with_adapters_follow_one_process),
        cmocka_unit_test(ranks_beside_weights_in_4_bits_follow_one_process),
        cmocka_unit_test(ranks_with_experts_follow_one_process),
        cmocka_unit_test(zero_has_the_bits_of_plain_data_parallelism),
        cmocka_unit_test(what_comes_for_a_layer_without_a_backward_goes_with_the_backward_before),
        cmocka_unit_test(both_files_come_back_from_any_ranks_to_the_byte),
        cmocka_unit_test(adapters_begin_beside_weights_of_a_file),
        cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(every_refused_request_for_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
