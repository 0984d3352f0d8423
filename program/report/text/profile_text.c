/* profile_text.c: a profile as text. */
#include <string.h>
#include "nn/model.h"
#include "report/sections.h"
#include "report/results.h"

#define SAME   ""
#define ABSENT NULL

/* A part of the growth; of_0: the words where it is 0. */
static void growth_row(mti_table *t, const char *sign, int64_t bytes, const char *words,
                       const char *of_0)
{
    if (bytes || of_0) mti_equation_row(t, sign, bytes, "%s", bytes || !*of_0 ? words : of_0);
}

static bool print_growth(const mti_growth *g, const mti_sheet *to)
{
    mti_heading(to, "What the allocator's growth over forward is made of");
    mti_table *t = mti_table_new("lrw", NULL);
    int n = 0;
#define PART(member, sign, ...) growth_row(t, n++ ? #sign : " ", g->member, __VA_ARGS__);
#include "measure/growth.def"
#undef PART
    mti_table_rule(t);
    mti_equation_row(t, "=", g->measured - g->residual, "expected");
    mti_equation_row(t, " ", g->measured, "measured: allocated after forward less before");
    mti_residual_row(t, g->residual, "difference",
                     "   THE BOOKS DO NOT BALANCE: please report this");
    return mti_table_finish(t, to);
}

/* The formula's letters that the heading does not explain. */
static void print_letters(const mti_profile_result *p, FILE *out)
{
    mt_model_config c = p->workload.config;
    const mti_formula *f = &p->formula;
    bool q = false, k = false, t = false, u = false;
    for (int i = 0; i < f->n_terms; i++) {
        q = q || strchr(f->terms[i].text, 'q');
        k = k || strchr(f->terms[i].text, 'k');
        t = t || strchr(f->terms[i].text, 't');
        u = u || strchr(f->terms[i].text, 'u');
    }
    mt_model_config_resolve(&p->workload.config, &c);
    if (f->n_layers)
        fprintf(out,
                "  in flight: L = %lld layers, E = %lld forwards with the embeddings, H = %lld "
                "with the head\n",
                (long long)f->n_layers, (long long)f->n_first, (long long)(f->n_last + f->n_ahead));
    if (f->n_ahead)
        fprintf(out, "  P = %lld predictions ahead, each of which has one of L and one of H\n",
                (long long)f->n_ahead);
    if (f->n_groups) fprintf(out, "  N = %lld groups of layers\n", (long long)f->n_groups);
    if (t) fprintf(out, "  t = %lld ranks\n", (long long)p->workload.parallel.tensor);
    if (p->workload.ranked && p->workload.parallel.context > 1)
        fprintf(out, "  s = %lld positions of this rank\n",
                (long long)(p->workload.seq / p->workload.parallel.context));
    if (u) fprintf(out, "  u = %lld keys that its queries see\n", (long long)f->n_keys);
    if (q)
        fprintf(out, "  q = %lld, the width of all heads' queries\n",
                (long long)(c.heads * c.head_dim));
    if (k)
        fprintf(out, "  k = %lld, the width of all heads' keys\n",
                (long long)(c.kv_heads * c.head_dim));
}

static bool print_formula(const mti_profile_result *p, const mti_sheet *to)
{
    const mti_formula *f = &p->formula;
    if (!f->known) {
        mti_heading(to, "There is no closed formula for these choices yet");
        return true;
    }
    mti_heading(to, "The closed formula for %zu-byte floats: %s",
                mt_dtype_size(p->workload.config.dtype), f->text);
    print_letters(p, to->out);
    mti_table *t = mti_table_new("lrlw", NULL);
    for (int i = 0; i < f->n_terms; i++) {
        mti_equation_row(t, i ? "+" : " ", f->terms[i].bytes, "%s", f->terms[i].text);
        mti_table_cell(t, "%s", f->terms[i].what);
    }
    for (int i = 0; i < f->n_residual; i++) {
        mti_equation_row(t, "+", f->residual[i].bytes, "beside it");
        mti_table_cell(t, "%s", f->residual[i].text);
    }
    mti_table_rule(t);
    int64_t saved = (int64_t)mt_ledger_bytes(p->measured.ledger);
    mti_equation_row(t, "=", saved - f->unexplained, "expected");
    mti_table_skip(t, 1);
    mti_equation_row(t, " ", saved, "measured");
    mti_table_cell(t, "saved for backward");
    mti_residual_row(t, f->unexplained, "difference",
                     "   NOT EXPLAINED: formula and ledger disagree");
    return mti_table_finish(t, to);
}

/* ---- phases: categories down, phases across ---- */

static size_t figure_of(const mti_phase *phase, size_t at)
{
    return *(const size_t *)((const char *)phase + at);
}

/* at: where a phase has the figure. */
static void phase_row(mti_table *t, const mti_phases *phases, const char *name, size_t at)
{
    mti_table_cell(t, "%s", name);
    for (int i = 0; i < phases->n; i++) mti_table_bytes(t, (int64_t)figure_of(&phases->at[i], at));
}

static void category_rows(mti_table *t, const mti_phases *phases)
{
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) {
        bool any = false;
        for (int i = 0; i < phases->n; i++) any = any || phases->at[i].by_category[c] > 0;
        if (!any) continue;
        mti_table_cell(t, "%s", mt_category_name((mt_category)c));
        for (int i = 0; i < phases->n; i++)
            mti_table_bytes(t, (int64_t)phases->at[i].by_category[c]);
    }
}

/* Floating-point operations of a phase; 0 where none are counted. */
static double flops_of(const mt_flops *flops, const mti_phase *phase)
{
    if (!strcmp(phase->name, "forward")) return (double)flops->forward;
    return !strcmp(phase->name, "backward") ? (double)flops->backward : 0;
}

static void work_rows(mti_table *t, const mti_phases *phases, const mt_flops *done, bool timed)
{
    mti_table_cell(t, "FLOP");
    for (int i = 0; i < phases->n; i++) {
        double flops = flops_of(done, &phases->at[i]);
        mti_table_cell(t, "%s", flops > 0 ? MTI_SCALED(flops) : "-");
    }
    if (!timed) return;
    mti_table_cell(t, "milliseconds");
    for (int i = 0; i < phases->n; i++) mti_table_cell(t, "%.1f", phases->at[i].seconds * 1e3);
    mti_table_cell(t, "FLOP/s");
    for (int i = 0; i < phases->n; i++) {
        double flops = flops_of(done, &phases->at[i]), seconds = phases->at[i].seconds;
        mti_table_cell(t, "%s", flops > 0 && seconds > 0 ? MTI_SCALED(flops / seconds) : "-");
    }
}

static bool print_phases(const mti_phases *phases, const mt_flops *flops, bool timed,
                         const mti_sheet *to)
{
    char headings[256] = "at the end of", columns[2 + MTI_MAX_PHASES] = "l";
    for (int i = 0; i < phases->n; i++) {
        mti_append(headings, sizeof headings, "|%s", phases->at[i].name);
        strcat(columns, "r");
    }
    mti_table *t = mti_table_new(columns, headings);
    category_rows(t, phases);
    mti_table_rule(t);
    mti_table_ink(t, MTI_BOLD);
    phase_row(t, phases, "requested", offsetof(mti_phase, requested));
    phase_row(t, phases, "allocated", offsetof(mti_phase, allocated));
    phase_row(t, phases, "active", offsetof(mti_phase, allocated));
    phase_row(t, phases, "peak within", offsetof(mti_phase, peak));
    phase_row(t, phases, "reserved", offsetof(mti_phase, reserved));
    work_rows(t, phases, flops, timed);
    return mti_table_finish(t, to);
}

/* What starting takes, if that is more than a step; else "". */
static const char *start_text(const mti_measurement *m, char *buf, size_t size)
{
    bool steady;
    const mti_phase *highest = mti_highest_phase(m, &steady);
    snprintf(buf, size, "The start takes more: %s bytes in %s.", MTI_THOUSANDS(highest->peak),
             highest == &m->phases.at[0] ? "init" : "the first step");
    if (steady) *buf = 0;
    return buf;
}

static bool print_steps(const mti_profile_result *p, const mti_sheet *to)
{
    const mti_measurement *m = &p->measured;
    const mti_steady *s = &m->steady;
    bool timed = mt_device_has_data(p->device);
    char start[128];
    mti_heading(to, "The first step, phase by phase, in bytes of whole blocks");
    if (!print_phases(&m->phases, &m->flops, timed, to)) return false;
    mti_heading(to, "A step in the steady state: the second%s",
                p->workload.optimizer == MTI_OPT_NONE
                    ? ""
                    : ", which begins with the optimizer's state there");
    if (!print_phases(&s->phases, &s->flops, timed, to)) return false;
    mti_print(to->out, "  at most %s bytes allocated, %s reserved\n", MTI_THOUSANDS(s->peak),
              MTI_THOUSANDS(s->reserved));
    if (p->left.freed)
        mti_print(to->out,
                  "  Once model, input, gradients and optimizer are freed, %s bytes stay: the "
                  "workspaces of matrix\n  products, one for each pass; once these are given back, "
                  "%s.\n",
                  MTI_THOUSANDS(p->left.freed), MTI_THOUSANDS(p->left.given_back));
    if (*start_text(m, start, sizeof start)) mti_print(to->out, "  %s\n", start);
    return true;
}

/* ---- inference beside training ---- */

static void pair_row(mti_table *t, const char *name, size_t inference, size_t training)
{
    mti_table_cells(t, "%s|%s|%s", name, MTI_THOUSANDS(inference), MTI_THOUSANDS(training));
}

/* The most that any phase has of the figure. */
static size_t most_of(const mti_phases *phases, size_t at)
{
    size_t most = 0;
    for (int i = 0; i < phases->n; i++)
        if (figure_of(&phases->at[i], at) > most) most = figure_of(&phases->at[i], at);
    return most;
}

static bool print_inference(const mti_profile_result *p, const mti_sheet *to)
{
    const mti_measurement *m = &p->measured, *without = &p->inference;
    if (!p->infers) return true;
    const mti_phases forward = {.n = 2, .at = {without->phases.at[1], m->phases.at[1]}};
    mti_heading(to, "Inference, a forward pass without a tape, beside training");
    if (mti_is_whole(p->workload.config.kind))
        fputs("  inference ends with the logits, training's forward with the loss\n", to->out);
    mti_table *t = mti_table_new("lrr", "at the end of forward|inference|training");
    category_rows(t, &forward);
    mti_table_rule(t);
    mti_table_ink(t, MTI_BOLD);
    phase_row(t, &forward, "allocated", offsetof(mti_phase, allocated));
    phase_row(t, &forward, "peak within", offsetof(mti_phase, peak));
    phase_row(t, &forward, "reserved", offsetof(mti_phase, reserved));
    pair_row(t, "saved for backward", mt_ledger_bytes(without->ledger), mt_ledger_bytes(m->ledger));
    pair_row(t, "peak of it all", most_of(&without->phases, offsetof(mti_phase, peak)),
             mti_highest_phase(m, NULL)->peak);
    if (p->left.freed)
        pair_row(t, "left once all is freed", p->left_by_inference.freed, p->left.freed);
    return mti_table_finish(t, to);
}

/* ---- the answer, and the details ---- */

/* "in backward, in gpt.wte (embedding)"; what starting takes, where that is more. */
static void where_text(const mti_measurement *m, char *buf, size_t size)
{
    const mti_timeline *tl = &m->timeline;
    char start[128];
    *buf = 0;
    if (tl->events.n) {
        const mt_mem_event *e = &tl->events.at[mti_timeline_peak(tl)];
        bool loss = !strcmp(e->module, "loss"); /* whose gradient backward begins with */
        mti_append(buf, size, "reached %s %s%s%s",
                   loss && !strcmp(e->phase, "backward") ? "at the start of" : "in",
                   *e->phase ? e->phase : "init",
                   loss         ? ", in the "
                   : *e->module ? ", in "
                                : "",
                   e->module);
        if (*e->op) mti_append(buf, size, " (%s)", e->op);
    }
    if (*start_text(m, start, sizeof start)) mti_append(buf, size, "%s%s", *buf ? ". " : "", start);
}

/* What of the answer depends on which experts the tokens take. */
static bool print_routed(const mti_profile_result *p, FILE *out)
{
    const char *given = p->workload.routing ? p->workload.routing : "balanced";
    if (!p->workload.config.experts || mt_device_has_data(p->device)) return true;
    if (p->routed.rows)
        mti_print(out, "  a layer's experts have %s rows with routing %s\n",
                  MTI_THOUSANDS(p->routed.rows), given);
    if (!p->routed.worst)
        fputs("  whichever experts the tokens take, no byte of this differs\n", out);
    else
        mti_print(out, "  routing %s; the peak: %s balanced, %s if all take the same experts\n",
                  given, MTI_BYTES(p->routed.balanced), MTI_BYTES(p->routed.worst));
    return true;
}

static bool print_answer(const mti_profile_result *p, const mti_sheet *to)
{
    const mti_measurement *m = &p->measured;
    char where[512];
    mti_print_model(&p->workload, p->device, to);
    mti_print_rank(&p->workload, m, to);
    uint64_t active = 0; /* the config is checked */
    if (p->workload.config.experts) mt_model_config_active_params(&p->workload.config, &active);
    mti_print(to->out, "%s parameters in %s bytes", MTI_THOUSANDS(m->n_params),
              MTI_THOUSANDS(m->param_bytes));
    if (active) mti_print(to->out, "; a token meets %s", MTI_THOUSANDS(active));
    mti_print(to->out, "\n");
    where_text(m, where, sizeof where);
    mti_answer a = {.where = where,
                    .peak = m->steady.peak,
                    .reserved = m->steady.reserved,
                    .at_peak = m->steady.by_category,
                    .gradients = p->workload.memory.step_in_backward ? 0 : m->grad_bytes,
                    .steps = p->workload.optimizer != MTI_OPT_NONE,
                    .capacity = p->workload.device.capacity,
                    .left_out = mti_left_out_bytes(&p->workload),
                    .fits = true}; /* or the steps would have been refused */
    mti_answer_add(&a, "saved for backward", mt_ledger_bytes(m->ledger));
    if (m->optimizer_host) mti_answer_add(&a, "optimizer, in host memory", m->optimizer_host);
    if (m->param_host) mti_answer_add(&a, "parameters, in host memory", m->param_host);
    if (p->infers) {
        mti_answer_add(&a, "inference: allocated",
                       most_of(&p->inference.phases, offsetof(mti_phase, peak)));
        mti_answer_add(&a, "inference: reserved",
                       most_of(&p->inference.phases, offsetof(mti_phase, reserved_peak)));
    }
    if (!mti_print_answer(&a, to)) return false;
    mti_print_left_out(&p->workload, to);
    return print_routed(p, to->out) &&
           (!p->budget.plan || mti_print_budget(&p->budget, mti_highest_phase(m, NULL)->peak, to));
}

static bool print_outside(const mti_profile_result *p, const mti_sheet *to)
{
    const mti_outside *o = &p->outside;
    if (!o->n) return true;
    mti_heading(to, "On the card, %s, nvidia-smi shows %s", o->gpu,
                MTI_BYTES(mti_outside_total(o)));
    return mti_print_outside(o, to);
}

static bool print_streams(const mti_profile_result *p, const mti_sheet *to)
{
    return mti_print_streams(&p->measured, to);
}

static bool print_saved(const mti_profile_result *p, const mti_sheet *to)
{
    const mti_measurement *m = &p->measured;
    mti_heading(to, "Saved for backward, right after forward: %s bytes (%s)",
                MTI_THOUSANDS(mt_ledger_bytes(m->ledger)), MTI_BYTES(mt_ledger_bytes(m->ledger)));
    return mti_print_saved(m->ledger, m->in_flight > 1, to);
}

bool mti_print_profile(const mti_profile_result *p, bool whole, bool verbose, FILE *out)
{
    const mti_sheet sheet = mti_sheet_of(out);
    const mti_measurement *m = &p->measured;
    static const struct {
        bool (*print)(const mti_profile_result *p, const mti_sheet *to);
        bool needed;
    } sections[] = {
        {print_answer, true},   {print_outside, true},           {mti_print_warnings, true},
        {print_streams, false}, {mti_print_memory_stats, false}, {print_saved, false}};
    mti_screen s;
    mti_screen_begin(&s, &sheet, verbose);
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        const mti_sheet *to = mti_screen_open(&s);
        if (!to || !mti_screen_close(&s, sections[i].print(p, to), sections[i].needed))
            return false;
    }
    if (verbose)
        return print_growth(&m->growth, &sheet) && print_formula(p, &sheet) &&
               mti_print_states(&p->workload, m, &sheet) && print_steps(p, &sheet) &&
               print_inference(p, &sheet) && mti_print_memory(m, whole, &sheet);
    if (whole && !mti_print_memory(m, whole, &sheet)) return false;
    mti_inked(&sheet, MTI_DIM, "-v: %show they add up, the formula, phases, who held the peak\n",
              s.less ? "all saved tensors, " : "");
    return true;
}
