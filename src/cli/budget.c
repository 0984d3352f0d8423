/* budget.c: the search that --budget asks for, over what the program would run. */
#include <string.h>
#include "cli/budget.h"
#include "report/svg_curve.h"

/* Named as mt_model_checkpoint has them. */
static const char *const presets[MTI_BUDGET_PRESETS] = {"none", "selective", "full", "sqrt"};

bool mti_budgeted_pretend(const mti_options *o, mt_device *device)
{
    bool cpu = !strcmp(o->device, "cpu") || o->scratch_of_cpu;
    return (!o->threads || mt_device_set_threads(device, (int)o->threads) == MT_OK) &&
           (!cpu || mt_device_count_scratch_of(device, "cpu") == MT_OK) &&
           (!o->gemm_workspace ||
            mt_device_set_gemm_workspace(device, (size_t)o->gemm_workspace) == MT_OK);
}

static bool simulate(const mti_budgeted *x, mt_device *device, const mti_spending *how)
{
    mti_trial trial = mti_trial_of(x->options);
    mti_measurement m = {0};
    trial.spending = how;
    bool ok = mti_budgeted_pretend(x->options, device) && mti_measure(&m, device, &trial);
    mti_measurement_free(&m);
    return ok;
}

static mt_status run(void *user, mt_device *device, const mt_budget_plan *plan)
{
    const mti_budgeted *x = user;
    mti_spending how = x->options->spending;
    how.budget = plan;
    return simulate(x, device, &how) ? MT_OK : mt_last_status();
}

bool mti_budgeted_make(mti_budgeted *x, const mti_options *o)
{
    *x = (mti_budgeted){.options = o, .spending = o->spending};
    double began = mti_now();
    x->budget = mt_budget_new(run, x);
    bool ok = x->budget && mt_budget_solve(x->budget, (size_t)o->budget, &x->plan) == MT_OK;
    x->spending.budget = x->plan;
    x->seconds = mti_now() - began;
    x->n_simulations = mt_budget_simulations(x->budget);
    return ok;
}

void mti_budgeted_free(mti_budgeted *x)
{
    mt_budget_free(x->budget);
    *x = (mti_budgeted){0};
}

/* Of the two that a simulation makes. */
static mt_flops of_one_step(mt_flops f)
{
    return (mt_flops){f.forward / 2, f.backward / 2, f.recompute / 2};
}

void mti_note_peak(void *user, const mt_mem_event *event)
{
    size_t *peak = user;
    if (event->kind != MT_MEM_OOM && event->current > *peak) *peak = event->current;
}

static bool simulate_preset(const mti_budgeted *x, const char *preset, mt_budget_figures *f)
{
    mti_spending how = x->options->spending;
    how.checkpoint = preset;
    *f = (mt_budget_figures){0};
    mt_device *device = mt_device_open("meta");
    int observer = device ? mt_mem_add_observer(device, mti_note_peak, &f->peak) : 0;
    bool ok = observer && simulate(x, device, &how);
    if (observer) mt_mem_remove_observer(device, observer);
    if (ok) f->flops = of_one_step(mt_flops_get(device));
    mt_device_release(device);
    return ok;
}

bool mti_budgeted_front(mti_budgeted *x)
{
    if (mt_budget_front(x->budget, MTI_BUDGET_POINTS, x->front, &x->n_front) != MT_OK) return false;
    for (int i = 0; i < MTI_BUDGET_PRESETS; i++)
        if (!simulate_preset(x, presets[i], &x->presets[i])) return false;
    return true;
}

/* ---- text ---- */

static mt_budget_figures figures_of(const mt_budget_plan *plan)
{
    mt_budget_figures f = mt_budget_plan_figures(plan);
    f.flops = of_one_step(f.flops);
    return f;
}

/* Of what forward and backward compute anyway. */
static double percent_again(const mt_flops *f)
{
    double once = (double)f->forward + (double)f->backward;
    return once > 0 ? 100 * (double)f->recompute / once : 0;
}

#define PART_TEXT 512

static void part_cells(mti_table *t, const mt_budget_part *part, const char *keeps)
{
    long long from = part->from, to = part->from + part->n - 1;
    if (from == to)
        mti_table_cell(t, "h.%lld", from);
    else
        mti_table_cell(t, "h.%lld-%lld", from, to);
    if (part->core)
        mti_table_cell(t, "the core of attention is computed again");
    else if (!part->group)
        mti_table_cell(t, "everything is kept");
    else if (*keeps)
        mti_table_cell(t, "computed again%s, but for %s", part->group > 1 ? " together" : "",
                       keeps);
    else
        mti_table_cell(t, "computed again%s", part->group > 1 ? " together" : "");
    if (part->group > 1 && part->group < part->n)
        mti_table_cell(t, "%lld at a time", (long long)part->group);
    else
        mti_table_cell(t, "%s", "");
}

static bool print_parts(const mt_budget_plan *plan, FILE *out, const mti_style *style)
{
    mti_table *t = mti_table_new("lll", NULL);
    bool ok = true;
    for (size_t i = 0; ok && i < mt_budget_plan_count(plan); i++) {
        mt_budget_part part;
        char keeps[PART_TEXT];
        ok = mt_budget_plan_get(plan, i, &part, keeps, sizeof keeps) == MT_OK;
        if (ok) part_cells(t, &part, keeps);
    }
    ok = ok && mti_table_print(t, out, style) == MT_OK;
    mti_table_free(t);
    return ok;
}

bool mti_budgeted_print(const mti_budgeted *x, size_t measured, FILE *out, const mti_style *style)
{
    mt_budget_figures f = figures_of(x->plan);
    char budget[MTI_NUMBER], peak[MTI_NUMBER], again[MTI_NUMBER], real[MTI_NUMBER];
    mti_heading(out, style, "Checkpoints within %s bytes",
                mti_thousands(budget, x->options->budget));
    if (!print_parts(x->plan, out, style)) return false;
    fprintf(out, "  peak %s bytes predicted", mti_thousands(peak, (int64_t)f.peak));
    if (measured) fprintf(out, ", %s measured", mti_thousands(real, (int64_t)measured));
    fprintf(out,
            "; %s%s again, %.1f %% of forward and backward\n"
            "  found in %.2f s with %d simulated runs\n",
            mti_scaled(again, (double)f.flops.recompute), f.flops.recompute ? "FLOP" : " FLOP",
            percent_again(&f.flops), x->seconds, x->n_simulations);
    return true;
}

static void figure_cells(mti_table *t, const mt_budget_figures *f)
{
    char text[MTI_NUMBER];
    mti_table_bytes(t, (int64_t)f->peak);
    mti_table_cell(t, "%s%s", mti_scaled(text, (double)f->flops.recompute),
                   f->flops.recompute ? "FLOP" : " FLOP");
    mti_table_cell(t, "%.1f %%", percent_again(&f->flops));
}

bool mti_budgeted_print_front(const mti_budgeted *x, FILE *out, const mti_style *style)
{
    mti_table *t = mti_table_new("lrrr", (const char *const[]){"", "peak", "again", ""});
    for (int i = 0; i < x->n_front; i++) {
        mt_budget_figures f = figures_of(x->front[i]);
        mti_table_cell(t, "%s", i ? "" : "with a budget");
        figure_cells(t, &f);
    }
    mti_table_rule(t);
    for (int i = 0; i < MTI_BUDGET_PRESETS; i++) {
        mti_table_cell(t, "--checkpoint %s", presets[i]);
        figure_cells(t, &x->presets[i]);
    }
    mti_heading(out, style, "Peak against FLOPs again");
    bool ok = mti_table_print(t, out, style) == MT_OK;
    mti_table_free(t);
    return ok;
}

/* ---- the picture ---- */

bool mti_budgeted_draw(const mti_budgeted *x, const char *path)
{
    mti_svg_point front[MTI_BUDGET_POINTS], others[MTI_BUDGET_PRESETS];
    const mti_options *o = x->options;
    char title[128];
    for (int i = 0; i < x->n_front; i++) {
        mt_budget_figures f = figures_of(x->front[i]);
        front[i] = (mti_svg_point){(double)f.peak, percent_again(&f.flops), NULL};
    }
    for (int i = 0; i < MTI_BUDGET_PRESETS; i++)
        others[i] = (mti_svg_point){(double)x->presets[i].peak, percent_again(&x->presets[i].flops),
                                    presets[i]};
    snprintf(title, sizeof title, "%s: b=%lld s=%lld d=%lld l=%lld, %s", o->model,
             (long long)o->batch, (long long)o->seq, (long long)o->config.hidden,
             (long long)o->config.layers, mt_dtype_name(o->config.dtype));
    return mti_svg_curve_write(
               &(mti_svg_curve){.title = title,
                                .subtitle = "simulated on the meta device; matrix products count, "
                                            "of a whole step",
                                .bytes_name = "peak of allocated bytes",
                                .percent_name = "FLOPs computed again",
                                .front_name = "least within a budget",
                                .others_name = "the same in every layer",
                                .n_front = (size_t)x->n_front,
                                .n_others = MTI_BUDGET_PRESETS,
                                .front = front,
                                .others = others},
               path) == MT_OK;
}

/* ---- JSON ---- */

static json_t *figures_json(const mt_budget_figures *f)
{
    json_t *j = json_object();
    mti_json_put_int(j, "peak", f->peak);
    mti_json_put_int(j, "recompute_flops", f->flops.recompute);
    return j;
}

static json_t *plan_json(const mt_budget_plan *plan)
{
    mt_budget_figures f = figures_of(plan);
    json_t *j = figures_json(&f), *parts = json_array();
    mti_json_put_int(j, "reserved", f.reserved);
    for (size_t i = 0; i < mt_budget_plan_count(plan); i++) {
        mt_budget_part part;
        char keeps[PART_TEXT];
        if (mt_budget_plan_get(plan, i, &part, keeps, sizeof keeps) != MT_OK) break;
        json_t *p = json_object();
        mti_json_put_int(p, "from", (uint64_t)part.from);
        mti_json_put_int(p, "layers", (uint64_t)part.n);
        mti_json_put_int(p, "group", (uint64_t)part.group);
        mti_json_put(p, "core", json_boolean(part.core));
        mti_json_put_text(p, "keeps", keeps);
        mti_json_push(parts, p);
    }
    mti_json_put(j, "parts", parts);
    return j;
}

json_t *mti_budgeted_json(const mti_budgeted *x, size_t measured)
{
    json_t *j = plan_json(x->plan), *front = json_array(), *others = json_object();
    mti_json_put_int(j, "budget", (uint64_t)x->options->budget);
    mti_json_put(j, "measured_peak", measured ? json_integer((json_int_t)measured) : json_null());
    if (!x->n_front) {
        json_decref(front);
        json_decref(others);
        return j;
    }
    for (int i = 0; i < x->n_front; i++) mti_json_push(front, plan_json(x->front[i]));
    for (int i = 0; i < MTI_BUDGET_PRESETS; i++)
        mti_json_put(others, presets[i], figures_json(&x->presets[i]));
    mti_json_put(j, "front", front);
    mti_json_put(j, "presets", others);
    return j;
}
