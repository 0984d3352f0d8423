/* hf_config.h: where a model's config.json lies. */
#ifndef MTI_HF_CONFIG_H
#define MTI_HF_CONFIG_H

#define ANY_FILE "config.json: " /* begins messages if the file's name is unknown */

/* The file to read, to be mti_freed, for a path that may be a folder, which has a config.json, or
 * org/name of a model in Hugging Face's local cache. NULL and an error if it is such a name, and
 * not there. */
char *mti_config_path(const char *path);

#endif
