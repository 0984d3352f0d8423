/* measured_rank.c: one rank of several, measured. */
#include "measured_rank.h"

const mt_model_config mtt_small_models[MTT_SMALL_MODELS] = {
    {.hidden = 32,
     .heads = 4,
     .layers = 4,
     .vocab = 48,
     .context = 16,
     .act = MT_ACT_GELU,
     .dropout = 0.1,
     .attention = MT_ATTENTION_MATH},
    {.hidden = 32,
     .heads = 4,
     .layers = 4,
     .vocab = 48,
     .context = 16,
     .norm = MT_NORM_POST,
     .untied = true},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 32,
     .heads = 8,
     .kv_heads = 4,
     .ffn = 48,
     .layers = 4,
     .vocab = 48,
     .context = 16,
     .qkv_bias = true},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 32,
     .heads = 4,
     .ffn = 48,
     .layers = 4,
     .vocab = 48,
     .context = 16,
     .tied = true,
     .attention = MT_ATTENTION_MATH,
     .dropout = 0.1},
    {.kind = MT_MODEL_BERT,
     .hidden = 32,
     .heads = 4,
     .layers = 4,
     .vocab = 48,
     .context = 16,
     .act = MT_ACT_GELU,
     .padded = true,
     .pad_token = 7,
     .dropout = 0.1},
};

mt_model_config mtt_paper_model(const char *preset)
{
    mt_model_config c;
    mtt_ok(mt_model_preset(preset, &c));
    c.dropout = 0.1, c.attention = MT_ATTENTION_MATH, c.dtype = MT_BF16;
    return c;
}

mt_rank_report mtt_measure_rank(const mt_model_config *c, mt_parallel split, int64_t b, int64_t s,
                                const char *checkpoint)
{
    mt_rank_report r;
    mt_mem_stats stats;
    mt_device *meta = mt_device_open("meta");
    mtt_ok(
        mt_set_balance_check(meta, c->layers <= 4)); /* for large models the check takes seconds */
    mtt_ok(mt_rank_measure(meta, c, &split, b, s, checkpoint, &r));
    mt_mem_get_stats(meta, &stats);
    assert_int_equal(stats.allocated.current, 0);
    mt_device_release(meta);
    return r;
}

size_t mtt_blocks_of(mt_module *m)
{
    const mt_named_tensor *list;
    size_t n, sum = 0;
    mtt_ok(mt_module_params(m, &list, &n));
    for (size_t i = 0; i < n; i++) sum += mt_storage_of(list[i].tensor).allocated;
    return sum;
}
