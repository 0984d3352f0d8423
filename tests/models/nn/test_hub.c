/* Checkpoints under Hugging Face's names: experts one by one, in a file and in a folder, written
 * and read; what does not fit, and refused memory, change nothing. tests/parity/hub.py compares
 * with Transformers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/base.h"
#include "memtape/models/io.h"
#include "memtape/models/model.h"
#include "memtape/ops.h"
#include "mtt.h"
#include "mtt_fixture.h"

static const mt_model_config mixture = {.kind = MT_MODEL_LLAMA,
                                        .hidden = 8,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .ffn = 6,
                                        .layers = 2,
                                        .vocab = 11,
                                        .context = 4,
                                        .experts = 3,
                                        .experts_per_token = 2};

static mt_module *make(uint64_t seed)
{
    mt_seed(device, seed);
    return mt_model_new(device, &mixture);
}

static bool same(mt_module *a, mt_module *b)
{
    const mt_named_tensor *x, *y;
    size_t n, m;
    mtt_ok(mt_module_params(a, &x, &n));
    mtt_ok(mt_module_params(b, &y, &m));
    assert_int_equal(n, m);
    bool all = true;
    for (size_t i = 0; i < n; i++) all = all && mtt_same_bits(x[i].tensor, y[i].tensor);
    return all;
}

static void experts_are_written_one_by_one_and_read_back(void **state)
{
    (void)state;
    char path[MTT_PATH], file[MTT_PATH + 32];
    mtt_temporary_file(path);
    mt_module *m = make(1), *other = make(2);
    mtt_ok(mt_hf_save(path, m, "mixtral"));
    mt_safetensors *f = mt_safetensors_open(path);
    mt_safetensors_entry e;
    assert_int_equal(mt_safetensors_count(f), 3 + 2 * (2 + 4 + 1 + 3 * 3));
    assert_true(mt_safetensors_find(f, "model.layers.1.block_sparse_moe.experts.2.w3.weight", &e));
    assert_true(e.rank == 2 && e.shape[0] == 6 && e.shape[1] == 8);
    assert_true(mt_safetensors_find(f, "model.layers.0.block_sparse_moe.gate.weight", NULL));
    assert_string_equal(mt_safetensors_metadata(f, "format"), "pt");
    mt_safetensors_free(f);
    assert_false(same(m, other));
    mtt_ok(mt_hf_load(path, other));
    assert_true(same(m, other));
    unlink(path);

    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(mt_hf_load(path, other), MT_ERR_IO);
    mtt_failed(MT_ERR_IO, "has no model.safetensors");
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    mt_module *third = make(3);
    mtt_ok(mt_hf_save(file, m, "qwen3_moe"));
    mtt_ok(mt_hf_load(path, third));
    assert_true(same(m, third));
    unlink(file), rmdir(path);
    mt_module_free(m), mt_module_free(other), mt_module_free(third);
}

/* The layer after the last, as DeepSeek-V3's files have it. */
static void predictions_ahead_have_the_next_layers_names(void **state)
{
    (void)state;
    char path[MTT_PATH];
    mt_model_config c = mixture;
    c.kv_heads = 2, c.kv_rank = 4, c.head_dim = 6, c.rope_dim = 2, c.value_dim = 4;
    c.mtp_layers = 2;
    mtt_temporary_file(path);
    mt_module *m = mt_model_new(device, &c), *other = mt_model_new(device, &c);
    mtt_ok(mt_hf_save(path, m, "deepseek_v3"));
    mt_safetensors *f = mt_safetensors_open(path);
    mt_safetensors_entry e;
    assert_true(mt_safetensors_find(f, "model.layers.3.eh_proj.weight", &e));
    assert_true(e.rank == 2 && e.shape[0] == 8 && e.shape[1] == 16);
    assert_true(mt_safetensors_find(f, "model.layers.2.shared_head.norm.weight", NULL));
    assert_true(mt_safetensors_find(f, "model.layers.2.mlp.experts.1.up_proj.weight", NULL));
    mt_safetensors_free(f);
    assert_false(same(m, other));
    mtt_ok(mt_hf_load(path, other));
    assert_true(same(m, other));
    unlink(path);
    mt_module_free(m), mt_module_free(other);
}

/* Writes m as DeepSeek-V3's files are, with embedding and head once more in layer 2; other: the one
 * of them that is another's. */
static void write_with_copies(const char *path, mt_module *m, const char *other)
{
    static const char *const copies[][2] = {
        {"model.embed_tokens.weight", "model.layers.2.embed_tokens.weight"},
        {"lm_head.weight", "model.layers.2.shared_head.head.weight"}};
    mt_named_tensor list[128];
    size_t n = 0;
    mtt_ok(mt_hf_save(path, m, "deepseek_v3"));
    mt_safetensors *f = mt_safetensors_open(path);
    for (; n < mt_safetensors_count(f); n++) {
        mt_safetensors_entry e;
        mtt_ok(mt_safetensors_get(f, n, &e));
        list[n] = (mt_named_tensor){e.name, mt_safetensors_read(f, e.name, device)};
    }
    for (int i = 0; i < 2; i++) {
        mt_tensor *t = mt_safetensors_read(f, copies[i][0], device);
        if (other && !strcmp(other, copies[i][1])) mt_set(&t, mt_mul_scalar(t, 2));
        list[n++] = (mt_named_tensor){copies[i][1], t};
    }
    mtt_ok(mt_safetensors_save(path, n, list, 0, NULL));
    for (size_t i = 0; i < n; i++) mt_release(list[i].tensor);
    mt_safetensors_free(f);
}

static void copies_that_predictions_ahead_share_are_checked(void **state)
{
    (void)state;
    static const char *const others[] = {NULL, "model.layers.2.embed_tokens.weight",
                                         "model.layers.2.shared_head.head.weight"};
    char path[MTT_PATH], left[200];
    mt_model_config c = mixture;
    c.mtp_layers = 1;
    mtt_temporary_file(path);
    mt_module *m = mt_model_new(device, &c), *ahead = mt_model_new(device, &c);
    for (int i = 0; i < 3; i++) {
        write_with_copies(path, m, others[i]);
        mt_status status = mt_hf_load_with(path, ahead, left, sizeof left);
        assert_int_equal(status, i ? MT_ERR_ARGUMENT : MT_OK);
        if (i) mtt_failed(MT_ERR_ARGUMENT, others[i], "share");
        assert_true(same(m, ahead));
        assert_string_equal(left, "");
        mt_module *plain = make(4);
        mtt_ok(mt_hf_load_with(path, plain, left, sizeof left));
        assert_non_null(strstr(left, "left: 22 tensors of layers from 2 on"));
        assert_true(mtt_same_bits(mt_module_param(mt_module_child(plain, "wte"), "weight"),
                                  mt_module_param(mt_module_child(m, "wte"), "weight")));
        mt_module_free(plain);
    }
    const mt_named_tensor scaled = {"model.layers.0.self_attn.q_a_proj.weight_scale_inv",
                                    mt_module_param(mt_module_child(m, "wte"), "weight")};
    mtt_ok(mt_safetensors_save(path, 1, &scaled, 0, NULL));
    assert_int_equal(mt_hf_load(path, ahead), MT_ERR_UNSUPPORTED);
    mtt_failed(MT_ERR_UNSUPPORTED, scaled.name, "FP8 with scales; need bf16");
    unlink(path);
    mt_module_free(m), mt_module_free(ahead);
}

static void what_does_not_fit_changes_nothing(void **state)
{
    (void)state;
    char path[MTT_PATH];
    mtt_temporary_file(path);
    mt_model_config wide = mixture, few = mixture, gpt = mixture;
    wide.ffn = 7, few.layers = 1;
    gpt.kind = MT_MODEL_GPT, gpt.experts = gpt.experts_per_token = gpt.kv_heads = 0;
    mt_module *m = make(1), *before = make(1),
              *others[] = {mt_model_new(device, &wide), mt_model_new(device, &few),
                           mt_model_new(device, &gpt)};
    static const char *const words[][2] = {{"experts.0.w1.weight", "[6,8]"},
                                           {"superfluous", "model.layers.1."},
                                           {"wpe.weight", "missing"}};
    mtt_ok(mt_hf_save(path, m, "mixtral"));
    for (int i = 0; i < 3; i++) {
        mt_module *o = others[i];
        assert_int_equal(mt_hf_load(path, o), MT_ERR_ARGUMENT);
        mtt_failed(MT_ERR_ARGUMENT, words[i][0], words[i][1]);
        mt_module_free(o);
    }
    assert_int_equal(mt_hf_save(path, m, "mamba"), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "model_type \"mamba\" is unknown");
    assert_int_equal(mt_hf_save(path, m, "bert"), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "missing");
    assert_int_equal(mt_hf_load(NULL, m), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "the path is NULL");
    assert_true(same(m, before));
    unlink(path);
    mt_module_free(m), mt_module_free(before);
}

/* Writes m with experts in MXFP4, all codes 2: a weight is its block's scale. */
static void write_mxfp4(const char *path, mt_module *m)
{
    static const char *const products[] = {"gate_up", "down"};
    mt_named_tensor list[64];
    char names[8][80];
    size_t n = 0, begun;
    mtt_ok(mt_hf_save(path, m, "olmoe"));
    mt_safetensors *f = mt_safetensors_open(path);
    mt_safetensors_entry e;
    for (size_t i = 0; i < mt_safetensors_count(f); i++) {
        mtt_ok(mt_safetensors_get(f, i, &e));
        if (!strstr(e.name, ".experts."))
            list[n++] = (mt_named_tensor){e.name, mt_safetensors_read(f, e.name, device)};
    }
    begun = n;
    for (int i = 0; i < 8; i++) {
        uint8_t bytes[3 * 64 * 16];
        const int64_t rows = i / 2 % 2 ? 32 : 64, size = i % 2 ? 16 : 1;
        memset(bytes, i % 2 ? 0x22 : 130, sizeof bytes);
        snprintf(names[i], sizeof names[i], "model.layers.%d.mlp.experts.%s_proj_%s", i / 4,
                 products[i / 2 % 2], i % 2 ? "blocks" : "scales");
        list[n++] =
            (mt_named_tensor){names[i], mtt_made(mt_from_data(device, MT_U8, 4 - (size == 1),
                                                              (const int64_t[]){3, rows, 1, 16},
                                                              bytes, (size_t)(3 * rows * size)))};
    }
    mtt_ok(mt_safetensors_save(path, n, list, 0, NULL));
    while (n--) mt_release(list[n].tensor);
    assert_true(begun > 10);
    mt_safetensors_free(f);
}

static void experts_in_mxfp4_are_read_as_they_are_or_widened(void **state)
{
    (void)state;
    char path[MTT_PATH];
    mtt_temporary_file(path);
    mt_model_config c = mixture;
    c.hidden = c.ffn = 32;
    mt_module *m = mt_model_new(device, &c);
    mt_module *kept = mt_model_new_quantized(device, &c, &(mt_quant){.format = MT_QUANT_MXFP4});
    write_mxfp4(path, m);
    const size_t before = mtt_allocated(device);
    for (int keeps = 0; keeps < 2; keeps++) {
        bool refused = true;
        for (uint64_t n = 1; refused; n = mtt_next_refusal(n)) {
            mti_fail_nth_alloc(n);
            mt_status status = mt_hf_load(path, keeps ? kept : m);
            refused = mti_alloc_count() >= n;
            mti_fail_nth_alloc(0);
            if (status != MT_OK) assert_int_equal(status, MT_ERR_MEMORY);
            mt_clear_error();
            assert_int_equal(mtt_allocated(device), before);
        }
    }
    double *w = mtt_doubles(mt_module_param(mt_module_find(m, "h.1.mlp.experts_down"), "weight"));
    for (int i = 0; i < 3 * 32 * 32; i++) assert_true(w[i] == 8);
    free(w);
    const mt_tensor *codes =
        mt_module_param(mt_module_find(kept, "h.1.mlp.experts_down"), "weight");
    assert_int_equal(mt_numel(codes), 3 * 32 * 17);
    unlink(path);
    mt_module_free(m), mt_module_free(kept);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    char path[MTT_PATH];
    mtt_temporary_file(path);
    mt_module *m = make(1), *to = make(2);
    size_t before = mtt_allocated(device);
    for (int saves = 1; saves >= 0; saves--) {
        bool refused = true;
        for (uint64_t n = 1; refused; n = mtt_next_refusal(n)) {
            mti_fail_nth_alloc(n);
            mt_status status = saves ? mt_hf_save(path, m, "olmoe") : mt_hf_load(path, to);
            refused = mti_alloc_count() >= n;
            mti_fail_nth_alloc(0);
            if (status != MT_OK) assert_int_equal(status, MT_ERR_MEMORY);
            mt_clear_error();
            assert_int_equal(mtt_allocated(device), before);
        }
        if (saves) mtt_ok(mt_hf_save(path, m, "olmoe"));
    }
    assert_true(same(m, to));
    unlink(path);
    mt_module_free(m), mt_module_free(to);
}

/* A folder with the mixture's config.json and weights. */
static mt_module *make_folder(char path[MTT_PATH], char files[2][MTT_PATH + 32])
{
    static const char config[] =
        "{\"model_type\": \"mixtral\", \"hidden_size\": 8, \"num_attention_heads\": 2,"
        "\"num_key_value_heads\": 1, \"intermediate_size\": 6, \"num_hidden_layers\": 2,"
        "\"vocab_size\": 11, \"max_position_embeddings\": 4, \"num_local_experts\": 3,"
        "\"num_experts_per_tok\": 2, \"tie_word_embeddings\": false, \"dtype\": \"float32\"}";
    mtt_temporary_file(path);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(files[0], sizeof files[0], "%s/config.json", path);
    snprintf(files[1], sizeof files[1], "%s/model.safetensors", path);
    FILE *f = fopen(files[0], "w");
    assert_true(f && fputs(config, f) >= 0 && fclose(f) == 0);
    mt_module *m = make(1);
    mtt_ok(mt_hf_save(files[1], m, "mixtral"));
    return m;
}

static void a_folder_is_opened_whole_without_a_draw_or_not_at_all(void **state)
{
    (void)state;
    char path[MTT_PATH], files[2][MTT_PATH + 32];
    mt_module *m = make_folder(path, files);
    uint64_t seed, offset, offset_after;
    mt_rng_get(device, &seed, &offset);
    mt_module *opened = mt_model_open(device, path, NULL, NULL, 0);
    mtt_made(opened ? mt_module_param(mt_module_child(opened, "wte"), "weight") : NULL);
    mt_rng_get(device, &seed, &offset_after);
    assert_int_equal(offset, offset_after);
    assert_true(same(m, opened));
    const mt_named_tensor *list;
    size_t n;
    mtt_ok(mt_module_params(opened, &list, &n));
    for (size_t i = 0; i < n; i++) {
        assert_true(mt_requires_grad(list[i].tensor));
        assert_int_equal(mt_storage_of(list[i].tensor).category, MT_PARAMETER);
        assert_ptr_equal(mt_device_of(list[i].tensor), device);
    }
    mt_module_free(opened);

    mt_model_config wide = *mt_model_config_of(m); /* f32 in the file */
    wide.dtype = MT_F64;
    opened = mt_model_open(device, path, &wide, NULL, 0);
    mt_tensor *narrow = mt_module_param(mt_module_child(m, "wte"), "weight"),
              *cast = mt_cast(narrow, MT_F64);
    assert_true(mtt_same_bits(cast, mt_module_param(mt_module_child(opened, "wte"), "weight")));
    mt_release(cast), mt_module_free(opened);

    mt_device *meta = mt_device_open("meta");
    opened = mt_model_open(meta, path, NULL, NULL, 0);
    assert_non_null(opened);
    mt_module_free(opened), mt_device_release(meta);
    wide.ffn = 7;
    assert_null(mt_model_open(device, path, &wide, NULL, 0));
    mtt_failed(MT_ERR_ARGUMENT, "experts.0.w1.weight", "need f64 [7,8]");
    assert_null(mt_model_open(device, NULL, NULL, NULL, 0));
    mtt_failed(MT_ERR_ARGUMENT, "the path is NULL");

    const size_t before = mtt_allocated(device);
    bool refused = true;
    for (uint64_t k = 1; refused; k = mtt_next_refusal(k)) {
        mti_fail_nth_alloc(k);
        opened = mt_model_open(device, path, NULL, NULL, 0);
        refused = mti_alloc_count() >= k;
        mti_fail_nth_alloc(0);
        if (!opened) assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        mt_clear_error();
        mt_module_free(opened);
        assert_int_equal(mtt_allocated(device), before);
    }
    unlink(files[0]), unlink(files[1]), rmdir(path);
    mt_module_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(experts_are_written_one_by_one_and_read_back),
        mtt_test(predictions_ahead_have_the_next_layers_names),
        mtt_test(copies_that_predictions_ahead_share_are_checked),
        mtt_test(what_does_not_fit_changes_nothing),
        mtt_test(experts_in_mxfp4_are_read_as_they_are_or_widened),
        mtt_test(a_folder_is_opened_whole_without_a_draw_or_not_at_all),
        mtt_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
