/* hf_model.c: a whole model from a folder, and into one: its config.json and its weights. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "files/files.h"
#include "io/gguf.h"
#include "io/hf_config.h"
#include "memtape/models/io.h"

/* Notes that say that values are others here, not only bytes. */
static bool computes_its_values(const char *path, const char *notes)
{
    static const char *const keys[] = {"rope_scaling: ", "rope_parameters: "};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *line = strstr(notes, keys[i]);
        if (line && (line == notes || line[-1] == '\n'))
            return mti_fail_bool(MT_ERR_UNSUPPORTED, "%s: %.*s, and with them other values", path,
                                 (int)strcspn(line, ";\n"), line);
    }
    return true;
}

mt_module *mt_model_open(mt_device *device, const char *path, const mt_model_config *config,
                         char *left, size_t n_bytes)
{
    char notes[MT_HF_NOTES];
    mt_model_config c;
    if (!mti_given(device, "model_open", "the device")) return NULL;
    if (!path || (n_bytes && !left))
        return mti_fail_null(MT_ERR_ARGUMENT, "model_open: the %s is NULL",
                             path ? "text for what is left" : "path");
    if (n_bytes) *left = '\0';
    if (mti_is_gguf(path)) return mti_gguf_model(device, path, config);
    if (mt_model_config_from_hf_file(path, &c, notes, sizeof notes) != MT_OK ||
        !computes_its_values(path, notes))
        return NULL;
    if (config) c = *config;
    const bool has_data = mt_device_has_data(device);
    mt_device *meta = has_data ? mt_device_open("meta") : NULL;
    mt_module *m = meta || !has_data ? mt_model_new(has_data ? meta : device, &c) : NULL;
    bool ok = m && mt_hf_load_with(path, m, left, n_bytes) == MT_OK;
    if (ok && has_data) ok = mti_module_materialize(m, device) && mt_hf_load(path, m) == MT_OK;
    mt_device_release(meta);
    return mti_module_complete(m, ok);
}

/* ---- writing ---- */

#define LONGEST      MTI_PATH
#define LARGEST_FILE ((size_t)256 << 20)

/* Copies what tokenizers and generation need, where it is there. */
static bool copy_others(const char *folder, const char *like)
{
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "generation_config.json",
                                        "chat_template.jinja",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model"};
    char from[LONGEST], to[LONGEST];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n;
        if (!mti_path_in(from, like, names[i]) || !mti_path_in(to, folder, names[i])) return false;
        if (access(from, F_OK) != 0) continue;
        char *data = mti_file_read(from, LARGEST_FILE, &n);
        bool ok = data && mti_file_write_all(to, data, n);
        mti_free(data);
        if (!ok) return false;
    }
    return true;
}

/* The config.json of `like`, with the dtype of m. */
static json_t *config_of(const char *like, mt_dtype dtype)
{
    char *path = mti_config_path(like);
    const uint64_t failures = mti_failures();
    json_t *root = path ? mti_json_file(path, LARGEST_FILE) : NULL;
    const char *name = dtype == MT_BF16  ? "bfloat16"
                       : dtype == MT_F16 ? "float16"
                       : dtype == MT_F64 ? "float64"
                                         : "float32";
    bool ok = json_is_object(root) && json_object_set_new(root, "dtype", json_string(name)) == 0;
    json_object_del(root, "torch_dtype");
    if (root && !ok) mti_fail_around(failures, MT_ERR_FORMAT, "%s: is not a JSON object", path);
    mti_free(path);
    if (ok) return root;
    json_decref(root);
    return NULL;
}

mt_status mt_model_save(const char *folder, mt_module *m, const char *like)
{
    char weights[LONGEST], config[LONGEST];
    if (!mti_given(m, "model_save", "the module")) return mt_last_status();
    const mt_model_config *c = mt_model_config_of(m);
    if (!folder || !like || !c)
        return mti_fail(MT_ERR_ARGUMENT, "model_save: need a whole model, and two folders");
    if (!mti_path_in(weights, folder, "model.safetensors") ||
        !mti_path_in(config, folder, "config.json"))
        return mt_last_status();
    json_t *root = config_of(like, c->dtype);
    char *text = root ? mti_json_text(root, JSON_INDENT(2)) : NULL;
    bool ok = text != NULL;
    if (ok && mkdir(folder, 0777) != 0 && errno != EEXIST)
        ok = mti_fail_bool(MT_ERR_IO, "%s: %s", folder, strerror(errno));
    ok = ok &&
         mt_hf_save(weights, m, json_string_value(json_object_get(root, "model_type"))) == MT_OK &&
         copy_others(folder, like) && mti_file_write_all(config, text, strlen(text));
    mti_free(text);
    json_decref(root);
    return ok ? MT_OK : mt_last_status();
}
