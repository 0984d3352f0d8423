/* rank.c: what one rank of several keeps and needs. */
#include <string.h>
#include "report/figures.h"
#include "report/rank.h"

static int64_t at_least_1(int64_t n) { return n ? n : 1; }

static void print_place(const mti_rank_result *rank, FILE *out, const mti_style *style)
{
    const mt_parallel *h = rank->parallel;
    const mt_rank_report *r = &rank->report;
    char number[MTI_NUMBER];
    mti_inked(out, style, MTI_BOLD, "rank");
    fprintf(out, "  stage %lld of %lld, 1 of %lld that share each layer%s, %lld with other data",
            (long long)h->stage, (long long)at_least_1(h->pipeline),
            (long long)at_least_1(h->tensor), h->sequence ? " and the sequence" : "",
            (long long)at_least_1(h->data));
    fprintf(out, "\n%lld layers, %s parameters\n", (long long)r->layers,
            mti_thousands(number, (int64_t)r->n_params));
}

static bool print_equation(const mt_rank_report *r, FILE *out, const mti_style *style)
{
    mti_heading(out, style, "Kept for backward with %lld part%s of the model in flight",
                (long long)r->in_flight, r->in_flight == 1 ? "" : "s");
    mti_table *t = mti_table_new("lrl", NULL);
    if (!t) return false;
    mti_equation_row(t, "", r->formula, r->text);
    for (int i = 0; i < r->n_rows; i++) {
        int64_t bytes = r->rows[i].bytes;
        mti_equation_row(t, bytes < 0 ? "-" : "+", bytes < 0 ? -bytes : bytes, r->rows[i].what);
    }
    mti_equation_row(t, "=", (int64_t)r->saved - r->unexplained, "measured by the ledger");
    mti_residual_row(t, r->unexplained, "unexplained", "the books do not balance");
    return mti_table_finish(t, out, style);
}

static bool print_state(const mt_rank_report *r, int zero, FILE *out, const mti_style *style)
{
    mti_heading(out, style, "From step to step, ZeRO stage %d", zero);
    mti_table *t = mti_table_new("rl", NULL);
    if (!t) return false;
    const struct {
        size_t bytes;
        const char *what;
    } rows[] = {{r->param_bytes, "parameters"},
                {r->grad_bytes, "gradients"},
                {r->optimizer_bytes, "AdamW's moments and master copies"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mti_table_bytes(t, (int64_t)rows[i].bytes);
        mti_table_cell(t, "%s", rows[i].what);
    }
    return mti_table_finish(t, out, style);
}

static bool print_peak(const mt_rank_report *r, size_t capacity, bool fits, FILE *out,
                       const mti_style *style)
{
    char peak[MTI_NUMBER], reserved[MTI_NUMBER], size[32];
    mti_heading(out, style, "What makes the peak of a step, from the second step on");
    if (!mti_print_categories(r->steady_by_category, out, style)) return false;
    fputc('\n', out);
    mti_inked(out, style, MTI_BOLD, "The rank needs");
    fprintf(out, " %s bytes (%s), optimizer state included; %s reserved\n",
            mti_thousands(peak, (int64_t)r->steady_peak),
            mti_bytes_text(size, sizeof size, r->steady_peak),
            mti_thousands(reserved, (int64_t)r->steady_reserved));
    if (capacity)
        fprintf(out, "%s --capacity, %s bytes\n", fits ? "which fits" : "which is too much for",
                mti_thousands(peak, (int64_t)capacity));
    fprintf(out,
            "the first step's forwards and backwards, before there is optimizer state: %s; %s "
            "reserved\n",
            mti_thousands(peak, (int64_t)r->peak), mti_thousands(reserved, (int64_t)r->reserved));
    return true;
}

bool mti_print_rank(const mti_rank_result *rank, bool fits, FILE *out)
{
    mti_style style = mti_style_of(out);
    const mt_rank_report *r = &rank->report;
    mti_print_model(rank->workload, rank->device, out, &style);
    print_place(rank, out, &style);
    return print_equation(r, out, &style) && print_state(r, rank->parallel->zero, out, &style) &&
           print_peak(r, rank->workload->device.capacity, fits, out, &style);
}

static json_t *parallel_json(const mt_parallel *h)
{
    json_t *j = json_object();
    mti_json_put_int(j, "tp", (uint64_t)at_least_1(h->tensor));
    mti_json_put(j, "sp", json_boolean(h->sequence));
    mti_json_put_int(j, "pp", (uint64_t)at_least_1(h->pipeline));
    mti_json_put_int(j, "interleave", (uint64_t)at_least_1(h->interleave));
    mti_json_put_int(j, "stage", (uint64_t)h->stage);
    mti_json_put_int(j, "microbatches",
                     (uint64_t)at_least_1(h->microbatches ? h->microbatches : h->pipeline));
    mti_json_put_int(j, "dp", (uint64_t)at_least_1(h->data));
    mti_json_put_int(j, "zero", (uint64_t)h->zero);
    return j;
}

static json_t *formula_json(const mt_rank_report *r)
{
    json_t *j = json_object(), *residual = json_array();
    mti_json_put(j, "bytes", json_integer(r->formula));
    mti_json_put_text(j, "text", r->text);
    for (int i = 0; i < r->n_rows; i++)
        mti_json_push(residual, json_pack("{s:s,s:I}", "term", r->rows[i].what, "bytes",
                                          (json_int_t)r->rows[i].bytes));
    mti_json_put(j, "residual", residual);
    mti_json_put(j, "unexplained", json_integer(r->unexplained));
    return j;
}

static json_t *bytes_json(size_t bytes) { return json_pack("{s:I}", "bytes", (json_int_t)bytes); }

json_t *mti_rank_json(const mti_rank_result *rank, bool fits)
{
    const mt_rank_report *r = &rank->report;
    size_t capacity = rank->workload->device.capacity;
    json_t *j = json_object();
    mti_json_put_text(j, "schema", "memtape.rank/1");
    mti_json_put(j, "model", mti_model_json(rank->workload));
    mti_json_put_text(j, "device", "meta");
    mti_json_put(j, "parallel", parallel_json(rank->parallel));
    mti_json_put_int(j, "layers", (uint64_t)r->layers);
    mti_json_put(j, "params", mti_params_json(r->n_params, r->param_bytes));
    mti_json_put(j, "gradients", bytes_json(r->grad_bytes));
    mti_json_put(j, "optimizer", bytes_json(r->optimizer_bytes));
    mti_json_put_int(j, "in_flight", (uint64_t)r->in_flight);
    mti_json_put(j, "saved", bytes_json(r->saved));
    mti_json_put(j, "steady",
                 mti_steady_json(r->steady_peak, r->steady_reserved, r->steady_by_category));
    mti_json_put(j, "capacity", capacity ? json_integer((json_int_t)capacity) : json_null());
    mti_json_put(j, "fits", capacity ? json_boolean(fits) : json_null());
    mti_json_put_int(j, "peak", r->peak);
    mti_json_put_int(j, "reserved", r->reserved);
    mti_json_put(j, "formula", formula_json(r));
    return j;
}

/* ---- several models and techniques ---- */

static bool print_ranks(const mti_ranks_result *r, bool stage, FILE *out, const mti_style *style)
{
    mti_table *t = mti_table_new(
        "lerrrr", (const char *const[]){"technique", "a layer", "22B", "175B", "530B", "1T"});
    for (size_t k = 0; k < MTI_RANKS_TECHNIQUES; k++) {
        const char *formula = strstr(r->layer[k][0].text, "x ");
        mti_table_cell(t, "%s", mti_ranks_techniques[k]);
        mti_table_cell(t, "%s", formula ? formula + 2 : "");
        for (size_t i = 0; i < MTI_RANKS_MODELS; i++)
            mti_table_bytes(t, stage ? (int64_t)r->stage[k][i].saved : r->layer[k][i].formula);
    }
    if (stage) {
        mti_table_rule(t);
        mti_table_cell(t, "in flight");
        mti_table_skip(t, 1);
        for (size_t i = 0; i < MTI_RANKS_MODELS; i++) mti_table_bytes(t, r->stage[0][i].in_flight);
    }
    return mti_table_finish(t, out, style);
}

bool mti_print_ranks(const mti_ranks_result *r, FILE *out)
{
    mti_style style = mti_style_of(out);
    mti_heading(out, &style,
                "One layer, one microbatch, on one of 8 ranks: bytes (\"none\": on the only one)");
    if (!print_ranks(r, false, out, &style)) return false;
    mti_heading(out, &style, "The first stage of the pipeline, microbatches in flight: bytes");
    return print_ranks(r, true, out, &style);
}

json_t *mti_ranks_json(const mti_ranks_result *r)
{
    json_t *j = json_object(), *rows = json_array();
    mti_json_put_text(j, "schema", "memtape.ranks/1");
    for (size_t k = 0; k < MTI_RANKS_TECHNIQUES; k++)
        for (size_t i = 0; i < MTI_RANKS_MODELS; i++) {
            const mt_rank_report *layer = &r->layer[k][i], *stage = &r->stage[k][i];
            mti_json_push(rows, json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I}", "technique",
                                          mti_ranks_techniques[k], "model", mti_ranks_presets[i],
                                          "layer_formula", (json_int_t)layer->formula,
                                          "layer_saved", (json_int_t)layer->saved, "in_flight",
                                          (json_int_t)stage->in_flight, "stage_saved",
                                          (json_int_t)stage->saved, "unexplained",
                                          (json_int_t)(layer->unexplained + stage->unexplained)));
        }
    mti_json_put(j, "rows", rows);
    return j;
}
