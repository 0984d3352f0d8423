/* generate.c: `memtape generate`: continues prompts with a trained model, one after the other. */
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
    w.name = o->model_file, w.config = *config, w.batch = 1, w.seq = config->context;
    return mti_check_room(device, &w, rehearse, config, MTI_PROFILE_ON_META);
}

static bool quantize(const mti_options *o, mt_module *model, bool adapted)
{
    const mt_quant *format = mti_weights_format(o->weights);
    if (format && adapted)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "--weights %s: the model has adapters beside its weights; give "
                             "--merge, too",
                             mti_weights_name(o->weights));
    return !format || mt_model_quantize(model, format) == MT_OK;
}

/* For tokens that come as numbers it only says which of them ends a text. */
static bool find_tokenizer(const mti_options *o, const mt_model_config *config, mt_tokenizer **t)
{
    if (mti_run_tokenizer(o->model_file, config, t)) return true;
    if (!o->ids || mt_last_status() == MT_ERR_MEMORY) return false;
    if (!o->quiet)
        mti_print(stderr, "memtape generate: note: no token ends a text: %s\n", mt_last_error());
    mt_clear_error();
    return true;
}

/* With adapters, if the model's file has them or --adapter names one. *t: its tokenizer; NULL: its
 * tokens are bytes, or come as they are. */
static mt_module *load_model(const mti_options *o, mt_device *device, mt_tokenizer **t)
{
    mt_model_config config = {0};
    bool adapted;
    mt_module *model = NULL;
    if (mti_run_read_config(o->model_file, &config) && find_tokenizer(o, &config, t) &&
        (*t || o->ids || mti_run_over_bytes(o->model_file, &config)) &&
        mti_run_holds(o->model_file, &config) && check_room(o, device, &config))
        model = mti_run_read_model(o->model_file, device, &config, &adapted);
    if (model && (!o->adapter || mt_lora_load(o->adapter, model) == MT_OK) &&
        (!o->merge || mt_lora_merge(model) == MT_OK) &&
        quantize(o, model, (adapted || o->adapter) && !o->merge))
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
              r->o->ids || r->tokenizer ? "tokens" : "bytes",
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
    const bool first = r->made++ == 0 && r->o->quiet, end = mti_ends_text(r->tokenizer, token);
    if (r->o->ids) return (r->ok = write_id(token, first)) && !end;
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
    if (r->o->quiet) return true;
    if (text) return mti_written_as_is(&r->written, text);
    for (size_t i = 0; ok && i < prompt.n; i++) ok = write_id(prompt.at[i], i == 0);
    return ok;
}

static void add_stats(mt_generate_stats *sum, const mt_generate_stats *part)
{
    sum->tokens += part->tokens;
    sum->first_s += part->first_s;
    sum->rest_s += part->rest_s;
    if (part->cache_bytes > sum->cache_bytes) sum->cache_bytes = part->cache_bytes;
}

/* text NULL: the prompt came as tokens, and so does what follows it. */
static bool continue_prompt(run *r, span prompt, const char *text)
{
    mt_generate_stats stats;
    r->made = 0, r->ok = true;
    bool ok = write_prompt(r, prompt, text) &&
              mti_sample(r->model, prompt.at, prompt.n, r->o->tokens, &r->options, take_token, r,
                         &stats) &&
              end_text(r) && r->ok;
    if (ok) add_stats(&r->stats, &stats), fputc('\n', stdout), fflush(stdout);
    return ok;
}

static bool continue_ids(run *r)
{
    mti_prompts prompts;
    bool ok = mti_prompts_read(&prompts, r->o->ids, mt_model_config_of(r->model)->vocab);
    for (size_t i = 0, from = 0; ok && i < prompts.ends.n; from = prompts.ends.at[i++])
        ok = continue_prompt(r, (span){prompts.ids.at + from, prompts.ends.at[i] - from}, NULL);
    mti_prompts_free(&prompts);
    return ok;
}

static bool continue_text(run *r, const char *text)
{
    mt_token_list ids = {0};
    bool ok = mti_encode(r->tokenizer, text, strlen(text), true, &ids);
    if (ok && !ids.n)
        ok = mti_encode(r->tokenizer, "\n", 1, true, &ids); /* something comes first */
    ok = ok && continue_prompt(r, (span){ids.at, ids.n}, text);
    mt_token_list_free(&ids);
    return ok;
}

static bool continue_all(run *r)
{
    const mti_options *o = r->o;
    if (o->ids) return continue_ids(r);
    for (size_t i = 0; i < o->prompts.n; i++)
        if (!continue_text(r, o->prompts.at[i])) return false;
    return o->prompts.n || continue_text(r, "\n");
}

int mti_generate(const mti_options *o)
{
    mt_device *device = mti_open_device(&o->workload);
    run r = {.o = o,
             .options = {.temperature = o->temperature,
                         .top_k = o->top_k,
                         .top_p = o->top_p,
                         .repetition_penalty = o->repetition_penalty,
                         .seed = o->workload.seed,
                         .no_cache = o->kv_cache == MTI_KV_NONE,
                         .cache = o->kv_cache == MTI_KV_NONE ? MT_KV_PREALLOCATED
                                                             : (mt_kv_form)o->kv_cache},
             .written = mti_written_to(o)};
    r.model = device ? load_model(o, device, &r.tokenizer) : NULL;
    if (r.model && r.tokenizer) r.stream = mt_token_stream_new(r.tokenizer, true);
    bool ok = r.model && (!r.tokenizer || r.stream) && continue_all(&r);
    if (ok && !o->quiet) report_speed(&r);
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
    for (size_t i = 0; i < o->stop.n; i++)
        if (!*o->stop.at[i])
            return mti_options_refuse(o, "--stop: the text is empty; without it nothing stops");
    return o->model_file ||
           mti_options_refuse(o,
                              "--model is missing; give a file that `memtape train --save` wrote, "
                              "or a folder with a config.json and model.safetensors");
}

const mti_verb_rules mti_generate_rules = {.verb = MTI_GENERATE, .check_words = check_words};
