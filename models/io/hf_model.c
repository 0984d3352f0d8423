/* hf_model.c: a whole model from a folder: its config.json and its weights. */
#include <string.h>
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
