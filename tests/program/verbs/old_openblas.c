/* Preloaded: an OpenBLAS that does not know this CPU and changes its kernels only when told to. */
#include <stdlib.h>

char *openblas_get_corename(void)
{
    char *told = getenv("OPENBLAS_CORETYPE");
    return told ? told : "Prescott";
}
