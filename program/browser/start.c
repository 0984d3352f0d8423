/* start.c: what stands for program/verbs/start.c where there is no process to start again. */
#include <stdio.h>
#include <stdint.h>
#include "verbs/verbs.h"

bool mti_start_with_fast_kernels(char **argv) { return argv != NULL; }
int mti_on_enough_stack(mti_main_fn *fn, int argc, char **argv) { return fn(argc, argv); }
