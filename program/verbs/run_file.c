/* run_file.c: a run's settings as metadata of its checkpoint. Files are not trusted: every number
 * must be in the range of its option. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "options/option_table.h"
#include "verbs/run_file.h"
#include "files/files.h"
#include "io/gguf.h"
#include "nn/nn.h"
#include "verbs/verbs.h"
#include "memory/memory_hooks.h"
#include "report/json.h"

#define CONFIG_KEY    "config" /* the model's configuration, as model.h writes it */
#define RUN_KEY       "run"    /* the settings */
#define MEMORY_KEY    "memory"
#define DATA_KEY      "data"      /* the paths of its text */
#define TOKENIZER_KEY "tokenizer" /* the folder that its model was in */
#define BEST_KEY      "best"      /* bits per byte of its best evaluation */

/* ---- writing ---- */

/* A double as text that parses to the same bits. */
static void put_real(json_t *j, const char *key, double value)
{
    char text[32];
    mti_format(text, sizeof text, "%.17g", value);
    mti_json_put_text(j, key, text);
}

static json_t *scaler_json(const mt_scaler *scaler)
{
    mt_scaler_state state = mt_scaler_get(scaler);
    json_t *j = json_object();
    put_real(j, "scale", state.scale);
    mti_json_put_int(j, "good_steps", (uint64_t)state.good_steps);
    mti_json_put_int(j, "steps", (uint64_t)state.steps);
    mti_json_put_int(j, "skipped", (uint64_t)state.skipped);
    return j;
}

/* The key of an option that every run has: "weight_decay". */
static void key_of(const mti_option_row *r, char key[32])
{
    snprintf(key, 32, "%s", r->name);
    for (char *c = key; *c; c++)
        if (*c == '-') *c = '_';
}

/* What every run has, and as words the memory options that are not the usual ones: a run is resumed
 * bit for bit only with the same ones. */
static void put_options(json_t *j, const mti_options *o)
{
    mti_options usual;
    json_t *memory = json_object();
    mti_option_defaults(&usual, o->rules);
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        char key[32], buf[MTI_VALUE_TEXT], other[MTI_VALUE_TEXT];
        const mti_option_row *r = &mti_option_rows[id];
        const char *text = r->run ? mti_option_text(o, r, buf) : "";
        key_of(r, key);
        if (r->run == MTI_RUN_ALWAYS && r->form == MTI_REAL)
            mti_json_put_text(j, key, text);
        else if (r->run == MTI_RUN_ALWAYS)
            mti_json_put_int(j, key, strtoull(text, NULL, 10));
        else if (r->run && strcmp(text, mti_option_text(&usual, r, other)) != 0)
            mti_json_put_text(memory, r->name, text);
    }
    mti_json_put(j, MEMORY_KEY, memory);
}

/* Takes j over. */
static char *written(json_t *j)
{
    char *text = mti_json_complete(j, JSON_COMPACT);
    json_decref(j);
    return text;
}

char *mti_run_settings(const mti_options *o)
{
    json_t *j = json_object();
    put_options(j, o);
    return written(j);
}

static char *settings_text(const mti_trainer *t, double val_fraction)
{
    mti_options o;
    char hash[32];
    json_t *j = json_object();
    mti_option_defaults(&o, &mti_train_rules);
    o.workload = t->workload, o.train.settings = t->settings, o.train.val_fraction = val_fraction;
    put_options(j, &o);
    if (t->memory_hooks.scaler) mti_json_put(j, "scaler", scaler_json(t->memory_hooks.scaler));
    if (t->best > 0) put_real(j, BEST_KEY, t->best);
    snprintf(hash, sizeof hash, "%016" PRIx64, t->corpus->fingerprint);
    mti_json_put_text(j, "text", hash);
    if (t->settings.folder) mti_json_put_text(j, TOKENIZER_KEY, t->settings.folder);
    json_t *data = json_array();
    for (size_t i = 0; i < t->corpus->paths.n; i++)
        mti_json_push(data, mti_json_string(t->corpus->paths.at[i]));
    mti_json_put(j, DATA_KEY, data);
    return written(j);
}

bool mti_run_save(mti_trainer *t, const char *path, double val_fraction, char *where, size_t size)
{
    struct stat st;
    int n = stat(path, &st) == 0 && S_ISDIR(st.st_mode)
                ? snprintf(where, size, "%s/step-%lld.safetensors", path, (long long)t->step)
                : snprintf(where, size, "%s", path);
    if (n < 0 || (size_t)n >= size)
        return mti_fail_bool(MT_ERR_IO, "%s: the path is too long", path);
    char config[MT_MODEL_CONFIG_TEXT];
    if (mt_model_config_to_json(&t->workload.config, config, sizeof config) != MT_OK) return false;
    char *settings = settings_text(t, val_fraction);
    if (!settings) return false;
    const mt_key_value metadata[] = {{CONFIG_KEY, config}, {RUN_KEY, settings}};
    mt_status status =
        t->model ? mt_checkpoint_save(where, t->model, t->optimizer, t->step, 2, metadata)
                 : mt_stage_save(where, &t->stage, t->optimizer, t->world, t->step, 2, metadata);
    mti_free(settings);
    return status == MT_OK;
}

bool mti_run_can_save(const char *option, const char *path, bool folders)
{
    struct stat st;
    char folder[4096];
    size_t n = path ? strlen(path) : 0;
    if (!path) return true;
    bool is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    while (folders && n > 1 && path[n - 1] == '/') n--; /* one that is to be made */
    size_t cut = n; /* behind the last slash; 0: there is none */
    while (cut && path[cut - 1] != '/') cut--;
    if (is_folder && !folders)
        return mti_fail_bool(MT_ERR_IO, "--%s %s: is a folder; give a file", option, path);
    if (is_folder)
        snprintf(folder, sizeof folder, "%s", path);
    else if (!cut)
        snprintf(folder, sizeof folder, ".");
    else
        snprintf(folder, sizeof folder, "%.*s", (int)cut, path);
    if (access(folder, W_OK | X_OK) == 0) return true;
    return mti_fail_bool(MT_ERR_IO, "--%s %s: cannot write to %s: %s", option, path, folder,
                         strerror(errno));
}

/* ---- reading ---- */

static bool predicts_next(const mt_model_config *config)
{
    return config->kind == MT_MODEL_GPT || config->kind == MT_MODEL_LLAMA ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "the model in the file is a %s, which does not predict what comes next; "
                         "need a gpt or a llama",
                         mt_model_kind_name(config->kind));
}

bool mti_run_over_bytes(const char *path, const mt_model_config *config)
{
    return config->vocab == 256 ||
           mti_fail_bool(
               MT_ERR_UNSUPPORTED,
               "%s: a model over %lld tokens; without its tokenizer only one over the 256 "
               "bytes reads text",
               path, (long long)config->vocab);
}

static bool read_config(const mt_safetensors *file, mt_model_config *config)
{
    const char *text = mt_safetensors_metadata(file, CONFIG_KEY);
    if (!text)
        return mti_fail_bool(MT_ERR_FORMAT, "the file does not describe its model; give one that "
                                            "`memtape train --save` wrote");
    uint64_t failures = mti_failures();
    return mt_model_config_from_json(text, config) == MT_OK && !mti_failed_since(failures) &&
           predicts_next(config);
}

bool mti_run_is_foreign(const char *path) { return mti_is_folder(path) || mti_is_gguf(path); }

bool mti_run_read_config(const char *path, mt_model_config *config)
{
    if (mti_run_is_foreign(path))
        return mt_model_config_from_hf_file(path, config, NULL, 0) == MT_OK &&
               predicts_next(config);
    mt_safetensors *file = mt_safetensors_open(path);
    bool ok = file && read_config(file, config);
    mt_safetensors_free(file);
    return ok;
}

static bool damaged(const char *key)
{
    return mti_fail_bool(MT_ERR_FORMAT, "the file's record of its run is damaged at \"%s\"", key);
}

static bool discard(json_t **j)
{
    json_decref(*j);
    *j = NULL;
    return false;
}

/* Parses the file's settings; *j is NULL if it has none. */
static bool parse_run(const mt_safetensors *file, json_t **j)
{
    const char *text = mt_safetensors_metadata(file, RUN_KEY);
    uint64_t failures = mti_failures();
    *j = text ? mti_json_read(text, strlen(text), NULL) : NULL;
    if (!mti_failed_since(failures)) /* else strings may be cut short */
        return !text || json_is_object(*j) || discard(j) || damaged(RUN_KEY);
    return discard(j);
}

/* The memory options that are not the usual ones; NULL: the file has none. */
static const json_t *memory_of(const json_t *run)
{
    const json_t *memory = json_object_get(run, MEMORY_KEY);
    return memory ? memory : json_object_get(run, "spared"); /* older files' */
}

static bool read_option(const json_t *value, mti_options *o, const mti_option_row *r,
                        const char *key)
{
    char number[24];
    const char *text = json_string_value(value);
    if (r->run == MTI_RUN_ALWAYS && r->form != MTI_REAL) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        text = json_is_integer(value) ? number : NULL;
    }
    const char *kept = text ? mti_intern(text) : NULL;
    if (text && !kept) return false;
    return (text && mti_options_set(o, r->name, kept)) || damaged(key);
}

/* Reads the options that were not given again. */
static bool read_options(const json_t *j, mti_options *o)
{
    const json_t *memory = memory_of(j);
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        char key[32];
        const mti_option_row *r = &mti_option_rows[id];
        const json_t *chosen = json_object_get(memory, r->name);
        key_of(r, key);
        const bool always = r->run == MTI_RUN_ALWAYS;
        if (mti_is_given(o, id) || !(always || (r->run && chosen))) continue;
        if (!read_option(always ? json_object_get(j, key) : chosen, o, r, always ? key : r->name))
            return false;
    }
    return true;
}

static bool read_fingerprint(const json_t *j, uint64_t *fingerprint)
{
    const char *hash = json_string_value(json_object_get(j, "text"));
    char *end = NULL;
    *fingerprint = hash ? strtoull(hash, &end, 16) : 0;
    return (hash && end != hash && !*end) || damaged("text");
}

/* The text and the tokenizer of the run, unless a text is given. */
static bool read_data(const json_t *j, mti_options *o)
{
    const json_t *data = json_object_get(j, DATA_KEY), *path = json_object_get(j, TOKENIZER_KEY);
    const bool given = o->train.data.n > 0;
    for (size_t i = 0; !given && i < json_array_size(data); i++) {
        const char *text = json_string_value(json_array_get(data, i));
        const char *kept = text ? mti_intern(text) : NULL;
        if (!text) return damaged(DATA_KEY);
        if (!kept || !MTI_PUSH(&o->train.data, kept)) return false;
    }
    if (!o->train.data.n)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "the file does not say what the run learnt from; give "
                             "it with --data");
    if (path && !json_is_string(path)) return damaged(TOKENIZER_KEY);
    if (path) o->train.settings.folder = mti_intern(json_string_value(path));
    return !path || o->train.settings.folder;
}

bool mti_run_tokenizer(const char *path, const mt_model_config *config, mt_tokenizer **t)
{
    json_t *run = NULL;
    *t = NULL;
    if (mti_run_is_foreign(path)) return mti_tokenizer_find(path, config, t);
    mt_safetensors *file = mt_safetensors_open(path);
    bool ok = file && parse_run(file, &run);
    const char *from = ok ? json_string_value(json_object_get(run, TOKENIZER_KEY)) : NULL;
    if (from) ok = mti_tokenizer_find(from, config, t);
    json_decref(run);
    mt_safetensors_free(file);
    return ok;
}

bool mti_run_read_settings(const mt_safetensors *file, mti_options *o, uint64_t *fingerprint)
{
    mt_model_config config;
    json_t *j;
    if (!read_config(file, &config) || !parse_run(file, &j)) return false;
    if (!j) return mti_fail_bool(MT_ERR_FORMAT, "the file holds a model but no run to resume");
    bool ok = read_fingerprint(j, fingerprint) && read_options(j, o) && read_data(j, o);
    json_decref(j);
    if (!ok) return false;
    return mti_options_config(o, &config) || mti_fail_bool(MT_ERR_ARGUMENT, "%s", o->error);
}

/* ---- state ---- */

static bool read_count(const json_t *j, const char *key, int64_t *to)
{
    const json_t *value = json_object_get(j, key);
    *to = json_integer_value(value);
    return json_is_integer(value) || damaged(key);
}

/* What put_real wrote. */
static bool read_real(const json_t *j, const char *key, double *to)
{
    const char *text = json_string_value(json_object_get(j, key)), *end = NULL;
    *to = text ? mti_strtod(text, (char **)&end) : 0;
    return text && end != text && !*end;
}

/* If the file has no state of it, the scaler begins as in a new run. */
static bool restore_scaler(const json_t *run, mt_scaler *scaler)
{
    mt_scaler_state state = {0};
    const json_t *j = json_object_get(run, "scaler");
    return !j ||
           ((read_real(j, "scale", &state.scale) || damaged("scaler")) &&
            read_count(j, "good_steps", &state.good_steps) &&
            read_count(j, "steps", &state.steps) && read_count(j, "skipped", &state.skipped) &&
            mt_scaler_set(scaler, &state) == MT_OK);
}

static bool restore_best(const json_t *run, double *best)
{
    return !json_object_get(run, BEST_KEY) || (read_real(run, BEST_KEY, best) && *best > 0) ||
           damaged(BEST_KEY);
}

bool mti_run_restore(mt_safetensors *file, mti_trainer *t)
{
    mt_status status = t->model ? mt_checkpoint_load(file, t->model, t->optimizer, &t->step)
                                : mt_stage_load(file, &t->stage, t->optimizer, &t->step);
    json_t *run = NULL;
    mt_scaler *scaler = t->memory_hooks.scaler;
    const bool ok = status == MT_OK && parse_run(file, &run) && restore_best(run, &t->best) &&
                    (!scaler || restore_scaler(run, scaler));
    json_decref(run);
    return ok;
}

/* ---- weights ---- */

/* A model with these adapters (.rank 0: none), before its weights are loaded. */
static mt_module *new_model(mt_device *device, const mt_model_config *config,
                            const mt_lora_options *adapters)
{
    mt_module *model = mt_model_new(device, config);
    if (model && (!adapters->rank || mt_lora_add(model, adapters, NULL) == MT_OK)) return model;
    mt_module_free(model);
    return NULL;
}

/* Whether the tensors of the file, or of the folder if that is NULL, are those of the model it
 * describes, checked on meta before anything of the claimed size is allocated. */
static bool weights_fit(mt_safetensors *file, const char *folder, const mt_model_config *config,
                        const mt_lora_options *adapters)
{
    if (file && (uint64_t)config->layers > mt_safetensors_count(file))
        return mti_fail_bool(MT_ERR_FORMAT,
                             "the file describes a model of %lld layers, but holds %zu tensors",
                             (long long)config->layers, mt_safetensors_count(file));
    mt_device *meta = mt_device_open("meta");
    mt_module *model = meta ? new_model(meta, config, adapters) : NULL;
    bool ok = model && (file ? mt_safetensors_check_module(file, model)
                             : mt_hf_load(folder, model)) == MT_OK;
    mt_module_free(model);
    mt_device_release(meta);
    return ok;
}

bool mti_run_fits(mt_safetensors *file, const mti_options *o)
{
    const mt_lora_options adapters = mti_adapters_of(&o->workload.memory);
    return weights_fit(file, NULL, &o->workload.config, &adapters);
}

/* The options of the adapters in the file, by its settings; .lora_rank 0: none. */
static bool read_adapters(const mt_safetensors *file, mti_memory_options *memory)
{
    static const mti_option ids[] = {MTI_O_LORA_RANK,    MTI_O_LORA_TARGETS, MTI_O_QLORA,
                                     MTI_O_QLORA_DOUBLE, MTI_O_CODES,        MTI_O_LORA_ON_WEIGHTS};
    mti_options o;
    json_t *run;
    mti_option_defaults(&o, &mti_train_rules);
    bool ok = parse_run(file, &run);
    const json_t *chosen = ok ? memory_of(run) : NULL;
    for (size_t i = 0; ok && i < sizeof ids / sizeof *ids; i++) {
        const mti_option_row *r = &mti_option_rows[ids[i]];
        const json_t *value = json_object_get(chosen, r->name);
        ok = !value || read_option(value, &o, r, r->name);
    }
    *memory = o.workload.memory;
    json_decref(run);
    return ok;
}

/* Whether it has no adapters, which ranks cannot merge. */
static bool is_plain(const mt_safetensors *file)
{
    mti_memory_options memory;
    if (!read_adapters(file, &memory)) return false;
    return !memory.lora_rank ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "--from: the file has adapters beside its weights; to merge them takes "
                         "the whole matrices, of which ranks have parts: let one process train "
                         "from it, and the ranks from what that saves");
}

/* NULL and no error: a folder, which has no adapters. */
static bool open_model(const char *path, mt_safetensors **file, mti_memory_options *memory)
{
    *memory = (mti_memory_options){0};
    *file = mti_is_folder(path) ? NULL : mt_safetensors_open(path);
    return *file ? read_adapters(*file, memory) : mti_is_folder(path);
}

bool mti_run_holds(const char *path, const mt_model_config *config)
{
    mt_safetensors *file;
    mti_memory_options memory;
    if (mti_is_gguf(path)) return true; /* mt_model_open looks before it takes memory */
    bool ok = open_model(path, &file, &memory);
    const mt_lora_options adapters = mti_adapters_of(&memory);
    ok = ok && weights_fit(file, path, config, &adapters);
    mt_safetensors_free(file);
    return ok;
}

static mt_module *read_folder(const char *path, mt_device *device, const mt_model_config *config)
{
    char left[256] = "";
    mt_module *model = mt_model_open(device, path, config, left, sizeof left);
    if (model && *left) mti_print(stderr, "%s: %s", path, left);
    return model;
}

mt_module *mti_run_read_model(const char *path, mt_device *device, const mt_model_config *config,
                              bool *adapted)
{
    mt_safetensors *file;
    mti_memory_options memory;
    *adapted = false;
    if (mti_run_is_foreign(path)) return read_folder(path, device, config);
    bool opened = open_model(path, &file, &memory);
    const mt_lora_options adapters = mti_adapters_of(&memory);
    mt_module *model = opened ? new_model(device, config, &adapters) : NULL;
    *adapted = adapters.rank > 0;
    bool ok = model && mt_safetensors_load_module(file, model) == MT_OK;
    mt_safetensors_free(file);
    return mti_module_complete(model, ok);
}

static mt_module *read_base(const char *path, mt_device *device, const mt_model_config *config)
{
    bool adapted;
    mt_module *model = mti_run_read_model(path, device, config, &adapted);
    if (model &&
        (!adapted || (mt_lora_merge(model) == MT_OK && mt_module_freeze(model, false) == MT_OK)))
        return model;
    mt_module_free(model);
    return NULL;
}

static bool read_part(const char *path, mti_stage *stage)
{
    if (mti_is_folder(path))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "--from %s: ranks read files of `memtape train`: let one process "
                             "train from the folder, and the ranks from what that saves",
                             path);
    mt_safetensors *file = mt_safetensors_open(path);
    bool ok = file && is_plain(file) && mt_stage_load_weights(file, stage) == MT_OK;
    mt_safetensors_free(file);
    return ok;
}

const mti_weights_reader mti_run_weights = {read_base, read_part};
