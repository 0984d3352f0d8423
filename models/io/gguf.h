/* gguf.h: weights in a GGUF file, as llama.cpp has them.
 *
 * A header: the letters GGUF, a version, pairs of a key and a value, and of each tensor its name,
 * extents (the fastest first), type and place; then the data. Nothing in it is trusted: every
 * count and length is compared with the bytes that are there. */
#ifndef MTI_GGUF_H
#define MTI_GGUF_H

#include "base/base.h"
#include "io/safetensors.h"
#include "memtape/models/model.h"
#include "tokens/token_arrays.h"

/* Types of a tensor's blocks, by their numbers in files. */
typedef enum mti_gguf_type {
    MTI_GGUF_F32 = 0,
    MTI_GGUF_F16 = 1,
    MTI_GGUF_Q4_0 = 2,
    MTI_GGUF_Q4_1 = 3,
    MTI_GGUF_Q5_0 = 6,
    MTI_GGUF_Q5_1 = 7,
    MTI_GGUF_Q8_0 = 8,
    MTI_GGUF_Q4_K = 12,
    MTI_GGUF_Q5_K = 13,
    MTI_GGUF_Q6_K = 14,
    MTI_GGUF_BF16 = 30
} mti_gguf_type;

/* In the header, without a zero byte behind it. */
typedef mti_token_text mti_gguf_text;

typedef struct mti_gguf_value {
    mti_gguf_text key;
    uint32_t type, of; /* of: what an array is of */
    uint64_t n;        /* how many; 1 unless it is an array */
    const unsigned char *data;
} mti_gguf_value;

typedef struct mti_gguf_tensor {
    mti_gguf_text name;
    mti_gguf_type type;
    int rank;
    int64_t shape[4];   /* the slowest first */
    uint64_t at, bytes; /* in the file */
} mti_gguf_tensor;

typedef struct mti_gguf {
    char *path, *head;
    int fd; /* -1: no data can be read */
    MTI_VEC(mti_gguf_value) values;
    MTI_VEC(mti_gguf_tensor) tensors;
} mti_gguf;

bool mti_is_gguf(const char *path); /* a file whose name ends so */
mti_gguf *mti_gguf_open(const char *path);
void mti_gguf_free(mti_gguf *f);
/* The first n_head bytes of a file of file_bytes. *cut: these are too few, which is no error yet.
 */
mti_gguf *mti_gguf_parse(const char *path, const void *head, size_t n_head, uint64_t file_bytes,
                         bool *cut);

bool mti_gguf_is(mti_gguf_text text, const char *word);
/* The text made printable, as mti_shown does. */
const char *mti_gguf_shown(char buf[MTI_SHOWN], mti_gguf_text text);
/* NULL: there is none. */
const mti_gguf_value *mti_gguf_find(const mti_gguf *f, const char *key);
const mti_gguf_tensor *mti_gguf_tensor_of(const mti_gguf *f, const char *name);
/* The i-th of an array of texts, or of whole numbers; -1: it is of something else. */
bool mti_gguf_texts(const mti_gguf_value *v, mti_gguf_text *texts);
int64_t mti_gguf_integer(const mti_gguf_value *v, uint64_t i);
/* Whether it is an array of f32, or of i32. */
bool mti_gguf_is_array(const mti_gguf_value *v, bool floats);
double mti_gguf_real(const mti_gguf_value *v); /* NaN: it is none */

size_t mti_gguf_block(mti_gguf_type type, size_t *bytes); /* values of a block; 0: it is not read */
/* n floats, of whole blocks. */
void mti_gguf_widen(mti_gguf_type type, const void *blocks, size_t n, float *out);

/* gguf_model.c: the configuration, in f32; and the model. */
bool mti_gguf_config(const char *path, mt_model_config *out);
mt_module *mti_gguf_model(mt_device *device, const char *path, const mt_model_config *config);
/* gguf_tokens.c */
mt_tokenizer *mti_gguf_tokenizer(const char *path);

#endif
