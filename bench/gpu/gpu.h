/* gpu.h: shared by the files of the program of `./run gpu`.
 *
 * It measures memtape on the device that its first argument names ("cuda", "cudasim", "cpu") and
 * answers on standard output. bench/gpu/gpu.py runs it and PyTorch. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include "../bench.h"

/* The verbs: arguments after the verb's name; the process's exit status. */
int gpu_probe(int argc, char **argv);
int gpu_kernels(int argc, char **argv);
int gpu_gpt(int argc, char **argv);
int gpu_curve(int argc, char **argv);
int gpu_saved(int argc, char **argv);
int gpu_linear(int argc, char **argv);
int gpu_replay(int argc, char **argv);

/* Whole numbers from arguments, in order. */
void gpu_numbers(char **argv, int n, int64_t *const *out);

/* ---- inputs.c, for kernels.c ---- */

/* Input k of a case: a leaf with the same pseudo-random values as in torch_side.py. `spec` is f
 * (requires grad), p (the same, positive), iN (i64 below N) or b (bool), then ":" and the shape:
 * f:4x8, i10:4. */
mt_tensor *gpu_input(mt_device *device, mt_dtype dtype, const char *spec, int k);
mt_tensor *gpu_values(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape, int k,
                      bool positive);

#endif
