/* ranks.c: `memtape ranks`: what a rank keeps of four large models, technique by technique. */
#include <string.h>
#include "cli/verbs.h"
#include "report/json.h"
#include "report/report.h"

/* Korthikanti et al. 2022, table 3: all with t = 8. */
static const struct model {
    const char *name, *preset;
    int64_t pipeline, interleave, batch, microbatches;
} models[] = {
    {"22B", "megatron-22b", 1, 1, 4, 1},
    {"175B", "megatron-175b", 8, 3, 1, 64},
    {"530B", "megatron-530b", 35, 3, 1, 280},
    {"1T", "megatron-1t", 64, 1, 1, 512},
};
#define N_MODELS (sizeof models / sizeof *models)

static const struct technique {
    const char *name;
    int64_t tensor;
    bool sequence;
    const char *checkpoint;
} techniques[] = {
    {"none", 1, false, "none"},
    {"tp", 8, false, "none"},
    {"tp, sp", 8, true, "none"},
    {"tp, selective", 8, false, "selective"},
    {"tp, sp, selective", 8, true, "selective"},
    {"full", 8, false, "full"},
};
#define N_TECHNIQUES (sizeof techniques / sizeof *techniques)

typedef struct cell {
    mt_rank_report layer, stage; /* one layer; the first stage as it was trained */
} cell;

static bool measure(const mti_options *o, const struct model *m, const mt_parallel *how,
                    const char *checkpoint, mt_rank_report *out)
{
    mt_model_config c;
    mt_device *device = mti_open_device(&o->workload);
    bool ok = device && mt_model_preset(m->preset, &c) == MT_OK;
    if (ok) {
        c.dropout = 0.1, c.attention = MT_ATTENTION_MATH, c.dtype = MT_BF16;
        ok = mt_rank_measure(device, &c, how, m->batch, c.context, checkpoint, out) == MT_OK;
    }
    mt_device_release(device);
    return ok;
}

static bool fill(const mti_options *o, cell cells[N_TECHNIQUES][N_MODELS])
{
    for (size_t k = 0; k < N_TECHNIQUES; k++)
        for (size_t i = 0; i < N_MODELS; i++) {
            const struct technique *t = &techniques[k];
            const struct model *m = &models[i];
            mt_model_config c;
            if (mt_model_preset(m->preset, &c) != MT_OK) return false;
            mt_parallel how = {.tensor = t->tensor,
                               .sequence = t->sequence,
                               .pipeline = c.layers,
                               .stage = 1,
                               .microbatches = 1};
            if (!measure(o, m, &how, t->checkpoint, &cells[k][i].layer)) return false;
            how.pipeline = m->pipeline, how.interleave = m->interleave;
            how.stage = 0, how.microbatches = m->microbatches;
            if (!measure(o, m, &how, t->checkpoint, &cells[k][i].stage)) return false;
        }
    return true;
}

static bool print(cell cells[N_TECHNIQUES][N_MODELS], const mti_style *style, bool stage)
{
    mti_table *t = mti_table_new(
        "lerrrr", (const char *const[]){"technique", "a layer", "22B", "175B", "530B", "1T"});
    if (!t) return false;
    for (size_t k = 0; k < N_TECHNIQUES; k++) {
        const char *formula = strstr(cells[k][0].layer.text, "x ");
        mti_table_cell(t, "%s", techniques[k].name);
        mti_table_cell(t, "%s", formula ? formula + 2 : "");
        for (size_t i = 0; i < N_MODELS; i++)
            mti_table_bytes(t,
                            stage ? (int64_t)cells[k][i].stage.saved : cells[k][i].layer.formula);
    }
    if (stage) {
        mti_table_rule(t);
        mti_table_cell(t, "in flight");
        mti_table_skip(t, 1);
        for (size_t i = 0; i < N_MODELS; i++) mti_table_bytes(t, cells[0][i].stage.in_flight);
    }
    bool ok = mti_table_print(t, stdout, style) == MT_OK;
    mti_table_free(t);
    return ok;
}

static json_t *to_json(cell cells[N_TECHNIQUES][N_MODELS])
{
    json_t *j = json_object(), *rows = json_array();
    mti_json_put_text(j, "schema", "memtape.ranks/1");
    for (size_t k = 0; k < N_TECHNIQUES; k++)
        for (size_t i = 0; i < N_MODELS; i++) {
            const cell *c = &cells[k][i];
            json_t *row = json_object();
            mti_json_put_text(row, "technique", techniques[k].name);
            mti_json_put_text(row, "model", models[i].preset);
            mti_json_put(row, "layer_formula", json_integer(c->layer.formula));
            mti_json_put_int(row, "layer_saved", c->layer.saved);
            mti_json_put_int(row, "in_flight", (uint64_t)c->stage.in_flight);
            mti_json_put_int(row, "stage_saved", c->stage.saved);
            mti_json_put(row, "unexplained",
                         json_integer(c->layer.unexplained + c->stage.unexplained));
            mti_json_push(rows, row);
        }
    mti_json_put(j, "rows", rows);
    return j;
}

static bool report(const mti_options *o, cell cells[N_TECHNIQUES][N_MODELS])
{
    mti_style style = mti_style_of(stdout);
    if (!o->quiet && !(o->json && !strcmp(o->json, "-"))) {
        mti_heading(stdout, &style,
                    "One layer, one microbatch, on one of 8 ranks: bytes (\"none\": "
                    "on the only one)");
        if (!print(cells, &style, false)) return false;
        mti_heading(stdout, &style,
                    "The first stage of the pipeline, microbatches in flight: bytes");
        if (!print(cells, &style, true)) return false;
    }
    return !o->json || mti_json_write(to_json(cells), o->json) == MT_OK;
}

int mti_ranks(const mti_options *options)
{
    mti_options o = *options;
    o.workload.device.kind = "meta";
    cell cells[N_TECHNIQUES][N_MODELS];
    bool ok = fill(&o, cells) && report(&o, cells);
    return ok ? MTI_EXIT_OK : mti_report_failure(&o);
}
