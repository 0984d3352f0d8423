/* explain_prompt.c: `memtape explain FOLDER --prompt TEXT`: what a model makes of a text, token by
 * token, and what each of its layers would keep for a backward pass. */
#include <math.h>
#include <string.h>
#include "verbs/explain.h"
#include "verbs/run_file.h"
#include "verbs/verbs.h"
#include "files/files.h"
#include "io/gguf.h"
#include "measure/tape.h"
#include "memtape/ops.h"
#include "options/option_table.h"
#include "report/terminal.h"
#include "trainer/codec.h"

#define SHOWN 3 /* likeliest tokens after each */

typedef struct explained {
    const mti_options *o;
    mt_device *device;
    mt_tokenizer *tokenizer; /* NULL: tokens are bytes */
    mt_module *model;
    mt_token_list ids;
    float *scores; /* [n,v] */
    mti_tape tape;
    double loss;
} explained;

/* ---- what is computed ---- */

static mt_tensor *tokens_of(const explained *e, size_t from, size_t n)
{
    return mt_from_data(e->device, MT_I64, MT_SHAPE(1, (int64_t)n), e->ids.at + from,
                        n * sizeof *e->ids.at);
}

static bool find_scores(explained *e)
{
    const size_t n = e->ids.n * (size_t)mt_model_config_of(e->model)->vocab;
    const bool grad = mt_set_grad_mode(false);
    mt_tensor *x = tokens_of(e, 0, e->ids.n), *y = x ? mt_forward(e->model, x) : NULL;
    mt_set(&y, mt_cast(y, MT_F32));
    mt_set_grad_mode(grad);
    e->scores = y ? mti_calloc(n, sizeof *e->scores) : NULL;
    bool ok = e->scores && mt_to_host(y, e->scores, n * sizeof *e->scores) == MT_OK;
    mt_release(x), mt_release(y);
    return ok;
}

static mt_tensor *forward_loss(void *user)
{
    explained *e = user;
    MT_AUTO mt_tensor *x = tokens_of(e, 0, e->ids.n - 1), *y = tokens_of(e, 1, e->ids.n - 1);
    mt_tensor *loss = x && y ? mt_model_forward_loss(e->model, x, y) : NULL;
    if (loss) e->loss = mt_item(loss);
    return loss;
}

/* ---- what is printed ---- */

/* The token as text, with escapes for ends of lines. */
static bool put_token(mti_table *table, const explained *e, int64_t id)
{
    mt_text text = {0};
    char shown[64] = "";
    const char byte = (char)id;
    bool ok = true;
    if (!e->tokenizer)
        mti_format(shown, sizeof shown, "%.1s", &byte);
    else if (mt_tokenizer_token(e->tokenizer, id, NULL))
        ok = mt_tokenizer_decode(e->tokenizer, &id, 1, false, &text) == MT_OK;
    const char *from = e->tokenizer ? text.at : shown, *line = from ? strchr(from, '\n') : NULL;
    mti_table_cell(table, "\"%.*s%s%.40s\"",
                   line   ? (int)(line - from)
                   : from ? 40
                          : 0,
                   from ? from : "", line ? "\\n" : "", line ? line + 1 : "");
    mt_text_free(&text);
    return ok;
}

typedef struct odds {
    const float *scores;
    int64_t v;
    double top, sum;
} odds;

static odds odds_of(const explained *e, size_t row)
{
    odds o = {.v = mt_model_config_of(e->model)->vocab, .top = -INFINITY};
    o.scores = e->scores + row * (size_t)o.v;
    for (int64_t i = 0; i < o.v; i++) o.top = fmax(o.top, (double)o.scores[i]);
    for (int64_t i = 0; i < o.v; i++) o.sum += exp((double)o.scores[i] - o.top);
    return o;
}

static double chance(const odds *o, int64_t id)
{
    return exp((double)o->scores[id] - o->top) / o->sum;
}

/* The likeliest that is not likelier than `last`, or of a higher number where as likely. */
static int64_t next_likeliest(const odds *o, int64_t last)
{
    int64_t best = -1;
    for (int64_t i = 0; i < o->v; i++) {
        const bool after = last < 0 || o->scores[i] < o->scores[last] ||
                           (o->scores[i] == o->scores[last] && i > last);
        if (after && (best < 0 || o->scores[i] > o->scores[best])) best = i;
    }
    return best;
}

static bool print_tokens(const explained *e, const mti_sheet *to)
{
    mti_table *table = mti_table_new("rrlrlrlrlr", "|token||probability|likeliest next|||||");
    bool ok = true;
    for (size_t i = 0; ok && i < e->ids.n; i++) {
        const int64_t id = e->ids.at[i];
        const odds before = odds_of(e, i ? i - 1 : 0), after = odds_of(e, i);
        mti_table_cell(table, "%zu", i);
        mti_table_cell(table, "%lld", (long long)id);
        ok = put_token(table, e, id);
        if (i)
            mti_table_cell(table, "%.4f", chance(&before, id));
        else
            mti_table_skip(table, 1);
        int64_t next = -1;
        for (int k = 0; ok && k < SHOWN; k++) {
            next = next_likeliest(&after, next);
            if (next < 0) break;
            ok = put_token(table, e, next);
            mti_table_cell(table, "%.4f", chance(&after, next));
        }
        if (next < 0) mti_table_skip(table, 2);
    }
    return mti_table_finish(table, to) && ok;
}

static bool print_kept(const explained *e, const mti_sheet *to)
{
    mti_tape_stretches list;
    mti_table *table = mti_table_new("lrr", "|layers|bytes of each");
    bool ok = mti_tape_stretches_of(&e->tape, &list);
    uint64_t all = 0;
    for (size_t i = 0; ok && i < list.n; i++) {
        const mti_tape_stretch *s = &list.at[i];
        if (s->first_layer < 0)
            mti_table_cell(table, "outside of layers");
        else if (s->n_layers == 1)
            mti_table_cell(table, "h.%ld", s->first_layer);
        else
            mti_table_cell(table, "h.%ld to h.%ld", s->first_layer, s->last_layer);
        mti_table_cell(table, "%zu", s->n_layers);
        mti_table_bytes(table, (int64_t)s->bytes);
        all += (uint64_t)s->bytes * s->n_layers;
    }
    if (ok) mti_free(list.at);
    mti_table_rule(table);
    mti_table_cell(table, "kept for backward");
    mti_table_skip(table, 1);
    mti_table_bytes(table, (int64_t)all);
    return mti_table_finish(table, to) && ok;
}

static bool explain_text(explained *e, const char *text)
{
    const mti_sheet sheet = mti_sheet_of(stdout);
    const mt_model_config *c = mt_model_config_of(e->model);
    bool ok = mti_encode(e->tokenizer, text, strlen(text), true, &e->ids);
    if (ok && (e->ids.n < 2 || (int64_t)e->ids.n > c->context))
        ok = mti_fail_bool(MT_ERR_ARGUMENT,
                           "--prompt: the text has %zu tokens; need at least 2, and at most the "
                           "context of %lld",
                           e->ids.n, (long long)c->context);
    ok = ok && find_scores(e) && mti_tape_of(&e->tape, forward_loss, e) && print_tokens(e, &sheet);
    if (ok)
        mti_print(stdout, "\nloss %.6f nats a token, perplexity %.2f, over %zu tokens\n\n", e->loss,
                  exp(e->loss), e->ids.n - 1);
    ok = ok && print_kept(e, &sheet);
    mti_free(e->scores), e->scores = NULL;
    mti_tape_free(&e->tape);
    mt_token_list_free(&e->ids);
    return ok;
}

static bool open_model(explained *e)
{
    bool adapted;
    mt_model_config c;
    const char *path = e->o->workload.name;
    if (!mti_run_read_config(path, &c) || !mti_run_tokenizer(path, &c, &e->tokenizer) ||
        (!e->tokenizer && !mti_run_over_bytes(path, &c)))
        return false;
    mti_device_options device = e->o->workload.device;
    if (!mti_is_given(e->o, MTI_O_DEVICE)) device.kind = "cpu";
    e->device = mti_device_make(&device);
    e->model = e->device ? mti_run_read_model(path, e->device, &c, &adapted) : NULL;
    mt_module_set_training(e->model, false);
    return e->model != NULL;
}

int mti_explain_prompts(const mti_options *o)
{
    explained e = {.o = o};
    bool ok = open_model(&e);
    for (size_t i = 0; ok && i < o->generate.prompts.n; i++) {
        if (i) puts("");
        ok = explain_text(&e, o->generate.prompts.at[i]);
    }
    const int status = ok ? MTI_EXIT_OK : mti_report_failure(o);
    mt_module_free(e.model);
    mt_tokenizer_free(e.tokenizer);
    mt_device_release(e.device);
    return status;
}

bool mti_explain_prompts_check(mti_options *o)
{
    const char *path = o->workload.name;
    if (!path || (!mti_is_folder(path) && !mti_is_gguf(path)))
        return mti_options_refuse(o,
                                  "--prompt: needs weights: give a MODEL that is a folder with a "
                                  "config.json and model.safetensors, or a GGUF file");
    if (!mti_check_beside(o, MTI_BESIDE_A_PROMPT,
                          "has no effect with --prompt: weights and text say it"))
        return false;
    return !mti_is_given(o, MTI_O_DEVICE) || strcmp(o->workload.device.kind, "meta") != 0 ||
           mti_options_refuse(o,
                              "--device meta: tensors there have no values; --prompt needs some");
}
