/* lora_file.h: what a file of adapters has. */
#ifndef MTI_LORA_FILE_H
#define MTI_LORA_FILE_H

#include "memtape/models/io.h"
#include "nn/lora.h"

/* What a file of the module's adapters consists of; the tensors are the module's. Free in any case.
 */
#define MTI_LORA_PAIRS 4
typedef struct mti_lora_list {
    size_t n;
    mt_named_tensor *tensors; /* A and B of each */
    mt_key_value pairs[MTI_LORA_PAIRS];
    char rank[24], alpha[32], dropout[32], *targets;
} mti_lora_list;
bool mti_lora_list_make(mti_lora_list *list, mt_module *m);
void mti_lora_list_free(mti_lora_list *list);

#endif
