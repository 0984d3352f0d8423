/* hf_config.h: where a model's config.json lies. */
#ifndef MTI_HF_CONFIG_H
#define MTI_HF_CONFIG_H

/* The file to read for a path that may be a folder, which has a config.json; to be mti_freed. */
char *mti_config_path(const char *path);

#endif
