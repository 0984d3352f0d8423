/* title.c: what workloads are, in one line above a picture of them. */
#include <string.h>
#include "nn/model.h"
#include "report/terminal.h"
#include "report/pictures.h"

enum {
    BATCH,
    SEQ,
    HIDDEN,
    LAYERS,
    ACT,
    DTYPE,
    OPTIMIZER,
    CHECKPOINT,
    OFFLOAD,
    AMP,
    ADAPTERS,
    RANK,
    N_PARTS
};

typedef struct part {
    char text[48]; /* "": nothing to say */
} part;

static void describe_memory(const mti_memory_options *m, part parts[N_PARTS])
{
    const size_t size = sizeof parts[0].text;
    if (m->budget)
        snprintf(parts[CHECKPOINT].text, size, "checkpoints by budget");
    else if (m->checkpoint && strcmp(m->checkpoint, "none"))
        snprintf(parts[CHECKPOINT].text, size, "checkpoint %.30s", m->checkpoint);
    if (m->offload == MTI_OFFLOAD_CPU) snprintf(parts[OFFLOAD].text, size, "offload cpu");
    if (m->offload == MTI_OFFLOAD_DISK) snprintf(parts[OFFLOAD].text, size, "offload disk");
    if (m->amp) snprintf(parts[AMP].text, size, "amp %s", mt_dtype_name(m->amp_dtype));
    if (m->lora_rank)
        snprintf(parts[ADAPTERS].text, size, "%sLoRA rank %lld%s%.24s",
                 !m->qlora                    ? ""
                 : m->codes == MTI_CODES_INT8 ? "8-bit "
                                              : "Q",
                 (long long)m->lora_rank, m->lora_targets.text ? " of " : "",
                 m->lora_targets.text ? m->lora_targets.text : "");
}

static void describe(const mti_workload *w, part parts[N_PARTS])
{
    const size_t size = sizeof parts[0].text;
    const mt_model_config *c = &w->config;
    memset(parts, 0, N_PARTS * sizeof *parts);
    snprintf(parts[BATCH].text, size, "b=%lld", (long long)w->batch);
    snprintf(parts[SEQ].text, size, "s=%lld", (long long)w->seq);
    snprintf(parts[HIDDEN].text, size, "h=%lld", (long long)c->hidden);
    if (mti_is_whole(c->kind)) snprintf(parts[LAYERS].text, size, "L=%lld", (long long)c->layers);
    if (c->kind != MT_MODEL_LINEAR && c->kind != MT_MODEL_ATTENTION && c->kind != MT_MODEL_LLAMA)
        snprintf(parts[ACT].text, size, "%s", mt_act_name(c->act));
    snprintf(parts[DTYPE].text, size, "%s", mt_dtype_name(c->dtype));
    if (w->optimizer != MTI_OPT_NONE)
        snprintf(parts[OPTIMIZER].text, size, "%s", mti_optimizer_name(w->optimizer));
    if (w->ranked)
        snprintf(parts[RANK].text, size, "a rank of stage %lld", (long long)w->parallel.stage);
    describe_memory(&w->memory, parts);
}

void mti_title(char *buf, size_t size, const char *name, const mti_workload *const *w, size_t n)
{
    part common[N_PARTS], other[N_PARTS];
    describe(w[0], common);
    for (size_t i = 1; i < n; i++) {
        describe(w[i], other);
        for (int k = 0; k < N_PARTS; k++)
            if (strcmp(common[k].text, other[k].text)) *common[k].text = '\0';
    }
    const char *between = ": ";
    snprintf(buf, size, "%s", name);
    for (int k = 0; k < N_PARTS; k++) {
        if (!*common[k].text) continue;
        mti_append(buf, size, "%s%s", between, common[k].text);
        between = k < HIDDEN || (k == HIDDEN && *common[LAYERS].text) ? " " : ", ";
    }
}
