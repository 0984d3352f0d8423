/* main.c: the worker's verbs, and what they share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "bench.h"

int64_t bench_now_ns(void)
{
    static int clock_id = -1;
    if (clock_id < 0) {
        const char *name = getenv("BENCH_CLOCK");
        clock_id = name && strcmp(name, "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    }
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

long bench_status_kib(const char *name)
{
    char line[256];
    size_t length = strlen(name);
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && kib < 0 && fgets(line, sizeof line, f))
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            kib = strtol(line + length + 1, NULL, 10);
    if (f) fclose(f);
    return kib;
}

int bench_failed(const char *what)
{
    const char *text = mt_last_error();
    fprintf(stderr, "memtape_bench: %s: %s\n", what, *text ? text : "wrong");
    return 1;
}

int main(int argc, char **argv)
{
    static const struct verb {
        const char *name, *arguments;
        int (*run)(int argc, char **argv);
    } verbs[] = {
        {"gpt", "LAYERS HIDDEN HEADS VOCAB BATCH SEQ CONTEXT ACT THREADS [DTYPE|autocast]",
         bench_gpt},
        {"ops", "THREADS", bench_ops},
        {"machine", "THREADS", bench_machine},
        {"products", "THREADS", bench_products},
        {"ranks", "threads|mpi RANKS BYTES ROUNDS", bench_ranks},
        {"rank_steps",
         "dp|zero1|zero2|zero3|tp|pp RANKS THREADS LAYERS HIDDEN HEADS VOCAB BATCH SEQ ROUNDS",
         bench_rank_steps},
    };
    enum { N_VERBS = sizeof verbs / sizeof *verbs };
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; argc > 1 && i < N_VERBS; i++)
        if (strcmp(argv[1], verbs[i].name) == 0) return verbs[i].run(argc - 2, argv + 2);
    for (int i = 0; i < N_VERBS; i++)
        fprintf(stderr, "usage: memtape_bench %s %s\n", verbs[i].name, verbs[i].arguments);
    return 2;
}
