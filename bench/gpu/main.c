/* main.c: the verbs of the program of `./run gpu`, and what they share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "gpu.h"

int64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int bench_failed(const char *what)
{
    const char *text = mt_last_error();
    fprintf(stderr, "memtape_gpu: %s: %s\n", what, *text ? text : "wrong");
    return 1;
}

void gpu_numbers(char **argv, int n, int64_t *const *out)
{
    for (int i = 0; i < n; i++) *out[i] = strtoll(argv[i], NULL, 10);
}

/* A product of ones, to test the device's BLAS. */
static bool multiplies(mt_device *device, mt_dtype dtype)
{
    MT_AUTO mt_tensor *a = mt_full(device, dtype, MT_SHAPE(16, 32), 1);
    MT_AUTO mt_tensor *b = mt_full(device, dtype, MT_SHAPE(32, 8), 0.5);
    MT_AUTO mt_tensor *product = mt_matmul(a, b);
    MT_AUTO mt_tensor *sum = mt_sum_all(product);
    return sum && mt_item(sum) == 16 * 8 * 16;
}

/* Checks that the device opens and computes. */
int gpu_probe(int argc, char **argv)
{
    if (argc != 1) return 2;
    mt_device *device = mt_device_open(argv[0]);
    MT_AUTO mt_tensor *x = mt_full(device, MT_F32, MT_SHAPE(2, 3), 1.5);
    mt_set(&x, mt_sum_all(x));
    bool ok = x && mt_item(x) == 9 && multiplies(device, MT_F32) && multiplies(device, MT_BF16);
    if (ok) printf("ready %s\n", mt_device_kind(device));
    if (!ok) bench_failed(argv[0]);
    mt_set(&x, NULL);
    mt_device_release(device);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const struct verb {
        const char *name, *arguments;
        int (*run)(int argc, char **argv);
    } verbs[] = {
        {"probe", "KIND", gpu_probe},
        {"kernels", "KIND", gpu_kernels},
        {"gpt", "KIND DTYPE LAYERS HIDDEN HEADS VOCAB BATCH SEQ [OPTION...]", gpu_gpt},
        {"curve", "KIND FILE STEPS LAYERS HIDDEN HEADS BATCH SEQ", gpu_curve},
        {"saved", "KIND mlp|block ACT BATCH SEQ HIDDEN HEADS", gpu_saved},
        {"linear", "KIND", gpu_linear},
        {"replay", "KIND [expandable]", gpu_replay},
    };
    enum { N_VERBS = sizeof verbs / sizeof *verbs };
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; argc > 1 && i < N_VERBS; i++) {
        if (strcmp(argv[1], verbs[i].name) != 0) continue;
        int status = verbs[i].run(argc - 2, argv + 2);
        if (status == 2)
            fprintf(stderr, "usage: memtape_gpu %s %s\n", verbs[i].name, verbs[i].arguments);
        return status;
    }
    for (int i = 0; i < N_VERBS; i++)
        fprintf(stderr, "usage: memtape_gpu %s %s\n", verbs[i].name, verbs[i].arguments);
    return 2;
}
