/* fit_text.c: what fits, in ten lines of 80 columns, and the command that shows the first in full.
 */
#include <string.h>
#include "report/results.h"

#define GIB  1073741824.0
#define MOST 5 /* set-ups shown, one less if the answer takes two lines; if none fits, ... */
#define NEAR 2 /* ... and beside them what would */

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

static void print_answer(const mti_fit_report *f, FILE *out, const mti_style *style)
{
    const mt_fit_result *r = f->result;
    const mt_fit_setup *first = &r->setups[0];
    bool fits = first->fits;
    mti_inked(out, style, fits ? MTI_GOOD : MTI_BAD, "%s", fits ? "fits" : "does not fit");
    double left = gib(r->capacity) - gib(first->reserved);
    char figures[160];
    const char *besides = mti_fit_besides(first);
    mti_format(figures, sizeof figures, "%s: %.1f of %.1f GiB, %.1f %s%s%s",
               fits ? "fastest" : "least", gib(first->reserved), gib(r->capacity),
               fits ? left : -left, fits ? "free" : "over", besides ? "; " : "",
               besides ? besides : "");
    int n =
        mti_print(out, ": %s on %lld x %s;", f->workload->name, (long long)r->gpus, r->gpu.name);
    bool wide = (fits ? 4 : 12) + n + 1 + mti_text_width(figures) > style->width;
    mti_print(out, "%s%s\n", wide ? "\n  " : " ", figures); /* a long path to a file */
}

static void print_task(const mti_fit_report *f, FILE *out)
{
    const mti_workload *w = f->workload;
    const mt_fit_result *r = f->result;
    char aside[MTI_NUMBER];
    mti_print(out, "%lld x %lld tokens a step, %s%s%s%s, %s%s; kept aside: %s\n",
              (long long)r->batch, (long long)r->seq, mt_dtype_name(w->config.dtype),
              (w->parallel.fsdp & MT_FSDP_F32_SHARDS) ? " from f32 shards" : "",
              w->memory.amp ? ", amp " : "",
              w->memory.amp ? mt_dtype_name(w->memory.amp_dtype) : "",
              mti_optimizer_name(w->optimizer), w->memory.master ? " and f32 masters" : "",
              mti_thousands(aside, (int64_t)(r->gpu.memory - r->capacity)));
}

/* ---- the set-ups ---- */

/* Whether a faster one with the same divisions is shown. */
static bool is_shown(const mt_fit_result *r, const size_t *shown, int n, const mt_fit_setup *s)
{
    for (int i = 0; i < n; i++) {
        const mt_fit_setup *t = &r->setups[shown[i]];
        if (t->parallel.tensor == s->parallel.tensor &&
            t->parallel.pipeline == s->parallel.pipeline &&
            t->parallel.context == s->parallel.context && !strcmp(t->checkpoint, s->checkpoint) &&
            !strcmp(t->offload, s->offload))
            return true;
    }
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

/* pieces: there is a column for ranks with pieces of sequences. */
static void add_row(mti_table *t, const char *with, const mt_fit_setup *s, bool pieces)
{
    const mt_parallel *h = &s->parallel;
    char rate[MTI_NUMBER];
    if (with) mti_table_cell(t, "%s", with);
    mti_table_cell(t, "%lld%s", (long long)h->tensor, h->sequence ? "+sp" : "");
    mti_table_cell(t, h->interleave > 1 ? "%lld/%lld" : "%lld", (long long)h->pipeline,
                   (long long)h->interleave);
    if (pieces) mti_table_cell(t, "%lld", (long long)h->context);
    mti_table_cell(t, "%lld", (long long)h->data);
    mti_table_cell(t, h->data * h->context > 1 ? "%d" : "-", h->zero);
    mti_table_cell(t, "%lld x %lld", (long long)h->microbatches, (long long)s->microbatch);
    mti_table_cell(t, "%s", s->checkpoint);
    mti_table_cell(t, "%s", s->offload);
    mti_table_cell(t, "%.1f", gib(s->reserved));
    if (with) return;
    mti_table_cell(t, "%.3f", s->time.total);
    mti_table_cell(t, "%s", mti_thousands(rate, (int64_t)s->tokens_per_second));
    mti_table_cell(t, "%.0f %%", 100 * s->mfu);
}

static bool print_setups(const mti_fit_report *f, FILE *out, const mti_style *style)
{
    static const char *const plain[] = {"with",    "tp",  "pp",  "dp",     "zero",     "batches",
                                        "checkpt", "off", "GiB", "s/step", "tokens/s", "MFU"};
    static const char *const cut[] = {"with",   "tp",       "pp",      "cp",  "dp",
                                      "zero",   "batches",  "checkpt", "off", "GiB",
                                      "s/step", "tokens/s", "MFU"};
    size_t shown[MOST];
    int n = choose(f->result, shown);
    const mti_fit_remedies *others = f->remedies;
    bool fits = f->result->n_fitting > 0;
    bool pieces = false; /* a column for ranks with pieces of sequences */
    for (int i = 0; i < n; i++) pieces = pieces || f->result->setups[shown[i]].parallel.context > 1;
    for (int i = 0; i < others->n; i++) pieces = pieces || others->at[i].setup.parallel.context > 1;
    const char *const *headings = pieces ? cut : plain;
    mti_table *t = mti_table_new((pieces ? fits ? "lrrrrrllrrrr" : "llrrrrrllr"
                                  : fits ? "lrrrrllrrrr"
                                         : "llrrrrllr"),
                                 headings + fits);
    for (int i = 0; i < n; i++)
        add_row(t, fits ? NULL : "as asked", &f->result->setups[shown[i]], pieces);
    for (int i = 0; i < others->n; i++)
        add_row(t, others->at[i].change, &others->at[i].setup, pieces);
    return mti_table_finish(t, out, style);
}

/* ---- where the first one's time goes, and what it was traded for ---- */

static void print_time(const mti_fit_report *f, FILE *out, const mti_style *style)
{
    const mt_fit_time *t = &f->result->setups[0].time;
    double percent = 100 / t->total;
    char text[300], cp[40] = "";
    if (t->context > 0) mti_format(cp, sizeof cp, "cp %.0f, ", percent * t->context);
    mti_format(text, sizeof text,
               "a model, at %.4g of peak: products %.0f %%, memory %.0f, tp %.0f, pp %.0f, %sdp "
               "%.0f, host %.0f, step %.0f",
               f->utilisation, percent * t->products, percent * t->memory, percent * t->layers,
               percent * (t->stages + t->bubble), cp, percent * t->data, percent * t->host,
               percent * t->step);
    mti_print_wrapped(out, 0, style->width, text);
}

static void print_cost(const mti_fit_report *f, FILE *out)
{
    const mt_fit_setup *s = &f->result->setups[0];
    if (f->price > 0) mti_print(out, "$%.2f for a billion tokens", mti_fit_cost(f, s));
    if (f->price > 0 && f->tokens > 0)
        mti_print(out, ", $%.0f for all; ", mti_fit_cost(f, s) * f->tokens / 1e9);
    if (f->tokens > 0)
        mti_print(out, "%.1f days for %.3g tokens", mti_fit_seconds(f, s) / 86400, f->tokens);
    if (f->price > 0 || f->tokens > 0) fputc('\n', out);
}

static void print_count(const mti_fit_report *f, FILE *out, const mti_style *style)
{
    const mt_fit_result *r = f->result;
    char text[200];
    mti_format(
        text, sizeof text,
        "%zu measured in %.1f s, %zu fit; ruled out: %lld by size, %lld by states, %lld slower",
        r->n, r->seconds, r->n_fitting, (long long)r->n_larger, (long long)r->n_states,
        (long long)r->n_slower);
    mti_print_wrapped(out, 0, style->width, text);
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
    mti_style style = mti_style_of(out);
    if (!style.elides) style.width = 80; /* in a pipe, too */
    print_answer(f, out, &style);
    print_task(f, out);
    if (!print_setups(f, out, &style)) return false;
    if (f->result->n_fitting) print_time(f, out, &style);
    if (f->result->n_fitting) print_cost(f, out);
    print_count(f, out, &style);
    print_command(f->command, out);
    return true;
}
