/* model_fields.h: the fields of mt_model_config as values: the rows of model_fields.def. */
#ifndef MTI_MODEL_FIELDS_H
#define MTI_MODEL_FIELDS_H

#include "nn/model.h"

typedef enum mti_field_form {
    MTI_FIELD_SIZE, /* int64_t, from 0 */
    MTI_FIELD_REAL, /* double, from 0 */
    MTI_FIELD_FLAG, /* bool */
    MTI_FIELD_NAME, /* an enum */
    MTI_FIELD_DTYPE /* of floats */
} mti_field_form;

typedef struct mti_model_field {
    const char *name;
    mti_field_form form;
    size_t at;                /* of the field in mt_model_config */
    unsigned needed;          /* kinds in which a SIZE is at least 1, as bits of mt_model_kind */
    unsigned only;            /* whole models in which it may be set; 0: all */
    int64_t most;             /* of a SIZE; 0: MTI_MAX_EXTENT */
    double below;             /* REAL; 0: any */
    const mti_choice *choice; /* of a NAME */
    size_t flag;              /* of the bool that says whether it is there; 0: it always is */
    bool rare;                /* not in JSON where it is 0, or not there */
} mti_model_field;

/* In the order of the rows; NULL past the last. */
const mti_model_field *mti_model_field_at(size_t i);
/* NULL if there is none of that name. */
const mti_model_field *mti_model_field_named(const char *name);
/* Whether it is 0, or not there. */
bool mti_model_field_is_zero(const mti_model_field *f, const mt_model_config *c);
void mti_model_field_copy(const mti_model_field *f, mt_model_config *to,
                          const mt_model_config *from);
/* The value: a number, true or false, a name. Returns text. */
enum { MTI_FIELD_TEXT = 32 };
const char *mti_model_field_text(char text[MTI_FIELD_TEXT], const mti_model_field *f,
                                 const mt_model_config *c);

#endif
