/* peft.c: adapters as PEFT's save_pretrained writes them and its from_pretrained reads them. A
 * configuration that changes values in a way that adapters here do not have is refused. */
#include "io/peft.h"
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "files/files.h"
#include "files/json_text.h"
#include "io/hf_config.h"

#define CONFIG         "adapter_config.json"
#define WEIGHTS        "adapter_model.safetensors"
#define LONGEST        MTI_PATH
#define LARGEST_CONFIG ((size_t)16 << 20)

bool mti_is_peft_folder(const char *path)
{
    const size_t n = strlen(path);
    return (n && path[n - 1] == '/') || mti_is_folder(path);
}

/* ---- writing ---- */

/* Names of all linears, adapters or not. */
static bool is_any_linear(const mt_module *m)
{
    return mti_is_lora(m) || !strncmp(mt_module_kind(m), "linear", 6);
}

static const char *last_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static bool name_of(const mt_model_config *c, const mti_place *p, char name[MTI_HF_NAME])
{
    const mt_tensor *a = mti_is_lora(p->module) ? mti_lora_a(p->module) : NULL;
    if (c && mti_hf_module_name(c, p->path, name) && (!a || mt_rank(a) == 2)) return true;
    return mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "lora_save: PEFT has no adapters of %s; a file, not a folder, takes them",
                         p->path);
}

/* Whether a linear without an adapter has the same last name. */
static bool is_shared(const mti_places *all, const mt_model_config *c, const char *last)
{
    char name[MTI_HF_NAME];
    for (size_t i = 0; i < all->v.n; i++)
        if (!mti_is_lora(all->v.at[i].module) && mti_hf_module_name(c, all->v.at[i].path, name) &&
            !strcmp(last_of(name), last))
            return true;
    return false;
}

/* Last names where every linear that has one has an adapter, else the whole names. */
static bool put_targets(json_t *targets, mt_module *m)
{
    mti_places all;
    char name[MTI_HF_NAME];
    const mt_model_config *c = mt_model_config_of(m);
    bool ok = mti_places_find(&all, m, is_any_linear);
    for (size_t i = 0; ok && i < all.v.n; i++) {
        if (!mti_is_lora(all.v.at[i].module)) continue;
        ok = name_of(c, &all.v.at[i], name);
        const char *target = ok && !is_shared(&all, c, last_of(name)) ? last_of(name) : name;
        bool there = !ok;
        for (size_t k = 0; !there && k < json_array_size(targets); k++)
            there = !strcmp(json_string_value(json_array_get(targets, k)), target);
        if (!there) ok = json_array_append_new(targets, json_string(target)) == 0;
    }
    mti_places_free(&all);
    return ok;
}

/* Whether matrices of the model's own files are [in,out]: GPT-2's. */
static bool is_transposed(const mt_model_config *c)
{
    return c->kind == MT_MODEL_GPT && mti_learns_positions(c) && !c->position_offset;
}

static char *config_text(mt_module *m, const mti_lora_list *list)
{
    const mt_model_config *c = mt_model_config_of(m);
    const uint64_t failures = mti_failures();
    char *text = NULL;
    json_t *targets = json_array();
    bool ok = targets && put_targets(targets, m);
    json_t *j =
        ok ? json_pack("{ss, ss, ss, sn, sO, sI, sf, sf, sb, sb, sb, sb}", "peft_type", "LORA",
                       "task_type", "CAUSAL_LM", "bias", "none", "base_model_name_or_path",
                       "target_modules", targets, "r", (json_int_t)list->kind->rank, "lora_alpha",
                       list->kind->alpha, "lora_dropout", list->kind->dropout, "fan_in_fan_out",
                       is_transposed(c), "inference_mode", true, "use_rslora", false, "use_dora",
                       false)
           : NULL;
    if (j) text = mti_json_text(j, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (!text) mti_fail_around(failures, MT_ERR_MEMORY, "lora_save: no memory for " CONFIG);
    json_decref(j);
    json_decref(targets);
    return text;
}

bool mti_peft_save(const char *folder, mt_module *m)
{
    char weights[LONGEST], config[LONGEST];
    const mt_key_value format = {"format", "pt"};
    mti_lora_list list = {0};
    bool ok = mti_path_in(weights, folder, WEIGHTS) && mti_path_in(config, folder, CONFIG) &&
              mti_lora_list_make(&list, m);
    char *text = ok ? config_text(m, &list) : NULL;
    if (text && mkdir(folder, 0777) != 0 && errno != EEXIST)
        ok = mti_fail_bool(MT_ERR_IO, "%s: %s", folder, strerror(errno));
    ok = ok && text && mt_safetensors_save(weights, list.n, list.tensors, 1, &format) == MT_OK &&
         mti_file_write_all(config, text, strlen(text));
    mti_free(text);
    mti_lora_list_free(&list);
    return ok;
}

/* ---- reading ---- */

/* Keys that have to be off: what they would change. */
static const char *const off[] = {"use_dora",
                                  "rank_pattern",
                                  "alpha_pattern",
                                  "lora_bias",
                                  "modules_to_save",
                                  "target_parameters",
                                  "megatron_config",
                                  "layer_replication",
                                  "trainable_token_indices",
                                  "use_qalora",
                                  "alora_invocation_tokens",
                                  "arrow_config",
                                  "ensure_weight_tying"};

static bool is_off(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           ((json_is_array(value) || json_is_object(value)) && json_array_size(value) == 0 &&
            json_object_size(value) == 0);
}

static bool refuse(const char *path, const char *key, const json_t *value, const char *need)
{
    char text[MTI_JSON_BEGIN];
    return mti_fail_bool(MT_ERR_UNSUPPORTED, "%s: \"%s\" is %s; need %s", path, key,
                         value ? mti_json_begin(value, text) : "missing", need);
}

static bool read_number(const char *path, const json_t *root, const char *key, double least,
                        double *out)
{
    const json_t *value = json_object_get(root, key);
    *out = json_number_value(value);
    return (json_is_number(value) && *out >= least && *out <= INT32_MAX) ||
           refuse(path, key, value, least > 0 ? "a number of at least 1" : "a number from 0");
}

static bool is_word(const json_t *value, const char *word)
{
    return json_is_string(value) && !strcmp(json_string_value(value), word);
}

static bool read_config(const char *path, const json_t *root, mti_lora_described *d)
{
    double rank;
    const json_t *type = json_object_get(root, "peft_type"), *bias = json_object_get(root, "bias"),
                 *init = json_object_get(root, "init_lora_weights");
    if (!json_is_object(root))
        return mti_fail_bool(MT_ERR_FORMAT, "%s: is not a JSON object", path);
    if (!is_word(type, "LORA")) return refuse(path, "peft_type", type, "\"LORA\"");
    if (bias && !is_word(bias, "none")) return refuse(path, "bias", bias, "\"none\"");
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!is_off(json_object_get(root, off[i])))
            return refuse(path, off[i], json_object_get(root, off[i]),
                          "it off: adapters here have no such thing");
    /* others change the weights beside which adapters were trained */
    if (json_is_string(init) && !is_word(init, "gaussian") && !is_word(init, "orthogonal") &&
        !is_word(init, "eva"))
        return refuse(path, "init_lora_weights", init, "true, false, gaussian, orthogonal or eva");
    if (!read_number(path, root, "r", 1, &rank) ||
        !read_number(path, root, "lora_alpha", 0, &d->alpha))
        return false;
    const json_t *dropout = json_object_get(root, "lora_dropout");
    if (dropout && !read_number(path, root, "lora_dropout", 0, &d->dropout)) return false;
    if (!(d->dropout < 1) || floor(rank) != rank)
        return refuse(path, d->dropout < 1 ? "r" : "lora_dropout",
                      d->dropout < 1 ? json_object_get(root, "r") : dropout,
                      d->dropout < 1 ? "a whole number" : "a number below 1");
    d->rank = (int64_t)rank;
    if (json_is_true(json_object_get(root, "use_rslora"))) d->alpha *= sqrt(rank);
    return true;
}

static bool read_config_file(const char *path, mti_lora_described *d)
{
    json_t *root = mti_json_file(path, LARGEST_CONFIG);
    const bool ok = root && read_config(path, root, d);
    json_decref(root);
    return ok;
}

/* Linears of m whose adapters the file has. */
static bool find_targets(const mt_safetensors *f, mt_module *m, mti_lora_described *d)
{
    mti_places all;
    bool ok = mti_places_find(&all, m, mti_is_adaptable);
    for (size_t i = 0; ok && i < all.v.n; i++) {
        mt_safetensors_entry e;
        char *name = mti_lora_weight_name(m, all.v.at[i].path, MTI_LORA_A);
        ok = name != NULL;
        if (ok && mt_safetensors_find(f, name, &e)) {
            const mt_tensor *w = mt_module_param(all.v.at[i].module, "weight");
            d->f32 = e.dtype == MT_F32 && mt_dtype_size(mt_dtype_of(w)) == 2;
            ok = mti_lora_describe_target(d, all.v.at[i].path);
        }
        mti_free(name);
    }
    mti_places_free(&all);
    return ok;
}

/* Without targets all linears would get adapters. */
static bool has_adapters(mt_module *m)
{
    mti_places there;
    const bool has = mti_places_find(&there, m, mti_is_lora) && there.v.n;
    mti_places_free(&there);
    return has;
}

mt_safetensors *mti_peft_open(const char *folder, mt_module *m, mti_lora_described *d)
{
    char path[LONGEST];
    if (!mti_path_in(path, folder, CONFIG) || !read_config_file(path, d) ||
        !mti_path_in(path, folder, WEIGHTS))
        return NULL;
    mt_safetensors *f = mt_safetensors_open(path);
    bool ok = f && find_targets(f, m, d);
    if (ok && !d->targets.n && !has_adapters(m))
        ok = mti_fail_bool(MT_ERR_ARGUMENT, "%s: has no adapters of linears that the model has",
                           path);
    if (ok) return f;
    mt_safetensors_free(f);
    return NULL;
}
