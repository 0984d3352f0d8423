/* lora.h: adapters, for the rooms above. */
#ifndef MTI_NN_LORA_H
#define MTI_NN_LORA_H

#include "memtape/models/lora.h"
#include "nn/nn.h"
#include "nn/quantized.h"

#define MTI_LORA_BASE "base_layer"
#define MTI_LORA_A    "lora_A"
#define MTI_LORA_B    "lora_B"

/* User data of a "lora" module. */
typedef struct mti_lora {
    int64_t rank;
    double alpha, dropout;
    bool f32;       /* A and B, beside a 16-bit linear */
    bool on_weight; /* they are added to the weight, not to what the linear makes */
    mt_module
        *spare; /* placeholder for base_layer when that is taken out, so that this cannot fail */
} mti_lora;

/* A module below another, with its path. */
typedef struct mti_place {
    mt_module *parent, *module;
    char *path;
    mt_module *wrapper; /* will take its place; NULL: none */
} mti_place;

typedef struct mti_places {
    MTI_VEC(mti_place) v;
} mti_places;

/* All modules below m for which is() holds; not those inside adapters. */
typedef bool mti_is_fn(const mt_module *m);
bool mti_places_find(mti_places *places, mt_module *m, mti_is_fn *is);
void mti_places_free(mti_places *places); /* and unused wrappers */

bool mti_is_lora(const mt_module *m);
bool mti_is_adaptable(const mt_module *m); /* a linear that can get an adapter */

/* mt_lora_add; *added are the new lora modules. Free it, on failure too. */
bool mti_lora_add(mt_module *m, const mt_lora_options *options, mti_places *added);

/* The same for a part of a model, with `path` from the root, which no target need fit. */
bool mti_lora_add_part(mt_module *m, const char *path, const mt_lora_options *options);
/* Whether a target, if there is any, fits the linear of that path. */
bool mti_lora_wants(const mt_lora_options *options, const char *path);
/* Whether each target fits a linear of such a model. */
bool mti_lora_check(const mt_model_config *config, const mt_lora_options *options);

/* How a frozen weight in 4 bits is kept. */
mt_quant mti_lora_format(const mt_lora_options *options);

/* The adapter's weights, borrowed. */
mt_tensor *mti_lora_a(const mt_module *lora);
mt_tensor *mti_lora_b(const mt_module *lora);

/* Puts the base back and frees the adapter. Cannot fail. */
void mti_lora_unwrap(const mti_place *lora);

/* Names of linears as an option has them, "q,v,mlp.fc" or "q+v+mlp.fc": each is the end
 * of a path, or all of it. "all": every linear. */
#define MTI_LORA_TARGETS 16
typedef struct mti_lora_targets {
    const char *text; /* interned; NULL: every linear */
    size_t n;
    const char *patterns[MTI_LORA_TARGETS]; /* interned: "*.q", "*.v", "*.mlp.fc" */
} mti_lora_targets;
bool mti_lora_targets_parse(mti_lora_targets *targets, const char *text);

#endif
