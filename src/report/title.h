/* title.h: what workloads are, in one line above a picture of them. */
#ifndef MTI_REPORT_TITLE_H
#define MTI_REPORT_TITLE_H

#include "measure/workload.h"

/* "gpt: b=2 s=128 h=256 L=4, gelu, bf16, adamw, checkpoint full" into buf. Of several workloads
 * only what all have in common: the rest is what their rows differ in. n >= 1. */
#define MTI_TITLE 256
void mti_title(char *buf, size_t size, const char *name, const mti_workload *const *workloads,
               size_t n);

#endif
