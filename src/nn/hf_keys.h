/* hf_keys.h: what the keys of a Hugging Face config.json mean, family by family. */
#ifndef MTI_HF_KEYS_H
#define MTI_HF_KEYS_H

#include "nn/model.h"

typedef struct mti_hf_family {
    const char *type;  /* as "model_type" names it */
    const char *class; /* the architecture: the model with the head that is made here */
    unsigned bit;
    mt_model_config config; /* defaults */
} mti_hf_family;

typedef enum mti_hf_form {
    MTI_HF_SIZE,    /* a whole number from 1 on */
    MTI_HF_REAL,    /* a number above 0 */
    MTI_HF_ROOT,    /* a number above 0, of which the field takes 1 / sqrt */
    MTI_HF_CAP,     /* a number above 0, or null: none */
    MTI_HF_DROPOUT, /* all dropouts of a file must be equal: we have one */
    MTI_HF_ZERO,    /* a number that must be 0 */
    MTI_HF_ONE,     /* a number that must be 1 */
    MTI_HF_ACT,     /* of a plain MLP */
    MTI_HF_GELU,    /* of an MLP and of a head that has no other */
    MTI_HF_SILU,    /* of a gated MLP, which has no other here */
    MTI_HF_TIED,    /* whether the head is the token embedding */
    MTI_HF_DTYPE,
    MTI_HF_NO, /* must be false, null or empty */
    MTI_HF_YES,
    MTI_HF_ABSOLUTE, /* learned positions, one row each */
    MTI_HF_PADDING,  /* a token without a gradient; a roberta's positions begin after its own */
    MTI_HF_HEADED,   /* names of architectures, which must be the family's */
    MTI_HF_ROPE,     /* an object with rope_theta; `note` if its angles are not the default */
    MTI_HF_WINDOW,   /* of attention, in positions; `note` if it is shorter than the context */
    MTI_HF_LAYERS,   /* which layers see all positions, and which a window */
    MTI_HF_NOTED,    /* changes no shape and no byte; `note` says what it does */
    MTI_HF_KIND,     /* told the family, before all others were read */
    MTI_HF_IDLE,     /* no effect on training */
} mti_hf_form;

typedef struct mti_hf_rule {
    const char *key;
    unsigned families;
    mti_hf_form form;
    size_t at;       /* of the field of mt_model_config that it sets */
    unsigned needed; /* families in which it must be given: their defaults differ from ours */
    const char *note;
} mti_hf_rule;

/* NULL past the last. */
const mti_hf_family *mti_hf_family_at(size_t i);
const mti_hf_rule *mti_hf_rule_at(size_t i);
/* NULL: no row for this key in this family. */
const mti_hf_rule *mti_hf_rule_of(unsigned family, const char *key);
/* Whether the key says for how many experts a model has room. */
bool mti_hf_counts_experts(const char *key);

#endif
