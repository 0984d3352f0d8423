/* openblas.h: which of OpenBLAS's kernels run.
 *
 * OpenBLAS chooses its kernels when the process starts. A release that is older than the CPU may
 * not know it and take those for SSE, at a tenth of the speed. The program `memtape` then starts
 * once more with OPENBLAS_CORETYPE set; a program of your own can do the same. */
#ifndef MEMTAPE_OPENBLAS_H
#define MEMTAPE_OPENBLAS_H

#include "memtape/status.h"

MT_C_BEGIN

/* The OpenBLAS of this process. */
typedef struct mt_openblas {
    const char *version; /* "OpenBLAS 0.3.21 ..." and how it was built */
    const char *core;    /* the CPU that its kernels are for: "SkylakeX" */
    const char *better;  /* what OPENBLAS_CORETYPE should be set to; NULL: core suits this CPU */
} mt_openblas;
/* Its strings live as long as the process. */
MT_API mt_openblas mt_openblas_get(void);

MT_C_END
#endif
