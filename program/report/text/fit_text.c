/* fit_text.c: what fits, in ten lines of 80 columns, and the command that shows the first in full.
 */
#include <string.h>
#include "report/sections.h"
#include "report/results.h"

#define GIB 1073741824.0
#define MOST                                                                                       \
    MTI_FIT_FASTEST /* one less is shown if the answer takes two lines; if none fits, ... */
#define NEAR 2      /* ... and beside them what would */
#define DAY  86400.0

double mti_fit_cost(const mti_fit_report *f, const mt_fit_setup *s)
{
    return f->price / 3600 * (double)f->result->gpus / s->tokens_per_second * 1e9;
}

double mti_fit_seconds(const mti_fit_report *f, const mt_fit_setup *s)
{
    return f->tokens / s->tokens_per_second;
}

/* FSDP2's streams each have a pool of their own, whose blocks no other stream gets: in the figure
 * where blocks are gathered as it does. In a pipeline it keeps parameters and gradients whole for a
 * step. */
const char *mti_fit_besides(const mt_fit_setup *s)
{
    if (s->parallel.zero != 3) return NULL;
    if (s->parallel.pipeline > 1) return "in a pipeline FSDP2 takes far more";
    return s->parallel.fsdp & MT_FSDP_BLOCK ? NULL : "FSDP2 takes 5 to 20 % more";
}

static double gib(size_t n_bytes) { return (double)n_bytes / GIB; }

/* ---- the answer ---- */

/* Whether the answer is another one with another common stack, however it is divided. */
static bool stack_decides(const mti_fit_report *f)
{
    const mti_fit_other *o = f->other;
    return o->recipe && f->result->setups[0].fits != (o->setup.fits || o->any);
}

/* The answer in words. What leaves less than is printed is no answer to rely on. */
static const char *verdict_of(const mti_fit_report *f)
{
    const mt_fit_setup *first = &f->result->setups[0];
    if (!first->fits) return "does not fit";
    if (stack_decides(f)) return "fits with fused kernels";
    if (mti_left_out_bytes(f->workload) > f->result->capacity - first->reserved)
        return "fits without what is not counted";
    return gib(f->result->capacity) - gib(first->reserved) < 0.05 ? "fits barely" : "fits";
}

static void print_answer(const mti_fit_report *f, const mti_sheet *to)
{
    const mt_fit_result *r = f->result;
    const mt_fit_setup *first = &r->setups[0];
    bool fits = first->fits;
    const char *verdict = verdict_of(f);
    mti_inked(to, fits ? MTI_GOOD : MTI_BAD, "%s", verdict);
    double needed = gib(first->reserved), room = gib(r->capacity);
    char figures[160];
    const char *besides = mti_fit_besides(first);
    if (fits)
        mti_format(figures, sizeof figures, "fastest: %.1f of %.1f GiB, %.1f free", needed, room,
                   room - needed);
    else if (needed <= room && !first->fits_host)
        mti_format(figures, sizeof figures,
                   "needs %.1f of %.1f GiB, but %.1f of %.1f in host memory", needed, room,
                   gib(first->host), gib(r->host_memory));
    else
        mti_format(figures, sizeof figures,
                   r->gpus > 1 ? "each needs %.1f GiB and has %.1f"
                               : "needs %.1f GiB, the card has %.1f",
                   needed, room);
    if (fits && first->parallel.pipeline == 1 && first->parallel.microbatches > 1)
        mti_append(figures, sizeof figures, "; in microbatches of %lld",
                   (long long)first->microbatch);
    if (besides) mti_append(figures, sizeof figures, "; %s", besides);
    int n = mti_print(to->out, ": %s on %lld x %s;", f->workload->name, (long long)r->gpus,
                      r->gpu.name);
    bool wide = mti_text_width(verdict) + n + 1 + mti_text_width(figures) > to->width;
    mti_print(to->out, "%s%s\n", wide ? "\n  " : " ", figures); /* a long path to a file */
}

static void print_task(const mti_fit_report *f, const mti_sheet *to)
{
    const mti_workload *w = f->workload;
    const mt_fit_result *r = f->result;
    char aside[MTI_NUMBER], stack[200], text[600];
    mti_stack_text(stack, sizeof stack, w);
    mti_format(text, sizeof text, "%lld x %lld tokens a step, %s%s%s%s, %s%s; %s; kept aside%s: %s",
               (long long)r->batch, (long long)r->seq, mt_dtype_name(w->config.dtype),
               (w->parallel.fsdp & MT_FSDP_F32_SHARDS) ? " from f32 shards" : "",
               w->memory.amp ? ", amp " : "",
               w->memory.amp ? mt_dtype_name(w->memory.amp_dtype) : "",
               mti_optimizer_name(w->optimizer), w->memory.master ? " and f32 masters" : "", stack,
               !f->outside.n ? ""
               : r->gpus > 1 ? " for CUDA and NCCL"
                             : " for CUDA",
               mti_bytes_text(aside, sizeof aside, r->gpu.memory - r->capacity));
    mti_print_wrapped(to, 0, text);
    snprintf(text, sizeof text, "recipe %s: %s", w->recipe, w->recipe_options);
    if (*w->recipe) mti_print_wrapped(to, 0, text);
    mti_print_usual_rank(w, to);
    mti_print_left_out(w, to);
}

static void print_most(const mti_fit_most *m, FILE *out)
{
    char largest[MTI_NUMBER], refused[MTI_NUMBER];
    const char *what = m->in_batches ? "the most sequences at once" : "the longest sequences";
    mti_thousands(largest, m->largest), mti_thousands(refused, m->refused);
    if (m->refused)
        mti_print(out, "%s: %s; %s do not fit\n", what, m->largest ? largest : "none", refused);
    else
        mti_print(out, "%s: %s%s\n", what, largest,
                  m->in_batches ? ", as many as are searched" : ", the model's context");
}

/* Whether the first set-up fits with another common stack, too. */
static void print_other(const mti_fit_report *f, const mti_sheet *to)
{
    const mti_fit_other *o = f->other;
    bool fits = o->setup.fits;
    if (!o->recipe) return;
    mti_print(to->out, "with Transformers' own modules (--recipe %s): %.1f GiB, ", o->recipe,
              gib(o->setup.reserved));
    mti_inked(to, fits ? MTI_GOOD : MTI_BAD, "%s",
              fits     ? "fits"
              : o->any ? "does not fit"
                       : "nothing fits");
    mti_print(to->out, "%s\n", !fits && o->any ? "; others do" : "");
}

/* The division with which the model was trained. */
static void print_trained(const mti_fit_report *f, const mti_sheet *to)
{
    const mti_fit_published *p = f->trained;
    const mt_parallel *h = &p->setup.parallel;
    char text[600], parts[24] = "", ep[24] = "", zero[24] = "", modules[MTI_MODULES_TEXT];
    if (!p->source) return;
    if (h->interleave > 1) mti_format(parts, sizeof parts, "/%lld", (long long)h->interleave);
    if (h->expert > 1) mti_format(ep, sizeof ep, ", ep %lld", (long long)h->expert);
    if (h->data > 1) mti_format(zero, sizeof zero, ", zero %lld", (long long)h->zero);
    mti_format(text, sizeof text,
               "published: %lld GPUs, tp %lld%s, pp %lld%s, dp %lld%s%s, %lld x %lld x %lld "
               "tokens, %s recomputed (%s); measured here with this optimizer, as 1F1B: %.1f GiB, "
               "%s",
               (long long)p->gpus, (long long)h->tensor, h->sequence ? "+sp" : "",
               (long long)h->pipeline, parts, (long long)h->data, ep, zero,
               (long long)h->microbatches, (long long)p->setup.microbatch, (long long)p->seq,
               mti_modules_text(&mti_recomputed,
                                p->recompute ? p->recompute : MT_RECOMPUTE_CORE_ATTN, modules),
               p->source, gib(p->setup.reserved), p->setup.fits ? "fits" : "does not fit");
    mti_print_wrapped(to, 0, text);
}

/* An offload's copies in host memory. */
static void print_host(const mti_fit_report *f, FILE *out)
{
    const mt_fit_setup *s = &f->result->setups[0];
    if (!s->host) return;
    mti_print(out, "row 1 moves %.1f GiB to CPU memory", gib(s->host));
    if (f->result->host_memory) mti_print(out, " (a node has %.1f)", gib(f->result->host_memory));
    mti_print(out, "%s\n", s->fits_host ? "" : ": too little");
}

/* ---- the set-ups ---- */

/* Whether a faster one with the same divisions is shown. */
static bool is_shown(const mt_fit_result *r, const size_t *shown, int n, const mt_fit_setup *s)
{
    for (int i = 0; i < n; i++)
        if (mti_fit_alike(&r->setups[shown[i]], s)) return true;
    return false;
}

static int choose(const mt_fit_result *r, size_t shown[MOST])
{
    int n = 0;
    size_t from = r->n_fitting ? r->n_fitting : r->n;
    int most = r->n_fitting ? MOST - (mti_fit_besides(&r->setups[0]) != NULL) : NEAR;
    for (size_t i = 0; i < from && n < most; i++)
        if (!is_shown(r, shown, n, &r->setups[i])) shown[n++] = i;
    return n;
}

/* ---- every kind of GPU ---- */

/* What the table says of a kind; kinds with the same texts share a row. */
typedef struct kind_texts {
    char as_asked[24], adapted[2][24], how[120];
} kind_texts;

/* A verdict, with what is taken where that is known: "fits 20.1". */
static void verdict_text(char out[24], const mt_fit_setup *s)
{
    mti_format(out, 24, s->fits ? "fits" : "no");
    if (s->reserved) mti_append(out, 24, " %.1f", gib(s->reserved));
}

/* How the set-up that fits is made: "checkpoints full, tp 2, dp 4, zero 3". */
static void how_text(char *how, size_t n, const mt_fit_setup *s)
{
    const mt_parallel *h = &s->parallel;
    const struct {
        const char *name;
        int64_t value;
    } ranks[] = {{"tp", h->tensor}, {"pp", h->pipeline}, {"dp", h->data}};
    *how = 0;
    if (strcmp(s->checkpoint, "none") != 0) mti_append(how, n, "checkpoints %s", s->checkpoint);
    if (strcmp(s->offload, "none") != 0) mti_append(how, n, "%soffload", *how ? ", " : "");
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        if (ranks[i].value > 1)
            mti_append(how, n, "%s%s %lld", *how ? ", " : "", ranks[i].name,
                       (long long)ranks[i].value);
    if (h->data > 1 && h->zero) mti_append(how, n, ", zero %lld", (long long)h->zero);
}

static kind_texts texts_of(const mti_fit_kind *k)
{
    kind_texts t = {.as_asked = "no bf16", .how = "--dtype f16"};
    char how[100] = "";
    if (k->no_bf16) return t;
    if (k->setup.fits) how_text(how, sizeof how, &k->setup);
    mti_format(t.how, sizeof t.how, "%s%s%s", k->in_f16 ? "f16" : "", k->in_f16 && *how ? ", " : "",
               how);
    verdict_text(t.as_asked, &k->setup);
    for (int i = 0; i < 2; i++)
        if (k->adapted[i].tried) verdict_text(t.adapted[i], &k->adapted[i].setup);
    return t;
}

static bool same_texts(const kind_texts *a, const kind_texts *b)
{
    return !strcmp(a->as_asked, b->as_asked) && !strcmp(a->adapted[0], b->adapted[0]) &&
           !strcmp(a->adapted[1], b->adapted[1]) && !strcmp(a->how, b->how);
}

#define NAMES_WIDTH 74

/* Fills in the row of a kind and of the larger ones with the same answer, and their names below. */
static void kinds_row(mti_table *t, const mti_fit_kinds *all, size_t i, const bool adapted[2])
{
    const kind_texts texts = texts_of(&all->at[i]);
    const mti_ink ink = all->at[i].no_bf16 ? MTI_DIM : all->at[i].setup.fits ? MTI_GOOD : MTI_PLAIN;
    char has[32], line[NAMES_WIDTH + 40] = "";
    size_t most = 0;
    for (size_t j = 0; j < all->n; j++) {
        const kind_texts other = texts_of(&all->at[j]);
        if (!same_texts(&texts, &other)) continue;
        if (j < i) return; /* it is in that one's row */
        if (all->at[j].capacity > most) most = all->at[j].capacity;
    }
    mti_format(has, sizeof has, "%.1f", gib(all->at[i].capacity));
    if (gib(most) - gib(all->at[i].capacity) >= 0.05)
        mti_append(has, sizeof has, "-%.1f", gib(most));
    mti_table_ink(t, ink);
    mti_table_cells(t, "%s|%s", has, texts.as_asked);
    for (int k = 0; k < 2; k++)
        if (adapted[k]) mti_table_cell(t, "%s", texts.adapted[k]);
    mti_table_cell(t, "%s", texts.how);
    for (size_t j = i; j <= all->n; j++) {
        const kind_texts other = j < all->n ? texts_of(&all->at[j]) : texts;
        if (!same_texts(&texts, &other)) continue;
        const char *name = j < all->n ? all->at[j].gpu->name : "";
        if (j == all->n || strlen(line) + strlen(name) > NAMES_WIDTH) {
            mti_table_ink(t, ink);
            mti_table_note(t, 0, "  %s", line);
            *line = 0;
        }
        mti_append(line, sizeof line, "%s%s", *line ? "  " : "", name);
    }
}

bool mti_print_fit_kinds(const mti_fit_kinds *all, const mti_workload *w, int64_t gpus, FILE *out)
{
    const mti_sheet sheet = mti_sheet_of(out);
    mti_sheet prose = sheet;
    char text[600], stack[300];
    bool adapted[2] = {false, false};
    mti_stack_text(stack, sizeof stack, w);
    mti_format(text, sizeof text,
               "%s on %lld GPU%s of each kind, in GiB: %lld x %lld tokens a step, %s, %s%s; %s",
               w->name, (long long)gpus, gpus > 1 ? "s" : "",
               (long long)(w->batch ? w->batch : gpus), (long long)w->seq,
               mt_dtype_name(w->config.dtype), mti_optimizer_name(w->optimizer),
               w->memory.master ? " and f32 masters" : "", stack);
    if (prose.width > 80) prose.width = 80;
    mti_print_wrapped(&prose, 0, text);
    mti_print_usual_rank(w, &prose);
    for (size_t i = 0; i < all->n; i++)
        for (int k = 0; k < 2; k++) adapted[k] = adapted[k] || all->at[i].adapted[k].tried;
    char headings[80] = "has|as asked", columns[8] = "ll";
    if (adapted[0]) mti_append(headings, sizeof headings, "|LoRA");
    if (adapted[1]) mti_append(headings, sizeof headings, "|QLoRA");
    mti_append(headings, sizeof headings, "|with");
    mti_append(columns, sizeof columns, "%s",
               adapted[0] && adapted[1]   ? "lll"
               : adapted[0] || adapted[1] ? "ll"
                                          : "l");
    mti_table *t = mti_table_new(columns, headings);
    for (size_t i = 0; i < all->n; i++) kinds_row(t, all, i, adapted);
    if (!mti_table_finish(t, &sheet)) return false;
    mti_print_wrapped(
        &prose, 0,
        "GiB are those of the first way found to fit; with more room less is computed "
        "again or kept by the CPU. f16: these multiply no bf16. --gpu NAME shows the "
        "fastest ways of one kind, or what would make it fit.");
    return true;
}

/* ---- rates: one figure, or those of what published runs reached ---- */

#define RANGE (2 * MTI_NUMBER)
typedef void say_fn(char *buf, double value, double largest);
static void as_count(char *buf, double x, double largest)
{
    (void)largest;
    mti_thousands(buf, (int64_t)x);
}
static void as_percent(char *buf, double x, double largest)
{
    (void)largest;
    mti_format(buf, MTI_NUMBER, "%.0f", x);
}
static void as_dollars(char *buf, double x, double largest)
{
    if (largest >= 100)
        mti_thousands(buf, (int64_t)(x + 0.5));
    else
        mti_format(buf, MTI_NUMBER, "%.2f", x);
}

static void as_seconds(char *buf, double x, double largest)
{
    mti_format(buf, MTI_NUMBER, largest < 1 ? "%.3g" : largest < 10 ? "%.2f" : "%.0f", x);
}

/* A rate, or with `per_rate` what is divided by one. */
static const char *span(const mti_fit_report *f, char buf[RANGE], double x, bool per_rate,
                        say_fn *say)
{
    double least = 1, most = 1;
    if (f->published) mti_gpu_reached(&f->result->gpu, &least, &most);
    const double low = per_rate ? x / most : x * least, high = per_rate ? x / least : x * most;
    char first[MTI_NUMBER], second[MTI_NUMBER];
    say(first, low, high), say(second, high, high);
    mti_format(buf, RANGE, "%s%s%s", first, f->published ? "-" : "", f->published ? second : "");
    return buf;
}

/* Columns that only some answers have: ranks with shards of sequences; that divide experts. */
typedef struct extras {
    bool shards, experts;
} extras;

static void add_row(mti_table *t, const mti_fit_report *f, const char *with, const mt_fit_setup *s,
                    const extras *x)
{
    const mt_parallel *h = &s->parallel;
    char text[RANGE];
    if (with) mti_table_cell(t, "%s", with);
    mti_table_cell(t, "%lld%s", (long long)h->tensor, h->sequence ? "+sp" : "");
    mti_table_cell(t, h->interleave > 1 ? "%lld/%lld" : "%lld", (long long)h->pipeline,
                   (long long)h->interleave);
    if (x->shards) mti_table_cell(t, "%lld", (long long)h->context);
    mti_table_cell(t, "%lld", (long long)h->data);
    if (x->experts) mti_table_cell(t, "%lld", (long long)h->expert);
    mti_table_cell(t, h->data * h->context > 1 ? "%lld" : "-", (long long)h->zero);
    mti_table_cell(t, "%lld x %lld", (long long)h->microbatches, (long long)s->microbatch);
    mti_table_cell(t, "%s", s->checkpoint);
    mti_table_cell(t, "%s", s->offload);
    mti_table_cell(t, "%.1f", gib(s->reserved));
    if (with) return;
    mti_table_cell(t, "%s", span(f, text, s->tokens_per_second, false, as_count));
    mti_table_cell(t, "%s %%", span(f, text, 100 * s->mfu, false, as_percent));
}

/* What notes say below, where a column would be too wide: the optimizer's change keeps the masters;
 * the adapters of a change. */
static const char masters[] = " --master-weights", adapters[] = "--lora-rank 16 --lora-targets q,v";
static const char *label(const char *change, char text[MTI_FIT_CHANGE])
{
    const char *end = strstr(change, masters);
    if (end) {
        snprintf(text, MTI_FIT_CHANGE, "%.*s *", (int)(end - change), change);
        return text;
    }
    if (strncmp(change, adapters, sizeof adapters - 1) != 0) return change;
    const char *rest = change + sizeof adapters - 1;
    snprintf(text, MTI_FIT_CHANGE, "%s +", *rest ? rest + 1 : "--lora-rank 16");
    return text;
}

static void print_notes(const mti_fit_remedies *all, FILE *out)
{
    bool keeps = false, adapts = false;
    for (int i = 0; i < all->n; i++) {
        keeps = keeps || strstr(all->at[i].change, masters);
        adapts = adapts || strstr(all->at[i].change, adapters);
    }
    if (keeps) mti_print(out, "  * with f32 master weights kept\n");
    if (adapts) mti_print(out, "  + with %s\n", adapters);
}

static void look_for_extras(extras *x, const mt_fit_setup *s)
{
    x->shards = x->shards || s->parallel.context > 1;
    x->experts = x->experts || s->parallel.expert > 1;
}

/* with: there is a column for what was changed; else there is one for what is reached. */
static mti_table *new_table(bool with, const extras *x)
{
    const struct {
        const char *heading, *alignment;
        bool shown;
    } all[] = {{"with", "l", with},    {"tp", "l", true},      {"pp", "r", true},
               {"cp", "r", x->shards}, {"dp", "r", true},      {"ep", "r", x->experts},
               {"zero", "r", true},    {"batches", "r", true}, {"checkpt", "l", true},
               {"off", "l", true},     {"GiB", "r", true},     {"tokens/s", "r", !with},
               {"MFU", "r", !with}};
    char headings[128] = "", alignment[16] = "";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].shown) continue;
        mti_append(headings, sizeof headings, "%s%s", *headings ? "|" : "", all[i].heading);
        strcat(alignment, all[i].alignment);
    }
    return mti_table_new(alignment, headings);
}

static bool print_setups(const mti_fit_report *f, const mti_sheet *to)
{
    size_t shown[MOST];
    char text[MTI_FIT_CHANGE];
    int n = choose(f->result, shown);
    const mti_fit_remedies *others = f->remedies;
    bool fits = f->result->n_fitting > 0;
    extras x = {false, false};
    for (int i = 0; i < n; i++) look_for_extras(&x, &f->result->setups[shown[i]]);
    for (int i = 0; i < others->n; i++) look_for_extras(&x, &others->at[i].setup);
    mti_table *t = new_table(!fits, &x);
    for (int i = 0; i < n; i++)
        add_row(t, f, fits ? NULL : "as asked", &f->result->setups[shown[i]], &x);
    for (int i = 0; i < others->n; i++)
        add_row(t, f, label(others->at[i].change, text), &others->at[i].setup, &x);
    if (!mti_table_finish(t, to)) return false;
    print_notes(others, to->out);
    return true;
}

/* ---- where the first one's time goes, and what it was traded for ---- */

/* 2.5 days, 4 to 5 years. */
static void print_duration(const mti_fit_report *f, double seconds, FILE *out)
{
    static const struct {
        double seconds;
        const char *name;
    } units[] = {
        {365.25 * DAY, "years"}, {DAY, "days"}, {3600, "hours"}, {60, "minutes"}, {1, "s"}};
    double least = 1, most = 1;
    if (f->published) mti_gpu_reached(&f->result->gpu, &least, &most);
    const double low = seconds / most;
    const double high = seconds / least;
    size_t i = 0;
    while (i < 4 && low < 2 * units[i].seconds) i++;
    mti_print(out, "%.2g", low / units[i].seconds);
    if (f->published) mti_print(out, " to %.2g", high / units[i].seconds);
    mti_print(out, " %s", units[i].name);
}

static void print_time(const mti_fit_report *f, const mti_sheet *to)
{
    const mt_fit_time *t = &f->result->setups[0].time;
    double percent = 100 / t->total;
    char text[400], cp[40] = "", ep[40] = "", how[100], step[RANGE];
    if (t->context > 0) mti_format(cp, sizeof cp, "cp %.0f, ", percent * t->context);
    if (t->experts > 0) mti_format(ep, sizeof ep, "ep %.0f, ", percent * t->experts);
    double least, most;
    mti_gpu_reached(&f->result->gpu, &least, &most);
    if (f->published)
        mti_format(how, sizeof how, "at %g to %g of datasheets' rates, as published runs reached%s",
                   least, most, f->result->gpu.least_reached > 0 ? "" : " on other GPUs");
    else
        mti_format(how, sizeof how, "with products at %.4g of the datasheet's rate",
                   f->utilisation);
    mti_format(text, sizeof text,
               "estimated, %s: %s s a step; products %.0f %%, memory %.0f, tp %.0f, pp %.0f, "
               "%s%sdp %.0f, host %.0f, step %.0f",
               how, span(f, step, t->total, true, as_seconds), percent * t->products,
               percent * t->memory, percent * t->layers, percent * (t->stages + t->bubble), cp, ep,
               percent * t->data, percent * t->host, percent * t->step);
    mti_print_wrapped(to, 0, text);
}

/* 15T, 300B, 1.5M */
static void print_tokens(double tokens, FILE *out)
{
    static const char letters[] = {'T', 'B', 'M', 0};
    double unit = 1e12;
    int i = 0;
    while (i < 3 && tokens < unit) i++, unit /= 1000;
    mti_print(out, "%.4g%.1s tokens", tokens / (i < 3 ? unit : 1), &letters[i]);
}

static void print_cost(const mti_fit_report *f, FILE *out)
{
    const mt_fit_setup *s = &f->result->setups[0];
    const double each = mti_fit_cost(f, s);
    char text[RANGE];
    if (f->price > 0)
        mti_print(out, "$%s for 1B tokens%s", span(f, text, each, true, as_dollars),
                  f->tokens > 0 ? "; " : "");
    if (f->tokens > 0) print_tokens(f->tokens, out);
    if (f->tokens > 0 && f->price > 0)
        mti_print(out, ": $%s,", span(f, text, each * f->tokens / 1e9, true, as_dollars));
    if (f->tokens > 0) mti_print(out, "%s ", f->price > 0 ? "" : ":");
    if (f->tokens > 0) print_duration(f, mti_fit_seconds(f, s), out);
    if (f->price > 0 || f->tokens > 0) fputc('\n', out);
}

static void print_count(const mti_fit_report *f, const mti_sheet *to)
{
    const mt_fit_result *r = f->result;
    const int64_t too_large = r->n_larger + r->n_states, rest = too_large + r->n_slower;
    char text[240];
    mti_format(text, sizeof text, "%s ways to train it; %zu tried in %.1f s, %zu fit",
               MTI_THOUSANDS((size_t)(rest + (int64_t)r->n)), r->n, r->seconds, r->n_fitting);
    if (too_large && r->n_slower)
        mti_append(text, sizeof text, ". The rest cannot fit (%s) or cannot be faster (%s)",
                   MTI_THOUSANDS((size_t)too_large), MTI_THOUSANDS((size_t)r->n_slower));
    else if (rest)
        mti_append(text, sizeof text, ". The rest cannot %s", too_large ? "fit" : "be faster");
    mti_print_wrapped(to, 0, text);
}

/* Broken at options, so that it can be pasted. */
static void print_command(const char *command, FILE *out)
{
    int column = 2;
    fputs("\n  ", out);
    while (*command) {
        const char *next = strstr(command + 1, " --");
        int n = next ? (int)(next - command) : (int)strlen(command);
        if (column + n > 77 && column > 2) {
            fputs(" \\\n   ", out);
            column = 3;
        }
        mti_print(out, "%.*s", n, command);
        column += n;
        command += n;
    }
    fputc('\n', out);
}

bool mti_print_fit(const mti_fit_report *f, FILE *out)
{
    mti_sheet sheet = mti_sheet_of(out);
    if (!sheet.elides) sheet.width = 80; /* in a pipe, too */
    print_answer(f, &sheet);
    if (stack_decides(f)) print_other(f, &sheet);
    print_task(f, &sheet);
    if (f->most) print_most(f->most, out);
    if (!stack_decides(f)) print_other(f, &sheet);
    print_trained(f, &sheet);
    print_host(f, out);
    if (!print_setups(f, &sheet)) return false;
    if (f->result->n_fitting) print_time(f, &sheet);
    if (f->result->n_fitting) print_cost(f, out);
    print_count(f, &sheet);
    if (f->rows && !mti_print_outside(&f->outside, &sheet)) return false;
    print_command(f->command, out);
    return true;
}
