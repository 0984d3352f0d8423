/* clock.c: time for measuring; a separate file because backend modules are linked with it. */
#include <time.h>
#include "base/base.h"

double mti_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
