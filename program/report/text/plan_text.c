/* plan_text.c: a plan as text. */
#include <string.h>
#include "report/sections.h"
#include "report/results.h"

#define DAY 86400.0

/* ---- a formula beside its measurement ---- */

static bool print_comparison(const mti_comparison *c, const mti_sheet *to)
{
    const mt_plan_formula *f = &c->formula;
    mti_heading(to, "%c%s: %s = %s %s", f->name[0] - 'a' + 'A', f->name + 1, f->text,
                MTI_SCALED((double)f->value), f->unit);
    mti_print_wrapped(to, 2, f->source);
    mti_table *t = mti_table_new("lrw", NULL);
    mti_equation_row(t, " ", f->value, "the formula");
    for (int i = 0; i < f->n_rows; i++) {
        const mt_plan_row *row = &f->rows[i];
        bool takes = row->amount < 0;
        mti_equation_row(t, takes ? "-" : "+", takes ? -row->amount : row->amount, "%s", row->text);
    }
    mti_table_rule(t);
    mti_equation_row(t, "=", f->expected, "expected");
    mti_equation_row(t, " ", c->measured, "measured on meta");
    mti_residual_row(t, c->unexplained, "difference",
                     "   NOT EXPLAINED: formula and measurement disagree");
    return mti_table_finish(t, to);
}

/* Activations as a multiple of the parameters' bytes. */
static void print_proportion(const mti_plan_result *p, const mti_sheet *to)
{
    const mti_comparison *kept = mti_plan_find(p, "activations");
    const mti_comparison *count = mti_plan_find(p, "parameters");
    size_t e = mt_dtype_size(p->workload->config.dtype);
    double params = (double)count->measured * (double)e;
    mti_print_line(to,
                   "The parameters take %s bytes: the activations are %.2f times as much by the "
                   "formula, %.2f as measured.",
                   MTI_SCALED(params), (double)kept->formula.value / params,
                   (double)kept->measured / params);
}

/* What a forward pass multiplies. */
static bool print_components(const mti_plan_result *p, const mti_sheet *to)
{
    mti_table *t = mti_table_new("llrrr", "component|formula|FLOP of one||FLOP");
    for (int i = 0; i < p->n_components; i++) {
        const mt_plan_component *c = &p->components[i];
        mti_table_cells(t, "%s|%s|%s|x %lld|%s", c->name, c->text, MTI_THOUSANDS(c->each),
                        (long long)c->times, MTI_THOUSANDS(c->times * c->each));
    }
    fputs("\n", to->out);
    return mti_table_finish(t, to);
}

static void print_training(const mti_plan_result *p, FILE *out)
{
    double formula, counted;
    char by_formula[MTI_NUMBER], as_counted[MTI_NUMBER];
    if (!mti_plan_training(p, &formula, &counted)) return;
    mti_print(out, "Training on %s tokens takes %s FLOP by the formula, %s as counted.\n",
              MTI_SCALED(p->options->tokens), mti_power_of_ten(by_formula, formula),
              mti_power_of_ten(as_counted, counted));
}

static void print_cache_share(const mti_plan_result *p, FILE *out)
{
    double share;
    if (mti_plan_cache_share(p, &share))
        mti_print(out, "The cache takes %.2f times the bytes of the parameters.\n", share);
}

static void print_parts(const mti_plan_result *p, FILE *out)
{
    const mt_flops *f = &p->flops;
    mti_print(out, "Of these: forward %s, backward %s, recomputed %s.\n",
              MTI_SCALED((double)f->forward), MTI_SCALED((double)f->backward),
              MTI_SCALED((double)f->recompute));
}

/* ---- bytes for each parameter ---- */

static bool print_regimes(const mti_plan_result *p, const mti_sheet *to)
{
    double n = (double)mti_plan_find(p, "parameters")->measured;
    const mt_plan_regime *r;
    mti_heading(to, "Bytes that each parameter takes, whatever the batch");
    mti_table *t =
        mti_table_new("lrrrrr", "training in|parameter|gradient|optimizer|together|in all");
    for (size_t i = 0; (r = mt_plan_regime_at(i)); i++) {
        double each = r->parameter + r->gradient + r->optimizer;
        mti_table_cells(t, "%s%s|%g|%g|%g|%g|%s", r->name, r->options ? "" : " *", r->parameter,
                        r->gradient, r->optimizer, each, MTI_SCALED(each * n));
        mti_table_ink(t, MTI_DIM);
        mti_table_note(t, 0, "  %s", r->source);
    }
    if (!mti_table_finish(t, to)) return false;
    fputs("  * by formula only: no option of plan runs it (profile --lora-rank, --qlora and "
          "--inference\n    measure the last three, examples/mixed_precision the other)\n",
          to->out);
    return true;
}

/* ---- time ---- */

static void print_time(const mti_plan_result *p, const mti_sheet *to)
{
    double formula_s, measured_s;
    const mti_plan_options *o = p->options;
    if (!mti_plan_time(p, &formula_s, &measured_s)) return;
    mti_heading(to, "Time: %s tokens on %lld x %sFLOP/s at %g %%", MTI_SCALED(o->tokens),
                (long long)o->devices, MTI_SCALED(o->flops_rate), 100 * o->utilisation);
    fputs("  Narayanan et al. 2021, 5.1: operations / (devices x FLOP/s reached)\n", to->out);
    mti_print(to->out,
              "  %.2f days by the formula for FLOPs\n  %.2f days by what the ops counted\n",
              formula_s / DAY, measured_s / DAY);
    mti_print_line(
        to, "  Left out: other work than products, and waiting; --utilisation stands for both.");
}

/* ---- what fits ---- */

static void print_fit(const mti_largest *fit, const char *what, const char *at, int64_t other,
                      FILE *out)
{
    if (fit->largest == 0) {
        mti_print(out, "  %s at %s=%lld: none, not even 1 fits (%d run%s)\n", what, at,
                  (long long)other, fit->runs, fit->runs == 1 ? "" : "s");
        return;
    }
    mti_print(out, "  %s at %s=%lld: %s%lld; peak %s, reserved %s (%d runs", what, at,
              (long long)other, fit->refused ? "" : "at least ", (long long)fit->largest,
              MTI_THOUSANDS(fit->need.peak), MTI_THOUSANDS(fit->need.reserved), fit->runs);
    if (fit->refused) fprintf(out, "; %lld was refused", (long long)fit->refused);
    fputs(")\n", out);
}

static void print_fits(const mti_plan_result *p, const mti_sheet *to)
{
    const mti_workload *w = p->workload;
    if (!w->device.capacity) return;
    mti_heading(to, "What fits %s bytes, two whole steps each, run on meta",
                MTI_THOUSANDS(w->device.capacity));
    print_fit(&p->batch, "largest batch", "s", w->seq, to->out);
    if (mti_plan_find(p, "states") && mti_plan_find(p, "activations"))
        fprintf(to->out,
                "    (states and activations alone would leave room for %lld by the formulas, for "
                "%lld as measured)\n",
                (long long)p->batch.by_formula, (long long)p->batch.by_sum);
    print_fit(&p->seq, "longest sequence", "b", w->batch, to->out);
    if (w->config.context && p->seq.largest > w->config.context)
        fprintf(to->out,
                "  (the model's context is %lld; these were run with one as long as they are)\n",
                (long long)w->config.context);
}

/* ---- the answer, and the details ---- */

/* Whether the workload itself, with its batch and length, is within the capacity. */
static bool fits(const mti_plan_result *p)
{
    const mti_workload *w = p->workload;
    return p->need.reserved <= w->device.capacity || p->batch.largest >= w->batch;
}

/* The letters of a rank's formula that the heading does not explain. */
static void print_letters(const mti_plan_result *p, const mti_sheet *to)
{
    const mti_comparison *kept = mti_plan_find(p, "activations");
    const mti_workload *w = p->workload;
    char text[200] = "";
    mt_model_config c = w->config;
    if (!w->ranked || !kept) return;
    mt_model_config_resolve(&w->config, &c);
    const struct {
        char letter;
        int64_t value;
        const char *what;
    } all[] = {{'q', c.heads * c.head_dim, " queries' width"},
               {'k', c.kv_heads * c.head_dim, " keys' width"},
               {'t', w->parallel.tensor, " ranks"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strchr(kept->formula.text, all[i].letter))
            mti_append(text, sizeof text, "%c = %lld%s, ", all[i].letter, (long long)all[i].value,
                       all[i].what);
    mti_append(text, sizeof text, "L: layers in flight");
    mti_print_wrapped(to, 2, text);
}

/* Prints the formulas of textbooks beside what is measured. */
static bool print_formulas(const mti_plan_result *p, const mti_sheet *to)
{
    double given = p->options->parameters;
    mti_table *t = mti_table_new("lwrr", "|formula|says|measured on meta");
    for (int i = 0; i < p->n_items; i++) {
        const mti_comparison *c = &p->items[i];
        bool counts = !strcmp(c->formula.name, "parameters") && given == 0;
        if (!strcmp(c->formula.name, "parameters in brief")) continue;
        bool saved = !strcmp(c->formula.name, "activations");
        mti_table_cell(t, "%s%s", c->formula.name, counts ? ", N" : saved ? ", saved" : "");
        mti_table_cells(t, "%s|%s|%s", c->formula.text, MTI_SCALED((double)c->formula.value),
                        MTI_THOUSANDS(c->measured));
    }
    if (!mti_table_finish(t, to)) return false;
    if (!mti_plan_find(p, "activations"))
        mti_print_line(
            to,
            "Of activations under --amp there is no formula: memtape profile lists what is kept.");
    if (given > 0) mti_print(to->out, "  N = %s parameters, as given\n", MTI_SCALED(given));
    print_letters(p, to);
    return true;
}

/* "largest batch at s=2048: 2; longest sequence at b=1: 4096" */
static void print_searches(const mti_plan_result *p, FILE *out)
{
    const mti_workload *w = p->workload;
    mti_print(out, "  largest batch at s=%lld: %s%lld; longest sequence at b=%lld: %s%lld\n",
              (long long)w->seq, p->batch.refused ? "" : "at least ", (long long)p->batch.largest,
              (long long)w->batch, p->seq.refused ? "" : "at least ", (long long)p->seq.largest);
}

static bool print_answer(const mti_plan_result *p, const mti_sheet *to)
{
    char where[80] = "";
    if (strcmp(p->need.phase, "the second step") != 0)
        snprintf(where, sizeof where, "reached in %s", p->need.phase);
    mti_print_model(p->workload, p->device, to);
    mti_print_place(p->workload, to);
    const mti_answer a = {.where = where,
                          .peak = p->need.peak,
                          .reserved = p->need.reserved,
                          .at_peak = p->need.at_peak,
                          .gradients = p->need.gradients,
                          .steps = p->workload->optimizer != MTI_OPT_NONE,
                          .capacity = p->workload->device.capacity,
                          .fits = fits(p)};
    if (!mti_print_answer(&a, to)) return false;
    if (a.capacity) print_searches(p, to->out);
    return print_formulas(p, to);
}

static bool print_item(const mti_plan_result *p, const mti_comparison *c, const mti_sheet *to)
{
    const char *name = c->formula.name;
    if (!print_comparison(c, to)) return false;
    if (!strcmp(name, "activations")) print_proportion(p, to);
    if (!strcmp(name, "flops")) print_parts(p, to->out);
    if (!strcmp(name, "flops forward")) return print_components(p, to);
    return strcmp(name, "states") != 0 || print_regimes(p, to);
}

/* Says what else there is, in one line; and why the two sums of activations differ. */
static void print_rest(const mti_plan_result *p, const mti_sheet *to)
{
    if (p->budget.plan || !mti_plan_find(p, "activations"))
        mti_inked(to, MTI_DIM, "-v adds where the formulas come from, and what they leave out%s\n",
                  p->budget.plan ? "; other budgets" : "");
    else
        mti_inked(
            to, MTI_DIM,
            "saved: after forward, not at the peak; -v adds the formulas' sources and limits\n");
}

bool mti_print_plan(const mti_plan_result *p, bool verbose, FILE *out)
{
    const mti_sheet sheet = mti_sheet_of(out);
    if (!print_answer(p, &sheet)) return false;
    for (int i = 0; verbose && i < p->n_items; i++)
        if (!print_item(p, &p->items[i], &sheet)) return false;
    print_training(p, out);
    print_cache_share(p, out);
    print_time(p, &sheet);
    if (verbose) print_fits(p, &sheet);
    if (p->budget.plan && !mti_print_budget(&p->budget, 0, &sheet)) return false;
    if (p->budget.plan && verbose && !mti_print_budget_front(&p->budget, &sheet)) return false;
    if (!verbose) print_rest(p, &sheet);
    return true;
}
