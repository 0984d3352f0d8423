/* ranks_table.c: the ranks of several models, side by side. */
#include <string.h>
#include "report/results.h"

/* A terminal on which formulas and bytes are too much for a line. */
static bool is_narrow(const mti_style *style) { return style->elides && style->width < 106; }

/* The formulas of a layer, where a terminal has no room for them beside the bytes. */
static bool print_formulas(FILE *out, const mti_style *style)
{
    mti_table *t = mti_table_new("ll", NULL);
    for (size_t k = 0; k < MTI_RANKS_TECHNIQUES; k++)
        mti_table_cells(t, "%s|%s", mti_ranks_techniques[k], mti_ranks_formulas[k]);
    fputs("  by these formulas:\n", out);
    return mti_table_finish(t, out, style);
}

static bool print_layers(const mti_ranks_result *r, FILE *out, const mti_style *style)
{
    mti_table *t = mti_table_new(
        "lorrrr", (const char *const[]){"technique", "a layer", "22B", "175B", "530B", "1T"});
    for (size_t k = 0; k < MTI_RANKS_TECHNIQUES; k++) {
        mti_table_cells(t, "%s|%s", mti_ranks_techniques[k], mti_ranks_formulas[k]);
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
            size_t saved = r->stage[k][i].saved;
            mti_table_cell(t, "%s", is_narrow(style) ? MTI_BYTES(saved) : MTI_THOUSANDS(saved));
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

/* ---- JSON ---- */

static void describe_cell(mti_fields *f, const void *result)
{
    const mti_ranks_result *r = result;
    const size_t technique = f->i / MTI_RANKS_MODELS, model = f->i % MTI_RANKS_MODELS;
    const mt_rank_report *layer = &r->layer[technique][model], *stage = &r->stage[technique][model];
    mti_field_text(f, "technique", mti_ranks_techniques[technique]);
    mti_field_text(f, "model", mti_ranks_presets[model]);
    mti_field_int(f, "layer_formula", layer->formula);
    mti_field_size(f, "layer_saved", layer->saved);
    mti_field_int(f, "in_flight", stage->in_flight);
    mti_field_size(f, "stage_saved", stage->saved);
    mti_field_int(f, "unexplained", layer->unexplained + stage->unexplained);
}

void mti_describe_ranks(mti_fields *f, const void *result)
{
    mti_field_schema(f, "memtape.ranks/1");
    mti_field_list(f, "rows", describe_cell, result,
                   (size_t)MTI_RANKS_TECHNIQUES * MTI_RANKS_MODELS, 0);
}
