/* lora_file.h: what a file of adapters has. */
#ifndef MTI_LORA_FILE_H
#define MTI_LORA_FILE_H

#include "memtape/models/io.h"
#include "nn/lora.h"

/* The keys of a file's metadata. */
#define MTI_KEY_RANK    "lora.rank"
#define MTI_KEY_ALPHA   "lora.alpha"
#define MTI_KEY_DROPOUT "lora.dropout"
#define MTI_KEY_TARGETS "lora.targets"

/* What a file of the module's adapters consists of; the tensors are the module's. Free in any case.
 */
#define MTI_LORA_PAIRS 4
typedef struct mti_lora_list {
    size_t n;
    mt_named_tensor *tensors; /* A and B of each */
    mt_key_value pairs[MTI_LORA_PAIRS];
    const mti_lora *kind; /* what all adapters have; the module's */
    char rank[24], alpha[32], dropout[32], *targets;
} mti_lora_list;
/* "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", to be freed with mti_free: the
 * module's path as Hugging Face's checkpoints have it, or where these have no name for it, or m is
 * no whole model or NULL, our own. */
#define MTI_LORA_PREFIX "base_model.model."
char *mti_lora_weight_name(const mt_module *m, const char *path, const char *part);

/* The adapters in a file; the targets are paths, to be freed with mti_free. */
typedef struct mti_lora_described {
    int64_t rank;
    double alpha, dropout;
    bool f32; /* the file's are, beside a 16-bit model */
    MTI_VEC(char *) targets;
} mti_lora_described;
bool mti_lora_describe_target(mti_lora_described *d, const char *path);

bool mti_lora_list_make(mti_lora_list *list, mt_module *m);
void mti_lora_list_free(mti_lora_list *list);

#endif
