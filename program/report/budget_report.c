/* budget_report.c: the checkpoints that fit a budget, as text, as a picture and as JSON. */
#include "report/pictures.h"
#include "report/sections.h"
#include "report/keys.h"
#include "report/results.h"

/* ---- text ---- */

/* Recomputed FLOPs, as a percentage of those of forward and backward. */
static double percent_again(const mt_flops *f)
{
    double once = (double)f->forward + (double)f->backward;
    return once > 0 ? 100 * (double)f->recompute / once : 0;
}

#define PART_TEXT 512

static void part_cells(mti_table *t, const mt_budget_part *part, const char *keeps)
{
    long long from = part->from, to = part->from + part->n - 1;
    mti_table_cell(t, from == to ? "h.%lld" : "h.%lld-%lld", from, to);
    if (part->core)
        mti_table_cell(t, "the core of attention is computed again");
    else if (!part->group)
        mti_table_cell(t, "everything is kept");
    else if (*keeps)
        mti_table_cell(t, "computed again%s, except %s", part->group > 1 ? " together" : "", keeps);
    else
        mti_table_cell(t, "computed again%s", part->group > 1 ? " together" : "");
    if (part->group > 1 && part->group < part->n)
        mti_table_cell(t, "%lld at a time", (long long)part->group);
    else
        mti_table_cell(t, "%s", "");
}

static bool print_parts(const mt_budget_plan *plan, const mti_sheet *to)
{
    mti_table *t = mti_table_new("lwl", NULL);
    bool ok = true;
    for (size_t i = 0; ok && i < mt_budget_plan_count(plan); i++) {
        mt_budget_part part;
        char keeps[PART_TEXT];
        ok = mt_budget_plan_get(plan, i, &part, keeps, sizeof keeps) == MT_OK;
        if (ok) part_cells(t, &part, keeps);
    }
    return mti_table_finish(t, to) && ok;
}

bool mti_print_budget(const mti_budget_found *b, size_t measured, const mti_sheet *to)
{
    mt_budget_figures f = mti_budget_figures_of(b->plan);
    mti_heading(to, "Checkpoints within %s bytes", MTI_THOUSANDS(b->workload->budget));
    if (!print_parts(b->plan, to)) return false;
    mti_print_line(
        to, "  peak %s bytes predicted%s%s%s; %s%s again, %.1f %% of forward and backward",
        MTI_THOUSANDS(f.peak), measured ? ", " : "", measured ? MTI_THOUSANDS(measured) : "",
        measured ? " measured" : "", MTI_SCALED((double)f.flops.recompute),
        f.flops.recompute ? "FLOP" : " FLOP", percent_again(&f.flops));
    mti_print(to->out, "  found in %.2f s with %d simulated runs\n", b->seconds,
              mt_budget_simulations(b->budget));
    return true;
}

static void figure_cells(mti_table *t, const mt_budget_figures *f)
{
    mti_table_cells(t, "%s|%s%s|%.1f %%", MTI_THOUSANDS(f->peak),
                    MTI_SCALED((double)f->flops.recompute), f->flops.recompute ? "FLOP" : " FLOP",
                    percent_again(&f->flops));
}

bool mti_print_budget_front(const mti_budget_found *b, const mti_sheet *to)
{
    mti_table *t = mti_table_new("lrrr", "|peak|again|");
    for (int i = 0; i < b->n_front; i++) {
        mt_budget_figures f = mti_budget_figures_of(b->front[i]);
        mti_table_cell(t, "%s", i ? "" : "with a budget");
        figure_cells(t, &f);
    }
    mti_table_rule(t);
    for (int i = 0; i < MTI_BUDGET_PRESETS; i++) {
        mti_table_cell(t, "--checkpoint %s", mti_budget_presets[i]);
        figure_cells(t, &b->presets[i]);
    }
    mti_heading(to, "Peak against FLOPs again");
    return mti_table_finish(t, to);
}

/* ---- the picture ---- */

bool mti_draw_budget(const mti_budget_found *b, const char *path)
{
    mti_svg_point front[MTI_BUDGET_POINTS], others[MTI_BUDGET_PRESETS];
    const mti_workload *w = b->workload;
    char title[MTI_TITLE];
    for (int i = 0; i < b->n_front; i++) {
        mt_budget_figures f = mti_budget_figures_of(b->front[i]);
        front[i] = (mti_svg_point){(double)f.peak, percent_again(&f.flops), NULL};
    }
    for (int i = 0; i < MTI_BUDGET_PRESETS; i++)
        others[i] = (mti_svg_point){(double)b->presets[i].peak, percent_again(&b->presets[i].flops),
                                    mti_budget_presets[i]};
    mti_title(title, sizeof title, w->name, &w, 1);
    return mti_svg_curve_write(
               &(mti_svg_curve){.title = title,
                                .subtitle = "simulated on the meta device; matrix products count, "
                                            "of a whole step",
                                .bytes_name = "peak of allocated bytes",
                                .percent_name = "FLOPs computed again",
                                .front_name = "least within a budget",
                                .others_name = "the same in every layer",
                                .n_front = (size_t)b->n_front,
                                .n_others = MTI_BUDGET_PRESETS,
                                .front = front,
                                .others = others},
               path) == MT_OK;
}

/* ---- JSON ---- */

static void describe_part(mti_fields *f, const void *plan)
{
    mt_budget_part part = {0};
    char keeps[PART_TEXT] = "";
    if (plan) mt_budget_plan_get(plan, f->i, &part, keeps, sizeof keeps);
    KEYS(f, mt_budget_part, &part, KEY(from), KEY_AS("layers", n), KEY(group), KEY(core));
    mti_field_text(f, "keeps", keeps);
}

static void describe_plan(mti_fields *f, const mt_budget_plan *plan)
{
    const mt_budget_figures b = plan ? mti_budget_figures_of(plan) : (mt_budget_figures){0};
    KEYS(f, mt_budget_figures, &b, KEY(peak), KEY_AS("recompute_flops", flops.recompute),
         KEY(reserved));
    mti_field_list(f, "parts", describe_part, plan, plan ? mt_budget_plan_count(plan) : 0, 0);
}

static void describe_front(mti_fields *f, const void *found)
{
    describe_plan(f, ((const mti_budget_found *)found)->front[f->i]);
}

DESCRIBE(describe_preset, mt_budget_figures, KEY(peak), KEY_AS("recompute_flops", flops.recompute));

static void describe_presets(mti_fields *f, const void *found)
{
    const mt_budget_figures *presets = ((const mti_budget_found *)found)->presets;
    for (int i = 0; i < MTI_BUDGET_PRESETS; i++)
        mti_field_object(f, mti_budget_presets[i], describe_preset, &presets[i]);
}

typedef struct budget {
    const mti_budget_found *found;
    size_t measured;
    bool front;
} budget;

static void describe_budget(mti_fields *f, const void *object)
{
    const budget *o = object;
    const mti_budget_found *b = o->found;
    describe_plan(f, b->plan);
    mti_field_size(f, "budget", b->plan ? b->workload->budget : 0);
    mti_field_size(mti_null_unless(f, o->measured), "measured_peak", o->measured);
    if (!o->front) return;
    mti_field_list(f, "front", describe_front, b, (size_t)b->n_front, 0);
    mti_field_object(f, "presets", describe_presets, b);
}

void mti_field_budget(mti_fields *f, const mti_budget_found *found, size_t measured, bool front)
{
    mti_field_object(mti_null_unless(f, found->plan), "budget", describe_budget,
                     &(budget){found, measured, front});
}
