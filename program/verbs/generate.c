/* generate.c: `memtape generate`: continues prompts with a trained model, one after the other or
 * side by side. */
#include <string.h>
#include "verbs/run_file.h"
#include "verbs/verbs.h"
#include "verbs/written.h"
#include "measure/headroom.h"
#include "report/terminal.h"
#include "trainer/codec.h"

/* The weights alone; the cache grows with the text. */
static bool rehearse(void *user, mt_device *meta)
{
    const mt_model_config *config = user;
    mt_module *model = mt_model_new(meta, config);
    mt_module_free(model);
    return model != NULL;
}

static bool check_room(const mti_options *o, const mt_device *device, mt_model_config *config)
{
    mti_workload w = o->workload;
    w.name = o->generate.model_file, w.config = *config, w.batch = 1, w.seq = config->context;
    return mti_check_room(device, &w, rehearse, config, MTI_PROFILE_ON_META);
}

static bool quantize(const mti_options *o, mt_module *model, bool adapted)
{
    const mt_quant *format = mti_weights_format(o->generate.weights);
    if (format && adapted)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "--weights %s: the model has adapters beside its weights; give "
                             "--merge, too",
                             mti_weights_name(o->generate.weights));
    return !format || mt_model_quantize(model, format) == MT_OK;
}

/* For tokens that come as numbers it only says which of them ends a text. */
static bool find_tokenizer(const mti_options *o, const mt_model_config *config, mt_tokenizer **t)
{
    if (mti_run_tokenizer(o->generate.model_file, config, t)) return true;
    if (!o->generate.ids || mt_last_status() == MT_ERR_MEMORY) return false;
    if (!o->output.quiet)
        mti_print(stderr, "memtape generate: note: no token ends a text: %s\n", mt_last_error());
    mt_clear_error();
    return true;
}

/* With adapters, if the model's file has them or --adapter names one. *t: its tokenizer; NULL: its
 * tokens are bytes, or come as they are. */
static mt_module *load_model(const mti_options *o, mt_device *device, mt_tokenizer **t)
{
    const struct mti_generate_words *g = &o->generate;
    mt_model_config config = {0};
    bool adapted;
    mt_module *model = NULL;
    if (mti_run_read_config(g->model_file, &config) && find_tokenizer(o, &config, t) &&
        (*t || g->ids || mti_run_over_bytes(g->model_file, &config)) &&
        mti_run_holds(g->model_file, &config) && check_room(o, device, &config))
        model = mti_run_read_model(g->model_file, device, &config, &adapted);
    if (model && (!g->adapter || mt_lora_load(g->adapter, model) == MT_OK) &&
        (!g->merge || mt_lora_merge(model) == MT_OK) &&
        quantize(o, model, (adapted || g->adapter) && !g->merge))
        return model;
    mt_module_free(model);
    return NULL;
}

/* The tokens of a prompt. */
typedef struct span {
    const int64_t *at;
    size_t n;
} span;

typedef struct run {
    const mti_options *o;
    const struct mti_generate_words *asked;
    mt_tokenizer *tokenizer; /* NULL: tokens are bytes, or numbers */
    mt_token_stream *stream; /* of what follows a prompt */
    mt_module *model;
    mt_generate_options options;
    mt_generate_stats stats; /* of all prompts */
    mti_written written;
    int64_t made; /* tokens after this prompt */
    bool ok;      /* the last was written */
} run;

/* To stderr, as stdout is the text alone. */
static void report_speed(const run *r)
{
    const mt_generate_stats *stats = &r->stats;
    double seconds = stats->first_s + stats->rest_s;
    mti_sheet sheet = mti_sheet_of(stderr);
    if (stats->tokens == 0) return;
    mti_inked(&sheet, MTI_DIM, "%lld %s, %s a second; ", (long long)stats->tokens,
              r->asked->ids || r->tokenizer ? "tokens" : "bytes",
              MTI_SCALED(seconds > 0 ? (double)stats->tokens / seconds : 0));
    if (r->options.no_cache)
        mti_inked(&sheet, MTI_DIM, "no KV cache\n");
    else
        mti_inked(&sheet, MTI_DIM, "KV cache %s, %s bytes\n", mt_kv_form_name(r->options.cache),
                  MTI_THOUSANDS(stats->cache_bytes));
}

/* ---- what is written ---- */

static bool write_id(int64_t token, bool first)
{
    return mti_print(stdout, "%s%lld", first ? "" : " ", (long long)token) > 0 &&
           fflush(stdout) == 0;
}

static bool take_token(void *user, int64_t token)
{
    run *r = user;
    const unsigned char byte = (unsigned char)token;
    const bool first = r->made++ == 0 && r->o->output.quiet,
               end = mti_ends_text(r->tokenizer, token);
    if (r->asked->ids) return (r->ok = write_id(token, first)) && !end;
    if (end) return false;
    if (r->tokenizer && !mt_tokenizer_token(r->tokenizer, token, NULL))
        return true; /* a row that only fills the vocabulary up has no text */
    mt_text text = {0};
    r->ok = r->tokenizer ? mt_token_stream_next(r->stream, token, &text) == MT_OK &&
                               mti_written_add(&r->written, text.at, text.n)
                         : mti_written_add(&r->written, &byte, 1);
    mt_text_free(&text);
    return r->ok && !r->written.ended;
}

/* Writes what the stream held back. */
static bool end_text(run *r)
{
    mt_text text = {0};
    bool ok = !r->tokenizer || mt_token_stream_end(r->stream, &text) == MT_OK;
    if (ok && !r->written.ended) ok = mti_written_add(&r->written, text.at, text.n);
    mt_text_free(&text);
    return mti_written_end(&r->written) && ok;
}

static bool write_prompt(run *r, span prompt, const char *text)
{
    bool ok = true;
    if (r->o->output.quiet) return true;
    if (text) return mti_written_as_is(&r->written, text);
    for (size_t i = 0; ok && i < prompt.n; i++) ok = write_id(prompt.at[i], i == 0);
    return ok;
}

/* text NULL: the prompt came as tokens, and so does what follows it. */
static bool continue_prompt(run *r, span prompt, const char *text)
{
    mt_generate_stats stats;
    r->made = 0, r->ok = true;
    bool ok = write_prompt(r, prompt, text) &&
              mti_sample(r->model, prompt.at, prompt.n, r->asked->tokens, &r->options, take_token,
                         r, &stats) &&
              end_text(r) && r->ok;
    if (ok) mti_generated_add(&r->stats, &stats), fputc('\n', stdout), fflush(stdout);
    return ok;
}

/* ---- prompts side by side: the first is written as its tokens come, the others after it ---- */

typedef struct group {
    run *r;
    int64_t n, open; /* prompts; those that go on */
    bool *ended;     /* [n] */
    int64_t *made;   /* [tokens,n] */
    int64_t steps;
} group;

static bool take_tokens(void *user, const int64_t *tokens)
{
    group *g = user;
    for (int64_t i = 0; i < g->n; i++) {
        const bool first = i == 0, open = !g->ended[i];
        g->made[g->steps * g->n + i] = tokens[i];
        if (!open) continue;
        g->ended[i] =
            first ? !take_token(g->r, tokens[i]) : mti_ends_text(g->r->tokenizer, tokens[i]);
        g->open -= g->ended[i];
    }
    g->steps++;
    return g->open && g->r->ok;
}

/* Writes a prompt, if it is not the first, and what follows it. */
static bool write_made(const group *g, int64_t i, span prompt, const char *text)
{
    run *r = g->r;
    bool ok = true;
    if (i) {
        r->made = 0;
        ok = write_prompt(r, prompt, text);
        for (int64_t k = 0; ok && k < g->steps && take_token(r, g->made[k * g->n + i]);) k++;
    }
    ok = ok && end_text(r) && r->ok && fputc('\n', stdout) != EOF && fflush(stdout) == 0;
    r->stats.tokens += r->made;
    return ok;
}

/* The prompts in rows that end with them. */
static bool generate_rows(group *g, const span *prompts, size_t width, const int64_t *lengths)
{
    run *r = g->r;
    const size_t n = (size_t)g->n;
    mt_generate_stats stats;
    mt_generate_options options = r->options;
    int64_t *rows = mti_calloc(n * width, sizeof *rows);
    for (size_t i = 0; rows && i < n; i++)
        memcpy(rows + (i + 1) * width - prompts[i].n, prompts[i].at, prompts[i].n * sizeof *rows);
    options.lengths = lengths;
    bool ok = rows && mt_generate(r->model, g->n, (int64_t)width, rows, r->asked->tokens, &options,
                                  take_tokens, g, &stats) == MT_OK;
    mti_free(rows);
    if (!ok) return false;
    stats.tokens = 0; /* those of each are counted as they are written */
    mti_generated_add(&r->stats, &stats);
    return true;
}

static bool fit_context(const run *r, size_t longest)
{
    const int64_t context = mt_model_config_of(r->model)->context, n = r->asked->tokens;
    return (longest <= (size_t)context && n <= context - (int64_t)longest) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "--batch: %lld tokens after a prompt of %zu are more than the context, "
                         "%lld; without --batch a text goes on from its last half",
                         (long long)n, longest, (long long)context);
}

static bool continue_together(run *r, const span *prompts, const char *const *texts, size_t n)
{
    group g = {.r = r, .n = (int64_t)n, .open = (int64_t)n};
    size_t width = 0;
    for (size_t i = 0; i < n; i++)
        if (prompts[i].n > width) width = prompts[i].n;
    if (!fit_context(r, width)) return false;
    int64_t *lengths = mti_calloc(n, sizeof *lengths);
    g.ended = mti_calloc(n, sizeof *g.ended);
    g.made = mti_calloc(n * (size_t)r->asked->tokens + 1, sizeof *g.made);
    bool ok = lengths && g.ended && g.made;
    for (size_t i = 0; ok && i < n; i++) lengths[i] = (int64_t)prompts[i].n;
    r->made = 0, r->ok = true;
    ok = ok && write_prompt(r, prompts[0], texts ? texts[0] : NULL) &&
         generate_rows(&g, prompts, width, lengths);
    for (size_t i = 0; ok && i < n; i++)
        ok = write_made(&g, (int64_t)i, prompts[i], texts ? texts[i] : NULL);
    mti_free(lengths), mti_free(g.ended), mti_free(g.made);
    return ok;
}

/* ---- all prompts ---- */

static bool encode(const run *r, const char *text, mti_prompts *prompts)
{
    const size_t before = prompts->ids.n;
    bool ok = mti_encode(r->tokenizer, text, strlen(text), true, &prompts->ids);
    if (ok && prompts->ids.n == before) /* something comes first */
        ok = mti_encode(r->tokenizer, "\n", 1, true, &prompts->ids);
    return ok && MTI_PUSH(&prompts->ends, prompts->ids.n);
}

static bool find_prompts(const run *r, const char *const *texts, size_t n, mti_prompts *prompts)
{
    if (r->asked->ids)
        return mti_prompts_read(prompts, r->asked->ids, mt_model_config_of(r->model)->vocab);
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) ok = encode(r, texts[i], prompts);
    return ok;
}

static bool continue_all(run *r)
{
    static const char *const lines[] = {"\n"};
    const mti_options *o = r->o;
    const struct mti_generate_words *g = r->asked;
    const char *const *texts = g->ids         ? NULL
                               : g->prompts.n ? (const char *const *)g->prompts.at
                                              : lines;
    const size_t side_by_side = mti_is_given(o, MTI_O_BATCH) ? (size_t)o->workload.batch : 1;
    mti_prompts prompts = {0};
    bool ok = find_prompts(r, texts, g->prompts.n ? g->prompts.n : 1, &prompts);
    const size_t n = prompts.ends.n;
    span *at = ok ? mti_calloc(n, sizeof *at) : NULL;
    for (size_t i = 0, from = 0; at && i < n; from = prompts.ends.at[i++])
        at[i] = (span){prompts.ids.at + from, prompts.ends.at[i] - from};
    ok = at != NULL;
    for (size_t i = 0, some; ok && i < n; i += some) {
        some = n - i < side_by_side ? n - i : side_by_side;
        ok = some == 1 ? continue_prompt(r, at[i], texts ? texts[i] : NULL)
                       : continue_together(r, at + i, texts ? texts + i : NULL, some);
    }
    mti_free(at);
    mti_prompts_free(&prompts);
    return ok;
}

int mti_generate(const mti_options *o)
{
    const struct mti_generate_words *g = &o->generate;
    mt_device *device = mti_open_device(&o->workload);
    run r = {.o = o,
             .asked = g,
             .options = {.temperature = g->temperature,
                         .top_k = g->top_k,
                         .top_p = g->top_p,
                         .repetition_penalty = g->repetition_penalty,
                         .seed = o->workload.seed,
                         .no_cache = g->kv_cache == MTI_KV_NONE,
                         .cache = g->kv_cache == MTI_KV_NONE ? MT_KV_PREALLOCATED
                                                             : (mt_kv_form)g->kv_cache},
             .written = mti_written_to(o)};
    r.model = device ? load_model(o, device, &r.tokenizer) : NULL;
    if (r.model && r.tokenizer) r.stream = mt_token_stream_new(r.tokenizer, true);
    bool ok = r.model && (!r.tokenizer || r.stream) && continue_all(&r);
    if (ok && !o->output.quiet) report_speed(&r);
    int status = ok ? MTI_EXIT_OK : mti_report_failure(o);
    mti_written_free(&r.written);
    mt_token_stream_free(r.stream);
    mt_tokenizer_free(r.tokenizer);
    mt_module_free(r.model);
    mt_device_release(device);
    return status;
}

static bool check_words(mti_options *o)
{
    for (size_t i = 0; i < o->generate.stop.n; i++)
        if (!*o->generate.stop.at[i])
            return mti_options_refuse(o, "--stop: the text is empty; without it nothing stops");
    return o->generate.model_file ||
           mti_options_refuse(o,
                              "--model is missing; give a file that `memtape train --save` wrote, "
                              "or a folder with a config.json and model.safetensors");
}

const mti_verb_rules mti_generate_rules = {.verb = MTI_GENERATE, .check_words = check_words};
