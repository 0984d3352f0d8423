/* generate.c: `memtape generate`: continues a prompt with a trained model. */
#include <unistd.h>
#include "verbs/run_file.h"
#include "verbs/verbs.h"
#include "measure/headroom.h"
#include "report/terminal.h"

/* Text that comes byte by byte. A terminal gets whole characters, and no control characters. */
typedef struct writer {
    bool terminal;
    unsigned char at[4]; /* the begin of a character */
    size_t n;
} writer;

static void write_held(writer *w)
{
    mti_print_bytes(stdout, w->at, w->n);
    w->n = 0;
}

static bool write_byte(void *user, unsigned char byte)
{
    writer *w = user;
    if (!w->terminal) return fputc(byte, stdout) != EOF && fflush(stdout) == 0;
    if ((byte & 0xC0) != 0x80) write_held(w); /* begins a character: what is held was none */
    w->at[w->n++] = byte;
    size_t whole = *w->at < 0xC0 ? 1 : *w->at < 0xE0 ? 2 : *w->at < 0xF0 ? 3 : 4;
    if (w->n == whole) write_held(w);
    return fflush(stdout) == 0;
}

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

/* With adapters, if the model's file has them or --adapter names one. */
static mt_module *load_model(const mti_options *o, mt_device *device)
{
    mt_model_config config = {0};
    bool adapted;
    mt_module *model = NULL;
    if (mti_run_read_config(o->model_file, &config) && mti_run_holds(o->model_file, &config) &&
        check_room(o, device, &config))
        model = mti_run_read_model(o->model_file, device, &config, &adapted);
    if (model && (!o->adapter || mt_lora_load(o->adapter, model) == MT_OK) &&
        (!o->merge || mt_lora_merge(model) == MT_OK) &&
        quantize(o, model, (adapted || o->adapter) && !o->merge))
        return model;
    mt_module_free(model);
    return NULL;
}

/* To stderr, as stdout is the text alone. */
static void report_speed(const mti_options *o, const mt_generate_stats *stats)
{
    double seconds = stats->first_s + stats->rest_s;
    mti_style style = mti_style_of(stderr);
    if (stats->tokens == 0) return;
    mti_inked(stderr, &style, MTI_DIM, "%lld bytes, %s a second; ", (long long)stats->tokens,
              MTI_SCALED(seconds > 0 ? (double)stats->tokens / seconds : 0));
    if (o->kv_cache == MTI_KV_NONE)
        mti_inked(stderr, &style, MTI_DIM, "no KV cache\n");
    else
        mti_inked(stderr, &style, MTI_DIM, "KV cache %s, %s bytes\n",
                  mt_kv_form_name((mt_kv_form)o->kv_cache), MTI_THOUSANDS(stats->cache_bytes));
}

int mti_generate(const mti_options *o)
{
    mt_generate_stats stats = {0};
    mt_device *device = mti_open_device(&o->workload);
    mt_module *model = device ? load_model(o, device) : NULL;
    const mt_generate_options options = {
        .temperature = o->temperature,
        .top_k = o->top_k,
        .seed = o->workload.seed,
        .no_cache = o->kv_cache == MTI_KV_NONE,
        .cache = o->kv_cache == MTI_KV_NONE ? MT_KV_PREALLOCATED : (mt_kv_form)o->kv_cache};
    writer w = {.terminal = isatty(STDOUT_FILENO)};
    for (const char *c = o->prompt; model && !o->quiet && *c; c++)
        write_byte(&w, (unsigned char)*c);
    bool ok = model && mti_sample(model, o->prompt, o->tokens, &options, write_byte, &w, &stats);
    write_held(&w);
    if (ok) fputc('\n', stdout);
    if (ok && !o->quiet) report_speed(o, &stats);
    int status = ok ? MTI_EXIT_OK : mti_report_failure(o);
    mt_module_free(model);
    mt_device_release(device);
    return status;
}

static bool check_words(mti_options *o)
{
    return o->model_file ||
           mti_options_refuse(o,
                              "--model is missing; give a file that `memtape train --save` wrote");
}

const mti_verb_rules mti_generate_rules = {.verb = MTI_GENERATE, .check_words = check_words};
