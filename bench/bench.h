/* bench.h: shared by the files of the benchmark's worker.
 *
 * The worker measures memtape only. It reads commands from standard input, so that its rounds can
 * alternate with PyTorch's, and answers on standard output. bench/bench.py runs it and
 * bench/peer.py, which accepts the same commands. */
#ifndef BENCH_H
#define BENCH_H

#include "memtape/all.h"
#include "collectives/collective_cases.h"

/* Wall-clock time. With BENCH_CLOCK=cpu in the environment, CPU time of the whole process, which
 * other programs on a busy machine do not change (use one thread then). */
int64_t bench_now_ns(void);

/* A figure of /proc/self/status in KiB, -1 if missing. getrusage's ru_maxrss cannot be used,
 * because it starts at the parent's size at the fork. */
long bench_status_kib(const char *name);

/* Prints the library's last error on standard error; returns 1. */
int bench_failed(const char *what);

/* The verbs: arguments after the verb's name; the process's exit status. */
int bench_gpt(int argc, char **argv);
int bench_ops(int argc, char **argv);
int bench_machine(int argc, char **argv);
int bench_products(int argc, char **argv);
int bench_ranks(int argc, char **argv);
int bench_rank_steps(int argc, char **argv);

/* ---- traced.c, for gpt.c ---- */

/* Between the two every kernel of the device is timed. */
void bench_trace_begin(mt_device *d);
void bench_trace_end(mt_device *d);
/* Keeps what was traced last, instead of what was kept before. */
void bench_trace_keep(void);
/* What was kept: lines "part OP MODULE F B FLOP BYTES KERNELS", a layer's number left out of the
 * module, F and B in ns. False if there were too many modules. */
bool bench_trace_print(void);

/* ---- functions.c, for ops.c ---- */

#define BENCH_INPUTS MTI_CASE_INPUTS

/* A row of the op table as ops/op_cases.def calls it, or a composition of ops. */
typedef struct bench_function {
    mti_case of; /* its parameters, those of `composed` too */
    mt_tensor *(*composed)(mt_tensor **in, const double *p);
} bench_function;

/* Finds a row or a composition by name; parameters may follow to replace the case's: "affine",
 * "affine/1.5,0.5", "heads/4". False if there is none. */
bool bench_find_function(const char *name, bench_function *f);
/* in: BENCH_INPUTS pointers, NULL after the last input. The caller releases the result. */
mt_tensor *bench_call(const bench_function *f, mt_tensor **in);

/* The nth case to time on tiny tensors; false after the last. */
bool bench_tiny_case(int nth, mti_case *out);

#endif
