/* serve_report.c: how many sequences fit: an answer, a table of all forms and lengths, and its
 * JSON. */
#include <string.h>
#include "fit/serve.h"
#include "nn/model.h"
#include "report/keys.h"
#include "report/results.h"

#define GIB 1073741824.0
#define MIB 1048576.0

/* All figures are in GiB, but in MiB for devices that have less than one. */
static bool is_small(const mti_serve_report *s) { return (double)s->capacity < GIB; }
static const char *unit(const mti_serve_report *s) { return is_small(s) ? "MiB" : "GiB"; }
static double scaled(const mti_serve_report *s, size_t n_bytes)
{
    return (double)n_bytes / (is_small(s) ? MIB : GIB);
}

/* Whether the row has room for as many of the length that is asked for as are wanted. */
static bool takes(const mti_serve_report *s, const mti_serve_row *row)
{
    return row->needs[s->asked].sequences >= (s->users ? s->users : 1);
}

/* The first row that has; else the first. */
static const mti_serve_row *chosen(const mti_serve_report *s)
{
    for (size_t i = 0; i < s->n_rows; i++)
        if (takes(s, &s->rows[i])) return &s->rows[i];
    return &s->rows[0];
}

bool mti_serve_fits(const mti_serve_report *s)
{
    bool fits = s->n_rows && takes(s, chosen(s));
    for (size_t i = 0; i < s->n_rows && !s->users; i++)
        for (size_t k = 0; k < s->n_lengths; k++) fits = fits || s->rows[i].needs[k].sequences;
    return fits;
}

/* Layers that keep the last positions alone: those of their window. */
static int64_t windowed(const mti_serve_report *s)
{
    const mt_model_config *c = &s->workload->config;
    return c->window ? mti_local_layers(c, 0, c->layers) : 0;
}

/* Whether numbers above the one that was found might fit. */
static bool is_open(const mt_serve_need *n) { return n->none_above > n->sequences; }

/* What vLLM has on the card with the answer's weights; all 0 where the model is shared, or no card
 * is named. */
static mti_vllm_share in_vllm(const mti_serve_report *s)
{
    const bool whole = s->gpu && s->gpus == 1 && s->n_rows;
    return whole ? mti_vllm_share_of(s->gpu, &s->workload->config, chosen(s)->needs[0].weights)
                 : (mti_vllm_share){0};
}

/* ---- text ---- */

/* "fits" is said of the first row alone: the others spend fewer bits than was asked for. */
static void print_verdict(const mti_serve_report *s, const mti_serve_row *row,
                          const mt_serve_need *n, const mti_sheet *to)
{
    const mti_serve_row *first = &s->rows[0];
    const bool fits = takes(s, row), other = row != first;
    const char *gpu = s->gpu ? s->gpu->name : "device";
    char most[MTI_NUMBER], length[MTI_NUMBER], others[120] = "", gpus[MTI_NUMBER] = "one";
    if (other)
        mti_format(others, sizeof others, " in %s, %s cache; in %s, %s cache", first->weights,
                   mt_kv_form_name(first->cache), row->weights, mt_kv_form_name(row->cache));
    if (s->gpus > 1) mti_format(gpus, sizeof gpus, "%lld x", (long long)s->gpus);
    const char *verdict = fits && !other ? "fits" : "does not fit";
    mti_inked(to, fits && !other ? MTI_GOOD : MTI_BAD, "%s", verdict);
    int begun = (int)strlen(verdict);
    begun += mti_print(to->out, "%s:%s%s x %s tokens", others, other ? "\n  " : " ",
                       mti_thousands(most, n->sequences ? n->sequences : 1),
                       mti_thousands(length, n->positions));
    int rest = (int)strlen(" of  on  ") + mti_text_width(gpus) + mti_text_width(s->workload->name) +
               mti_text_width(gpu);
    bool wide = begun + rest > to->width; /* a long path to a file */
    mti_print(to->out, "%sof %s on %s %s\n", wide && !other ? "\n  " : " ", s->workload->name, gpus,
              gpu);
}

static void print_answer(const mti_serve_report *s, const mti_sheet *to)
{
    const mti_serve_row *row = chosen(s);
    const mt_serve_need *n = s->users ? &row->users : &row->needs[s->asked];
    char length[MTI_NUMBER], aside[MTI_NUMBER];
    print_verdict(s, row, n, to);
    size_t held = n->by_category[MT_PARAMETER] + n->by_category[MT_CACHE];
    mti_print(to->out,
              "peak %.1f %s: weights %.1f, cache %.1f, at work %.1f; reserved %.1f of %.1f\n",
              scaled(s, n->peak), unit(s), scaled(s, n->by_category[MT_PARAMETER]),
              scaled(s, n->by_category[MT_CACHE]), scaled(s, n->peak - held),
              scaled(s, n->reserved), scaled(s, s->capacity));
    mti_print(to->out, "%s weights, %s cache; prompts read %s tokens at once, in all\n",
              row->weights, mt_kv_form_name(row->cache), mti_thousands(length, s->at_once));
    if (!s->users && is_open(n))
        mti_print(to->out, "one more does not fit, nor any above %s; --exact tries those between\n",
                  mti_thousands(length, n->none_above));
    if (windowed(s))
        mti_print(to->out, "%lld of %lld layers keep the last %s positions alone\n",
                  (long long)windowed(s), (long long)s->workload->config.layers,
                  mti_thousands(length, s->workload->config.window));
    if (s->kept_aside)
        mti_print(to->out, "kept aside for CUDA%s, and to spare: %s of a GPU\n",
                  s->gpus > 1 ? " and NCCL" : "",
                  mti_bytes_text(aside, sizeof aside, s->kept_aside));
    const mti_vllm_share vllm = in_vllm(s);
    if (vllm.sequences)
        mti_print(to->out,
                  "vLLM would have %.1f for the cache: 0.9 of the card, %.1f for its sampler\n",
                  scaled(s, vllm.cache), scaled(s, vllm.sampler));
    fputc('\n', to->out);
}

static bool print_table(const mti_serve_report *s, const mti_sheet *to)
{
    char columns[4 + MTI_SERVE_LENGTHS] = "llr", headings[256];
    snprintf(headings, sizeof headings, "weights|cache|%s", unit(s));
    for (size_t k = 0; k < s->n_lengths; k++) {
        strcat(columns, "r");
        mti_append(headings, sizeof headings, "|%s", MTI_THOUSANDS(s->rows[0].needs[k].positions));
    }
    bool open = false;
    mti_table *t = mti_table_new(columns, headings);
    for (size_t i = 0; i < s->n_rows; i++) {
        const mti_serve_row *row = &s->rows[i];
        mti_table_cell(t, "%s", row->weights);
        mti_table_cell(t, "%s", mt_kv_form_name(row->cache));
        mti_table_cell(t, "%.1f", scaled(s, row->needs[0].weights));
        for (size_t k = 0; k < s->n_lengths; k++) {
            const mt_serve_need *n = &row->needs[k];
            const bool more = is_open(n);
            open = open || more;
            mti_table_cell(t, "%s%s", MTI_THOUSANDS(n->sequences), more ? "+" : "");
        }
    }
    mti_print(to->out, "how many sequences fit, by the tokens in each; %s: the weights\n", unit(s));
    if (open) mti_print(to->out, "+: a larger number may fit; --exact looks for it\n");
    return mti_table_finish(t, to);
}

bool mti_print_serve(const mti_serve_report *s, FILE *out)
{
    mti_sheet sheet = mti_sheet_of(out);
    if (!sheet.elides) sheet.width = 80; /* in a pipe, too */
    print_answer(s, &sheet);
    return print_table(s, &sheet);
}

/* ---- JSON ---- */

static void describe_need(mti_fields *f, const void *report)
{
    const mti_serve_report *s = report;
    const mt_serve_need none = {0};
    const mti_serve_row *row = s->rows ? &s->rows[f->i / s->n_lengths] : &(mti_serve_row){0};
    const mt_serve_need *n = row->needs ? &row->needs[f->i % s->n_lengths] : &none;
    mti_field_text(f, "weights", row->weights);
    mti_field_text(f, "cache", mt_kv_form_name(row->cache));
    KEYS(f, mt_serve_need, n, KEY(positions), KEY(sequences), KEY(none_above), KEY(forwards),
         KEY_AS("weight_bytes", weights), KEY_AS("cache_bytes", cache), KEY(peak), KEY(by_category),
         KEY(reserved));
}

DESCRIBE(describe_needed, mt_serve_need, KEY(peak), KEY(reserved));

/* Holds how many layers cache only so many positions. */
typedef struct window {
    size_t layers, positions;
} window;
DESCRIBE(describe_window, window, KEY(layers), KEY(positions));
DESCRIBE(describe_vllm, mti_vllm_share, KEY(sequences), KEY(sampler), KEY(cache));

void mti_describe_serve(mti_fields *f, const void *report)
{
    const mti_serve_report *s = report;
    mti_field_schema(f, "memtape.serve/1");
    mti_field_text(f, "model", s->workload->name);
    mti_field_text(f, "dtype", mt_dtype_name(s->workload->config.dtype));
    mti_field_text(mti_null_unless(f, s->gpu), "gpu", s->gpu ? s->gpu->name : NULL);
    KEYS(f, mti_serve_report, s, KEY(gpus), KEY(capacity), KEY(kept_aside), KEY_OR_NULL(users),
         KEY(at_once));
    const window w = {(size_t)windowed(s), (size_t)s->workload->config.window};
    mti_field_object(mti_null_unless(f, w.layers), "window", describe_window, &w);
    mti_field_bool(f, "fits", mti_serve_fits(s));
    const mti_vllm_share vllm = in_vllm(s);
    mti_field_object(mti_null_unless(f, vllm.sequences), "vllm", describe_vllm, &vllm);
    const mt_serve_need *needed = s->users && s->n_rows ? &chosen(s)->users : &(mt_serve_need){0};
    mti_field_object(mti_null_unless(f, s->users), "needed", describe_needed, needed);
    mti_field_list(f, "rows", describe_need, s, s->n_rows * s->n_lengths, 0);
}
