/* hf_files.h: the files of weights in a folder as Transformers writes it. */
#ifndef MTI_HF_FILES_H
#define MTI_HF_FILES_H

#include "io/safetensors.h"

typedef MTI_VEC(mt_safetensors *) mti_hf_files;
/* Opens a .safetensors file, or of a folder model.safetensors, or the parts that its index names,
 * or without an index all parts. Close in any case. */
bool mti_hf_files_open(mti_hf_files *files, const char *path);
void mti_hf_files_close(mti_hf_files *files);

#endif
