/* io.h: safetensors files and checkpoints.
 *
 * A safetensors file is an 8-byte little-endian header length, a JSON header and the raw data,
 * without holes. Files are written beside their target and renamed, so a reader sees the old or
 * the new one. Files are not trusted: sizes, offsets, names and types are checked
 * against the file before anything is allocated for them. */
#ifndef MEMTAPE_IO_H
#define MEMTAPE_IO_H

#include "memtape/models/model.h"
#include "memtape/models/optimizer.h"

MT_C_BEGIN

/* One entry of a file's metadata. */
typedef struct mt_key_value {
    const char *key, *value;
} mt_key_value;

/* ---- reading ---- */

/* A file open for reading. */
typedef struct mt_safetensors mt_safetensors;

/* Reads and checks the header; data is read by the loads. MT_ERR_IO if the file cannot be read,
 * MT_ERR_FORMAT, naming file and fault, if it is damaged. */
MT_API mt_safetensors *mt_safetensors_open(const char *path);
MT_API void mt_safetensors_free(mt_safetensors *file);

/* One tensor of a file. */
typedef struct mt_safetensors_entry {
    const char *name; /* valid as long as the file is open */
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK];
    size_t bytes;
} mt_safetensors_entry;

MT_API size_t mt_safetensors_count(const mt_safetensors *file); /* tensors */
/* In order of their data. */
MT_API mt_status mt_safetensors_get(const mt_safetensors *file, size_t i,
                                    mt_safetensors_entry *out);
/* By name; false if there is none, which is no error. out may be NULL. */
MT_API bool mt_safetensors_find(const mt_safetensors *file, const char *name,
                                mt_safetensors_entry *out);
/* The file's own text under a key; NULL if there is none. */
MT_API const char *mt_safetensors_metadata(const mt_safetensors *file, const char *key);

/* Copy into t, whose shape and dtype must be the file's. */
MT_API mt_status mt_safetensors_load(mt_safetensors *file, const char *name, mt_tensor *t);
/* The same into a new tensor. */
MT_API mt_tensor *mt_safetensors_read(mt_safetensors *file, const char *name, mt_device *device);
/* Whether the file holds the parameters of m and no others, of the same shapes and dtypes; the
 * error tells what is missing, superfluous or different. m may be on a meta device: so a file is
 * compared with a model before anything of the model's size is allocated. */
MT_API mt_status mt_safetensors_check_module(mt_safetensors *file, mt_module *m);
/* Into all parameters of m. Names and shapes are compared first, and the error tells what is
 * missing, superfluous or different; then nothing is changed. A checkpoint's optimizer state is
 * passed over, so its weights load from it like from any other file. */
MT_API mt_status mt_safetensors_load_module(mt_safetensors *file, mt_module *m);

/* ---- writing ---- */

/* The tensors, or every parameter of m under its path, with metadata, into a new file that replaces
 * what is there once it is complete. */
MT_API mt_status mt_safetensors_save(const char *path, size_t n_tensors,
                                     const mt_named_tensor *tensors, size_t n_metadata,
                                     const mt_key_value *metadata);
MT_API mt_status mt_safetensors_save_module(const char *path, mt_module *m, size_t n_metadata,
                                            const mt_key_value *metadata);

/* ---- weights of Hugging Face's Hub ---- */

/* Into all parameters of m, a gpt or a llama of any family, from a .safetensors file or a folder
 * with model.safetensors, or with parts of it and their index, by the names that Transformers'
 * checkpoints have (docs/models.md): experts one by one, or stacked. Floating dtypes are cast to
 * the model's. Beside m there is one of the file's tensors at a time. Names and shapes are compared
 * first: then a failure changes nothing. On meta that is all. */
MT_API mt_status mt_hf_load(const char *path, mt_module *m);
/* The same, with left[n_bytes] (may be NULL, 0) for a line on what the model has no place for:
 * layers that predict ahead, as in DeepSeek-V3's files. (To a model with such layers they come
 * without their copies of embedding and head, which have to be equal to these.) "": nothing was
 * left. */
MT_API mt_status mt_hf_load_with(const char *path, mt_module *m, char *left, size_t n_bytes);
/* A model with the weights of such a folder, which has a config.json. config NULL: as that says;
 * else its fields may differ in what changes no weights' shapes, such as the dtype. Nothing is
 * drawn: the files are compared with the model before any memory of its size is taken, and then
 * read into it. left: as above. The caller's; NULL on failure, also where the config.json asks for
 * values that the model here does not compute (scaled rotary angles). */
MT_API mt_module *mt_model_open(mt_device *device, const char *path, const mt_model_config *config,
                                char *left, size_t n_bytes);
/* A file that Transformers reads as model.safetensors beside a config.json of that model_type. */
MT_API mt_status mt_hf_save(const char *path, mt_module *m, const char *model_type);

/* m's weights into a folder that Transformers' from_pretrained opens, made if it is not there: the
 * config.json of the folder `like`, in m's dtype, and copies of its tokenizer's files. m has no
 * adapters (mt_lora_merge). The config.json comes last. */
MT_API mt_status mt_model_save(const char *folder, mt_module *m, const char *like);

/* ---- checkpoints: all that a run needs to go on bit for bit ----
 *
 * One safetensors file, so that weights and state cannot come apart: the weights under their own
 * names; the optimizer's state as "optimizer.m.<parameter>"; as "memtape.state.<path>" what modules
 * keep from step to step beside parameters (linears of te-delayed their largest values); in the
 * metadata memtape.step, memtape.rng.seed, memtape.rng.offset, memtape.optimizer, memtape.steps,
 * and the caller's own keys, which must not start with "memtape." Weights alone load from it, too
 * (mt_safetensors_load_module), and take what modules keep along; a file of weights may lack it. */

/* The generator saved is that of the parameters' device. optimizer may be NULL. step: steps done.
 */
MT_API mt_status mt_checkpoint_save(const char *path, mt_module *m, mt_optimizer *optimizer,
                                    int64_t step, size_t n_metadata, const mt_key_value *metadata);
/* Puts weights, optimizer state, what modules keep and generator back; *step is the step saved.
 * Everything is compared first: when names, shapes or kinds do not fit, nothing is changed. With
 * optimizer NULL its state in the file is passed over. */
MT_API mt_status mt_checkpoint_load(mt_safetensors *file, mt_module *m, mt_optimizer *optimizer,
                                    int64_t *step);

MT_C_END
#endif
