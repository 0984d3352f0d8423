/* run_file.h: checkpoints of a training run: weights and state as io.h writes them, with the run's
 * settings, so that a run can be resumed from its file and its text alone. */
#ifndef MTI_CLI_RUN_FILE_H
#define MTI_CLI_RUN_FILE_H

#include "options/options.h"
#include "trainer/trainer.h"
#include "memtape/models/io.h"

/* `path` is a file, or an existing folder, in which "step-<step>.safetensors" is written. `where`
 * receives the file's name. */
bool mti_run_save(mti_trainer *t, const char *path, double val_fraction, char *where, size_t size);
/* A run's settings as its file has them, to be compared and mti_freed; NULL on failure. */
char *mti_run_settings(const mti_options *o);
/* Whether a file can be created at `path` (NULL: none is), or in it if it is a folder and `folders`
 * are allowed, or with them a folder whose name ends with a slash: checked before the work, not
 * after it. */
bool mti_run_can_save(const char *option, const char *path, bool folders);
/* Reads the settings into the options that were not given on the command line, the text's paths
 * among them, and the config.
 * *fingerprint is that of the run's text. */
bool mti_run_read_settings(const mt_safetensors *file, mti_options *o, uint64_t *fingerprint);
/* Whether the file's tensors are those of the model that the options now describe: checked before
 * anything of that model's size is allocated, since files are not trusted. */
bool mti_run_fits(mt_safetensors *file, const mti_options *o);
/* The same for a config and the adapters in the settings of the file, or of a folder, as below. */
bool mti_run_holds(const char *path, const mt_model_config *config);
/* Loads weights, the optimizer's and the scaler's state, generator and step into a trainer with the
 * file's settings. */
bool mti_run_restore(mt_safetensors *file, mti_trainer *t);

/* Whether others wrote it: a folder with Hugging Face's config.json and weights, or a GGUF file. */
bool mti_run_is_foreign(const char *path);
/* The configuration alone of a model in a run's file, or in what others wrote. */
bool mti_run_read_config(const char *path, mt_model_config *config);
/* The tokenizer of what others wrote, or the one with which a run's file was trained; *t NULL:
 * none. */
bool mti_run_tokenizer(const char *path, const mt_model_config *config, mt_tokenizer **t);
/* Whether its tokens are bytes; path is for the error. */
bool mti_run_over_bytes(const char *path, const mt_model_config *config);
/* A new model with these weights, after mti_run_holds. *adapted: it was
 * trained with adapters; then it has them, and all else is frozen. */
mt_module *mti_run_read_model(const char *path, mt_device *device, const mt_model_config *config,
                              bool *adapted);
/* The same with the adapters merged, to be trained further. */
extern const mti_weights_reader mti_run_weights;

#endif
