/* hf_reader.h: what reads a config.json: its family, the keys, and what is known so far. */
#ifndef MTI_HF_READER_H
#define MTI_HF_READER_H

#include "files/json_text.h"
#include "nn/model.h"

typedef struct mti_hf_family {
    const char *type;  /* as "model_type" names it */
    const char *class; /* the architecture: the model with the head that is made here */
    unsigned bit;
    mt_model_config config; /* defaults */
} mti_hf_family;
/* In the order of hf_families.def; NULL past the last. */
const mti_hf_family *mti_hf_family_at(size_t i);

typedef struct mti_hf_reader {
    const mti_hf_family *family;
    const struct mti_hf_key *key; /* that is being read */
    const json_t *root;
    mt_model_config c;
    const char *dropout_key; /* the first that was read */
    bool grouped;            /* experts are chosen by groups */
    double turned;           /* share of a head */
    const json_t *scaling;   /* of angles, and its key; NULL: none is named */
    const char *scaling_key;
    char *notes; /* cut to the buffer */
    size_t n_notes;
    char ignored[1024];
    char unknown[640]; /* keys that no row explains, with their values */
    int n_unknown, n_listed;
} mti_hf_reader;

typedef bool mti_hf_read_fn(mti_hf_reader *r, const json_t *value);
typedef struct mti_hf_key {
    const char *name;
    unsigned families;
    mti_hf_read_fn *read; /* NULL: no effect on a training step */
    size_t at;            /* of the field of mt_model_config that it sets */
    unsigned needed;      /* families in which it must be given: their defaults differ from ours */
    const char *text;     /* ONLY: the value, and why; NOTED: the note */
} mti_hf_key;
/* NULL: no row for this key in this family. */
const mti_hf_key *mti_hf_find_key(const mti_hf_family *family, const char *name);
/* Reads the value of r->key; null is as if the key were missing, but where null says something. */
bool mti_hf_read(mti_hf_reader *r, const json_t *value);
/* The first key that the family needs and root has not; NULL: none. */
const char *mti_hf_missing(const mti_hf_family *family, const json_t *root);

/* Appends to text, as much as n_bytes hold. */
void mti_hf_put(char *text, size_t n_bytes, const char *fmt, ...) MT_PRINTF(3, 4);
/* null, false, "", [] and {} */
bool mti_hf_is_empty(const json_t *value);

#endif
