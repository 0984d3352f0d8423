/* What one rank of a large model keeps for backward: table 2 of Korthikanti et al. 2022, measured
 * without the ranks, and the paper's four models as they were trained, on the first stage of their
 * pipelines. */
#include <stdbool.h>
#include <stdio.h>
#include <memtape/all.h>

enum { S = 2048, VOCAB = 51200, N_TECHNIQUES = 6 };

typedef struct model {
    const char *name;
    int64_t heads, hidden, layers, pipeline, interleave, batch, microbatches;
} model;

static const model models[] = {
    {"22B", 64, 6144, 48, 1, 1, 4, 1},
    {"175B", 96, 12288, 96, 8, 3, 1, 64},
    {"530B", 128, 20480, 105, 35, 3, 1, 280},
    {"1T", 160, 25600, 128, 64, 1, 1, 512},
};

static const struct technique {
    const char *name;
    int64_t t;
    bool sequence;
    const char *checkpoint;
} techniques[N_TECHNIQUES] = {
    {"none", 1, false, "none"},
    {"tensor", 8, false, "none"},
    {"tensor + sequence", 8, true, "none"},
    {"tensor + selective", 8, false, "selective"},
    {"tensor + sequence + selective", 8, true, "selective"},
    {"full recomputation", 8, false, "full"},
};

static mt_model_config config_of(const model *m)
{
    return (mt_model_config){.kind = MT_MODEL_GPT,
                             .hidden = m->hidden,
                             .heads = m->heads,
                             .layers = m->layers,
                             .vocab = VOCAB,
                             .context = S,
                             .act = MT_ACT_GELU,
                             .dropout = 0.1,
                             .attention = MT_ATTENTION_MATH,
                             .dtype = MT_BF16};
}

/* The paper's expressions, for one layer and one microbatch. */
static int64_t expected(const model *m, int technique)
{
    int64_t sbh = S * m->batch * m->hidden, core = 5 * m->heads * S * S * m->batch, t = 8;
    const int64_t bytes[N_TECHNIQUES] = {34 * sbh + core,       10 * sbh + (24 * sbh + core) / t,
                                         (34 * sbh + core) / t, 10 * sbh + 24 * sbh / t,
                                         34 * sbh / t,          2 * sbh};
    return bytes[technique];
}

/* A stage of one layer between others: nothing but that layer. */
static bool one_layer(const model *m, int technique, mt_rank_report *r)
{
    const struct technique *k = &techniques[technique];
    mt_model_config c = config_of(m);
    mt_parallel parallel = {.tensor = k->t,
                            .sequence = k->sequence,
                            .pipeline = m->layers,
                            .stage = 1,
                            .microbatches = 1};
    mt_device *meta = mt_device_open("meta");
    mt_status status = mt_rank_measure(meta, &c, &parallel, m->batch, S, k->checkpoint, r);
    mt_device_release(meta);
    return status == MT_OK;
}

static bool table(void)
{
    bool good = true;
    printf("Bytes that a rank keeps of one layer, s=%d, 2-byte floats, t=8\n%-31s", S, "");
    for (int i = 0; i < 4; i++) printf("%15s", models[i].name);
    for (int k = 0; k < N_TECHNIQUES; k++) {
        printf("\n%-31s", techniques[k].name);
        for (int i = 0; i < 4; i++) {
            mt_rank_report r;
            if (!one_layer(&models[i], k, &r)) return false;
            good = good && r.formula == expected(&models[i], k) && r.unexplained == 0;
            printf("%15lld", (long long)r.formula);
        }
    }
    printf("\nmeasured: the same, and beside it 16 bytes of layer norm statistics a token\n\n");
    return good;
}

/* The first stage as the paper trains it, with tensor and sequence parallelism and selective
 * recomputation. */
static bool first_stages(void)
{
    bool good = true;
    printf("%-6s%5s%5s%6s%10s%18s%18s%20s\n", "model", "t", "p", "m", "in flight", "kept",
           "parameters", "and their state");
    for (int i = 0; i < 4; i++) {
        const model *m = &models[i];
        mt_model_config c = config_of(m);
        mt_parallel parallel = {.tensor = 8,
                                .sequence = true,
                                .pipeline = m->pipeline,
                                .interleave = m->interleave,
                                .microbatches = m->microbatches};
        mt_rank_report r;
        mt_device *meta = mt_device_open("meta");
        mt_status status = mt_rank_measure(meta, &c, &parallel, m->batch, S, "selective", &r);
        mt_device_release(meta);
        if (status != MT_OK) return false;
        int64_t p = m->pipeline, v = m->interleave;
        int64_t parts = p == 1 ? 1 : v == 1 ? p : p * v + p - 1;
        good = good && r.in_flight == parts && r.unexplained == 0;
        printf("%-6s%5d%5lld%6lld%10lld%18zu%18zu%20zu\n", m->name, 8, (long long)p, (long long)v,
               (long long)r.in_flight, r.saved, r.param_bytes, r.grad_bytes + r.optimizer_bytes);
    }
    return good;
}

int main(void)
{
    bool good = table();
    good = first_stages() && good;
    if (mt_last_status() != MT_OK) fprintf(stderr, "%s\n", mt_last_error());
    if (!good) fprintf(stderr, "not as the paper has it\n");
    return good ? 0 : 1;
}
