/* rank.c: one rank of several, and the ranks of several models side by side. */
#include <string.h>
#include "parallel/parallel.h"
#include "report/figures.h"
#include "report/rank.h"

static int64_t at_least_1(int64_t n) { return n ? n : 1; }

/* ---- which rank, and what stays with it ---- */

void mti_print_place(const mti_workload *w, FILE *out, const mti_style *style)
{
    const mt_parallel *h = &w->parallel;
    if (!w->ranked) return;
    static const char *const gathered[] = {"", ", gathered by block", ", gathered ahead"};
    char text[400], piece[80] = "";
    if (h->context > 1)
        snprintf(piece, sizeof piece, "piece %lld of %lld of each sequence, ",
                 (long long)h->context_rank, (long long)h->context);
    int head = snprintf(text, sizeof text, "rank %lld", (long long)w->rank);
    snprintf(text + head, sizeof text - (size_t)head,
             "  stage %lld of %lld, 1 of %lld that share each layer%s, %s%lld with other "
             "data%s%s%s",
             (long long)h->stage, (long long)at_least_1(h->pipeline),
             (long long)at_least_1(h->tensor), h->sequence ? " and the sequence" : "", piece,
             (long long)at_least_1(h->data), h->f32_shards ? ", f32 shards" : "",
             h->f32_reduce ? " and sums" : "", gathered[h->gather]);
    mti_print_headed(out, style, MTI_BOLD, text, (size_t)head);
}

void mti_print_rank(const mti_workload *w, const mti_measurement *m, FILE *out,
                    const mti_style *style)
{
    if (!w->ranked) return;
    mti_print_place(w, out, style);
    mti_print(out, "%lld layers, %lld part%s of the model in flight\n", (long long)m->layers,
              (long long)m->in_flight, m->in_flight == 1 ? "" : "s");
}

bool mti_print_states(const mti_workload *w, const mti_measurement *m, FILE *out,
                      const mti_style *style)
{
    if (!w->ranked) return true;
    mti_heading(out, style, "From step to step, ZeRO stage %d", w->parallel.zero);
    mti_table *t = mti_table_new("rl", NULL);
    const struct {
        size_t bytes;
        const char *what;
    } rows[] = {{m->param_bytes, "parameters"},
                {m->grad_bytes, "gradients"},
                {m->optimizer_bytes, "state of the optimizer"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mti_table_bytes(t, (int64_t)rows[i].bytes);
        mti_table_cell(t, "%s%s", rows[i].what,
                       i == 2 && w->memory.master ? ", with master copies" : "");
    }
    return mti_table_finish(t, out, style);
}

json_t *mti_place_json(const mti_workload *w)
{
    const mt_parallel *h = &w->parallel;
    int64_t p = at_least_1(h->pipeline);
    if (!w->ranked) return json_null();
    json_t *j = json_object();
    mti_json_put_int(j, "rank", (uint64_t)w->rank);
    mti_json_put_int(j, "tp", (uint64_t)at_least_1(h->tensor));
    mti_json_put(j, "sp", json_boolean(h->sequence));
    mti_json_put_int(j, "pp", (uint64_t)p);
    mti_json_put_int(j, "interleave", (uint64_t)at_least_1(h->interleave));
    mti_json_put_int(j, "stage", (uint64_t)h->stage);
    mti_json_put_int(j, "microbatches", (uint64_t)(h->microbatches ? h->microbatches : p));
    mti_json_put_int(j, "cp", (uint64_t)at_least_1(h->context));
    mti_json_put_int(j, "dp", (uint64_t)at_least_1(h->data));
    mti_json_put_int(j, "zero", (uint64_t)h->zero);
    return j;
}

json_t *mti_parallel_json(const mti_workload *w, const mti_measurement *m)
{
    json_t *j = mti_place_json(w);
    if (!w->ranked) return j;
    mti_json_put(j, "f32_shards", json_boolean(w->parallel.f32_shards));
    mti_json_put(j, "f32_reduce", json_boolean(w->parallel.f32_reduce));
    mti_json_put(j, "keep_root", json_boolean(w->parallel.keep_root));
    mti_json_put_text(j, "gather", mti_gather_units.names[w->parallel.gather]);
    mti_json_put(j, "keep_last", json_boolean(w->parallel.keep_last));
    mti_json_put_int(j, "layers", (uint64_t)m->layers);
    mti_json_put_int(j, "in_flight", (uint64_t)m->in_flight);
    mti_json_put_int(j, "gradients", m->grad_bytes);
    mti_json_put_int(j, "optimizer", m->optimizer_bytes);
    return j;
}

/* ---- several models and techniques ---- */

/* A terminal on which formulas and bytes are too much for a line. */
static bool is_narrow(const mti_style *style) { return style->elides && style->width < 106; }

/* The formulas of a layer, where a terminal has no room for them beside the bytes. */
static bool print_formulas(FILE *out, const mti_style *style)
{
    mti_table *t = mti_table_new("ll", NULL);
    for (size_t k = 0; k < MTI_RANKS_TECHNIQUES; k++) {
        mti_table_cell(t, "%s", mti_ranks_techniques[k]);
        mti_table_cell(t, "%s", mti_ranks_formulas[k]);
    }
    fputs("  by these formulas:\n", out);
    return mti_table_finish(t, out, style);
}

static bool print_layers(const mti_ranks_result *r, FILE *out, const mti_style *style)
{
    mti_table *t = mti_table_new(
        "lorrrr", (const char *const[]){"technique", "a layer", "22B", "175B", "530B", "1T"});
    for (size_t k = 0; k < MTI_RANKS_TECHNIQUES; k++) {
        mti_table_cell(t, "%s", mti_ranks_techniques[k]);
        mti_table_cell(t, "%s", mti_ranks_formulas[k]);
        for (size_t i = 0; i < MTI_RANKS_MODELS; i++) mti_table_bytes(t, r->layer[k][i].formula);
    }
    if (!mti_table_finish(t, out, style)) return false;
    if (is_narrow(style) && !print_formulas(out, style)) return false;
    fputs("  s tokens of b sequences, width h, a heads, t ranks that share a layer\n", out);
    return true;
}

static bool print_stages(const mti_ranks_result *r, FILE *out, const mti_style *style)
{
    mti_table *t =
        mti_table_new("lrrrr", (const char *const[]){"technique", "22B", "175B", "530B", "1T"});
    for (size_t k = 0; k < MTI_RANKS_TECHNIQUES; k++) {
        mti_table_cell(t, "%s", mti_ranks_techniques[k]);
        for (size_t i = 0; i < MTI_RANKS_MODELS; i++) {
            char scaled[MTI_NUMBER];
            size_t saved = r->stage[k][i].saved;
            if (is_narrow(style))
                mti_table_cell(t, "%s", mti_bytes_text(scaled, sizeof scaled, saved));
            else
                mti_table_bytes(t, (int64_t)saved);
        }
    }
    mti_table_rule(t);
    mti_table_cell(t, "in flight");
    for (size_t i = 0; i < MTI_RANKS_MODELS; i++) mti_table_bytes(t, r->stage[0][i].in_flight);
    return mti_table_finish(t, out, style);
}

bool mti_print_ranks(const mti_ranks_result *r, FILE *out)
{
    mti_style style = mti_style_of(out);
    mti_heading(out, &style,
                "One layer, one microbatch, on one of 8 ranks: bytes (\"none\": on the only one)");
    if (!print_layers(r, out, &style)) return false;
    mti_heading(out, &style, "The first stage of the pipeline, microbatches in flight%s",
                is_narrow(&style) ? "" : ": bytes");
    return print_stages(r, out, &style);
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
