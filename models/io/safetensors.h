/* safetensors.h: an open file, for this room and for the fuzzer. */
#ifndef MTI_SAFETENSORS_H
#define MTI_SAFETENSORS_H

#include <jansson.h>
#include "base/base.h"
#include "memtape/models/io.h"

/* The names of element types in files, in the order of mt_dtype. */
extern const char *const mti_safetensors_dtypes[MT_DTYPE_COUNT];

typedef struct mti_tensor_entry {
    mt_safetensors_entry info; /* name: in `root` */
    uint64_t begin, end;       /* from the start of the data */
} mti_tensor_entry;

struct mt_safetensors {
    char *path;
    int fd;                            /* -1: no data can be read */
    json_t *root;                      /* the header; holds all names */
    json_t *metadata;                  /* borrowed from root; NULL if there is none */
    uint64_t data_at;                  /* where the data starts in the file */
    MTI_VEC(mti_tensor_entry) entries; /* in order of their data */
    mti_name_index entry_at;           /* indices by name */
};

/* Parses the first n_head bytes of a file of file_bytes, and checks all of it; path is for
 * messages. NULL, and an error that names path and fault. */
mt_safetensors *mti_safetensors_parse(const char *path, const void *head, size_t n_head,
                                      uint64_t file_bytes);

/* The bytes before the data of a file with these tensors, to be freed with mti_free; NULL on
 * failure. begins[n] (may be NULL): where each tensor's bytes begin in the file. */
char *mti_safetensors_head(const char *path, size_t n, const mt_named_tensor *list,
                           size_t n_metadata, const mt_key_value *metadata, size_t *n_bytes,
                           uint64_t *begins);
/* Reads a part of a tensor's bytes; it must have that many. */
bool mti_safetensors_read_part(const mt_safetensors *f, const char *name, uint64_t from, void *data,
                               size_t n_bytes);

/* A name from a file made printable: cut, with '?' for control characters. */
#define MTI_SHOWN 96
const char *mti_shown(char buf[MTI_SHOWN], const char *name);

#endif
