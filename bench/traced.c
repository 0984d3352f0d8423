/* traced.c: where a step goes: the CPU's table of kernels with a clock around each, booked on the
 * op and the module that called it. What is not within a kernel is the engine's own time, so the
 * parts of a step sum to the step. */
#include <stdio.h>
#include <string.h>
#include "autograd/autograd.h"
#include "bench.h"

enum { N_PARTS = 1024, MOST_PARTS = 768, NAME = 128 };

/* One op of one module. Its names are interned: two parts are one if their pointers are equal. */
typedef struct part {
    const char *op, *module;
    int64_t ns[2]; /* forward, backward */
    uint64_t flops, bytes;
    long kernels;
} part;

static struct {
    mt_device *device;
    const mti_backend *plain; /* what the traced kernels call */
    part parts[N_PARTS];      /* by hash; those that were used: */
    part *used[MOST_PARTS];
    int n_used;
    part *last;
    uint64_t flops, bytes; /* the device's counters at the last kernel */
    int64_t began;
    bool full;
    part best[MOST_PARTS]; /* of the step that was kept */
    int n_best;
} trace;

static uint64_t flops_of(mt_device *d)
{
    mt_flops f = mt_flops_get(d);
    return f.forward + f.backward + f.recompute;
}

static uint64_t bytes_of(mt_device *d)
{
    mt_traffic t = mt_traffic_get(d);
    return t.products + t.others;
}

static part *part_of_now(void)
{
    const mti_where *where = mti_where_now();
    size_t i = ((uintptr_t)where->op * 31 + (uintptr_t)where->module) / 8 % N_PARTS;
    while (trace.parts[i].op &&
           (trace.parts[i].op != where->op || trace.parts[i].module != where->module))
        i = (i + 1) % N_PARTS;
    part *p = &trace.parts[i];
    if (p->op) return p;
    if (trace.n_used == MOST_PARTS) {
        trace.full = true;
        return trace.used[0];
    }
    trace.used[trace.n_used++] = p;
    p->op = where->op, p->module = where->module;
    return p;
}

/* An op counts its FLOPs before its product runs and what it moves when all its kernels have run.
 */
static void begin_kernel(void)
{
    part *p = part_of_now();
    uint64_t flops = flops_of(trace.device), bytes = bytes_of(trace.device);
    p->flops += flops - trace.flops;
    if (trace.last) trace.last->bytes += bytes - trace.bytes;
    trace.flops = flops, trace.bytes = bytes;
    trace.last = p;
    p->kernels++;
    trace.began = bench_now_ns();
}

static bool end_kernel(bool ok)
{
    trace.last->ns[mti_where_now()->in_backward > 0] += bench_now_ns() - trace.began;
    return ok;
}

#define KERNEL(name, parameters, arguments)                                                        \
    static bool traced_##name(mti_ctx *ctx, MTI_UNWRAP parameters)                                 \
    {                                                                                              \
        begin_kernel();                                                                            \
        return end_kernel(trace.plain->name(ctx, MTI_UNWRAP arguments));                           \
    }
#include "backends/kernels.def"

void bench_trace_begin(mt_device *d)
{
    static mti_backend traced;
    trace.plain = d->backend;
    traced = *trace.plain;
#define KERNEL(name, parameters, arguments) traced.name = traced_##name;
#include "backends/kernels.def"
    for (int i = 0; i < trace.n_used; i++)
        *trace.used[i] = (part){.op = trace.used[i]->op, .module = trace.used[i]->module};
    trace.device = d;
    trace.last = NULL;
    trace.flops = flops_of(d), trace.bytes = bytes_of(d);
    d->backend = &traced;
}

void bench_trace_end(mt_device *d)
{
    d->backend = trace.plain;
    if (trace.last) trace.last->bytes += bytes_of(d) - trace.bytes;
}

void bench_trace_keep(void)
{
    trace.n_best = trace.n_used;
    for (int i = 0; i < trace.n_used; i++) trace.best[i] = *trace.used[i];
}

/* "gpt.h.11.attn.qkv" as "attn.qkv": all layers are one row. */
static void shorten(char out[NAME], const char *module)
{
    const char *h = strstr(module, ".h."), *from = strchr(module, '.');
    if (h) from = strchr(h + 3, '.');
    snprintf(out, NAME, "%s", from ? from + 1 : h || !*module ? "-" : module);
}

static bool is_same(const part *a, const part *b)
{
    char x[NAME], y[NAME];
    shorten(x, a->module), shorten(y, b->module);
    return strcmp(a->op, b->op) == 0 && strcmp(x, y) == 0;
}

bool bench_trace_print(void)
{
    char name[NAME];
    for (int i = 0; i < trace.n_best; i++) {
        part *p = &trace.best[i];
        for (int j = i + 1; p->op && j < trace.n_best; j++) {
            part *q = &trace.best[j];
            if (!q->op || !is_same(p, q)) continue;
            p->ns[0] += q->ns[0], p->ns[1] += q->ns[1];
            p->flops += q->flops, p->bytes += q->bytes;
            p->kernels += q->kernels;
            q->op = NULL;
        }
        if (!p->op) continue;
        shorten(name, p->module);
        printf("part %s %s %lld %lld %llu %llu %ld\n", *p->op ? p->op : "-", name,
               (long long)p->ns[0], (long long)p->ns[1], (unsigned long long)p->flops,
               (unsigned long long)p->bytes, p->kernels);
    }
    return !trace.full;
}
