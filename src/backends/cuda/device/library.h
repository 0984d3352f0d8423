/* library.h: NVIDIA's libraries, which are opened at run time. */
#ifndef MTI_CUDA_LIBRARY_H
#define MTI_CUDA_LIBRARY_H

/* Opens a library from the folders in MEMTAPE_CUDA_LIBS, from where the loader looks, or from the
 * toolkit's usual folder. NULL if it is nowhere. Never close it: opening is slow, and other code of
 * the process may still use it. */
void *mti_cuda_find_library(const char *name);

#endif
