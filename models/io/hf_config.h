/* hf_config.h: where a model's config.json lies, and what its readers share. */
#ifndef MTI_HF_CONFIG_H
#define MTI_HF_CONFIG_H

#include "files/json_text.h"
#include "nn/model.h"

#define MTI_ANY_FILE "config.json: " /* begins messages if the file's name is unknown */

/* The file to read, to be mti_freed, for a path that may be a folder, which has a config.json, or
 * org/name of a model in Hugging Face's local cache. NULL and an error if it is such a name, and
 * not there. */
char *mti_config_path(const char *path);
/* The type of scaled angles that an object of rope_scaling or rope_parameters names. */
const char *mti_hf_rope_type(const json_t *value);
/* Sets the fields yarn_, and of latent attention attention_scale, by the object `value` of this key
 * in `root`. c's context is known, and within it angles of type "dynamic" are as ever. Whether the
 * type is known, too: another leaves them so. */
bool mti_hf_scaling(mt_model_config *c, const char *key, const json_t *value, const json_t *root,
                    bool *known);
/* Sets local_period and local_layers by "layer_types", or, of those whose local layers begin at
 * some place, by "max_window_layers"; no window if no layer is local. */
bool mti_hf_local_layers(mt_model_config *c, const json_t *root, bool from_some);
/* Sets unturned_period by "no_rope_layers", if root has it. */
bool mti_hf_unturned(mt_model_config *c, const json_t *root);

/* What Hugging Face's checkpoints call the module of that path ("h.0.attn.q") in a model of this
 * configuration; false: they have no name for it, or several. */
#define MTI_HF_NAME 512
bool mti_hf_module_name(const mt_model_config *c, const char *path, char name[MTI_HF_NAME]);

#endif
