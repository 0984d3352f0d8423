/* products.c: one product of f32 by a library of one's choice, in so many tiles.
 *
 * After "processor NAME", as products.def calls it, and "ready" it obeys lines on standard input:
 *     time FORM M N K LIBRARY TILES NS -> "gflops X": the best of the calls that begin within NS
 * ns, at least three FORM: nn, nt or tn; LIBRARY: openblas, onednn or memtape. An answer ends with
 * "done".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backends/cpu/products/gemm.h"
#include "bench.h"
#include "tensor/tensor.h"

typedef struct product {
    char form[4], library[16];
    long long m, n, k, ns;
    int tiles;
} product;

/* [rows,cols], whose columns are contiguous in memory if `transposed`. */
static mt_tensor *make_matrix(mt_device *d, int64_t rows, int64_t cols, bool transposed)
{
    mt_tensor *t = transposed ? mt_normal(d, MT_F32, MT_SHAPE(cols, rows), 0, 1)
                              : mt_normal(d, MT_F32, MT_SHAPE(rows, cols), 0, 1);
    if (t && transposed) mt_set(&t, mt_transpose(t, 0, 1));
    return t;
}

static mti_library library_of(const char *name)
{
    return strcmp(name, "onednn") ? MTI_OPENBLAS : MTI_ONEDNN;
}

/* flop per ns of the best call; 0 after a failure. */
static double best_rate(mt_device *d, const product *p)
{
    const mti_gemm_choice choice = {library_of(p->library), p->tiles};
    mt_tensor *a = make_matrix(d, p->m, p->k, p->form[0] == 't');
    mt_tensor *b = make_matrix(d, p->k, p->n, p->form[1] == 't');
    mt_tensor *c = mt_zeros(d, MT_F32, MT_SHAPE(p->m, p->n));
    bool ok = a && b && c;
    int64_t least = INT64_MAX, begun = bench_now_ns();
    for (int i = 0; ok && (i < 3 || bench_now_ns() - begun < p->ns); i++) {
        int64_t start = bench_now_ns();
        ok = mti_gemm_chosen(d->ctx, choice, &a->view, &b->view, &c->view);
        int64_t took = bench_now_ns() - start;
        if (took < least) least = took;
    }
    mt_release(a);
    mt_release(b);
    mt_release(c);
    double flop = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    return ok ? flop / (double)(least > 0 ? least : 1) : 0;
}

int bench_products(int argc, char **argv)
{
    char line[128];
    product p;
    mt_device *d = mt_device_open("cpu");
    if (argc != 1) return 2;
    if (!d || mt_device_set_threads(d, atoi(argv[0])) != MT_OK) return bench_failed("products");
    printf("processor %s\nlibraries openblas%s\nready\n", mti_gemm_processor(),
           mti_gemm_has(MTI_ONEDNN) ? " onednn" : "");
    while (fgets(line, sizeof line, stdin) &&
           sscanf(line, "time %3s %lld %lld %lld %15s %d %lld", p.form, &p.m, &p.n, &p.k, p.library,
                  &p.tiles, &p.ns) == 7) {
        double rate = best_rate(d, &p);
        if (!(rate > 0)) return bench_failed(line);
        printf("gflops %.2f\ndone\n", rate);
    }
    mt_device_release(d);
    return 0;
}
