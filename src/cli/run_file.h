/* run_file.h: checkpoints of a training run: weights and state as io.h writes them, with the plan
 * of the run beside them, so that it can be resumed with nothing but the file and the text. */
#ifndef MTI_CLI_RUN_FILE_H
#define MTI_CLI_RUN_FILE_H

#include "cli/options.h"
#include "cli/trainer.h"
#include "memtape/io.h"

/* `path` is a file, or an existing folder, in which "step-<step>.safetensors" is written. `where`
 * receives the file's name. */
bool mti_run_save(const mti_trainer *t, const char *path, double val_fraction, char *where,
                  size_t size);
/* Whether a file could be made there, or in it where `folders` are good: asked before the work, not
 * after it. */
bool mti_run_can_save(const char *option, const char *path, bool folders);
/* mt_safetensors_open, for a program that has json_set_alloc_funcs(mti_malloc, mti_free). */
mt_safetensors *mti_run_open(const char *path);
/* What the run was made with, into the options that were not given on the command line; the
 * configuration into o->config. *fingerprint is that of its text. */
bool mti_run_read_plan(const mt_safetensors *file, mti_options *o, uint64_t *fingerprint);
/* Whether the file's tensors are those of the model that the options now describe: asked before
 * anything of that model's size is made, since the file's word for it is not believed. */
bool mti_run_fits(mt_safetensors *file, const mti_options *o);
/* The same of a configuration and the adapters that the file tells of. */
bool mti_run_holds(mt_safetensors *file, const mt_model_config *config);
/* Weights, the optimizer's and the scaler's state, generator and step, into a trainer made by that
 * plan. */
bool mti_run_restore(mt_safetensors *file, mti_trainer *t);

/* The model's configuration alone. */
bool mti_run_read_config(const mt_safetensors *file, mt_model_config *config);
/* A new model with the file's weights, once it was found to hold them, and *adapted if it was
 * trained with adapters: then they are in it, and all else is frozen. */
mt_module *mti_run_read_model(mt_safetensors *file, mt_device *device,
                              const mt_model_config *config, bool *adapted);
/* The same, adapters merged, to be trained again. */
mt_module *mti_run_base_model(const char *path, mt_device *device, const mt_model_config *config);

#endif
