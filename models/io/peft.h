/* peft.h: adapters in a folder as PEFT has it: adapter_config.json and adapter_model.safetensors.
 */
#ifndef MTI_PEFT_H
#define MTI_PEFT_H

#include "io/lora_file.h"

/* Whether the path is a folder, or ends with a slash. */
bool mti_is_peft_folder(const char *path);
/* Writes m's adapters into a folder, which is made if it is not there. */
bool mti_peft_save(const char *folder, mt_module *m);
/* The folder's open file, and in *d, which is empty, its adapters as linears of m have them. NULL
 * on failure, also where PEFT's configuration asks for what adapters here do not do. */
mt_safetensors *mti_peft_open(const char *folder, mt_module *m, mti_lora_described *d);

#endif
