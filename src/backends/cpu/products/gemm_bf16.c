/* gemm_bf16.c: tiles of bf16 products by oneDNN, if the CPU has bf16 instructions. A tile is one
 * serial call, so any thread computes the same bits. */
#include "backends/cpu/products/gemm.h"

#ifdef MTI_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>

/* Its kernels count the bytes of up to 64 rows in an int. */
#define MOST_COLUMNS (1 << 24)

bool mti_gemm_bf16_fits(const mti_gemm *g)
{
    return g->k <= MOST_COLUMNS && g->a.ld <= MOST_COLUMNS && g->b.ld <= MOST_COLUMNS;
}

typedef struct product {
    dnnl_engine_t engine;
    dnnl_memory_desc_t a, b, c;
    dnnl_primitive_desc_t desc;
} product;

static dnnl_status_t describe(const mti_gemm_operand *s, int64_t rows, int64_t cols,
                              dnnl_data_type_t type, dnnl_memory_desc_t *out)
{
    dnnl_dims_t shape = {rows, cols}, stride = {s->trans ? 1 : s->ld, s->trans ? s->ld : 1};
    return dnnl_memory_desc_init_by_strides(out, 2, shape, type, stride);
}

/* c [m,n] in f32 = a b; the caller provides the scratchpad. */
static bool product_open(const mti_gemm *g, int64_t m, int64_t n, product *p)
{
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    mti_gemm_operand c = {.ld = n};
    *p = (product){.engine = NULL};
    bool made =
        describe(&g->a, m, g->k, dnnl_bf16, &p->a) == dnnl_success &&
        describe(&g->b, g->k, n, dnnl_bf16, &p->b) == dnnl_success &&
        describe(&c, m, n, dnnl_f32, &p->c) == dnnl_success &&
        dnnl_matmul_desc_init(&desc, &p->a, &p->b, NULL, &p->c) == dnnl_success &&
        dnnl_engine_create(&p->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_primitive_attr_create(&attr) == dnnl_success &&
        dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success &&
        dnnl_primitive_desc_create(&p->desc, &desc, attr, p->engine, NULL) == dnnl_success;
    if (attr != NULL) dnnl_primitive_attr_destroy(attr);
    return made;
}

static void product_close(product *p)
{
    if (p->desc != NULL) dnnl_primitive_desc_destroy(p->desc);
    if (p->engine != NULL) dnnl_engine_destroy(p->engine);
}

static const dnnl_memory_desc_t *scratchpad_of(const product *p)
{
    return dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0);
}

/* oneDNN's scratch size depends on the thread count, so it is queried with OpenMP serial. */
static void ask_scratch(void *arg, int worker, int64_t begin, int64_t end)
{
    mti_gemm *g = arg;
    (void)worker, (void)begin, (void)end;
    int64_t m[2] = {g->tile_m, g->m % g->tile_m}, n[2] = {g->tile_n, g->n % g->tile_n};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2 && g->native; j++) {
            product p;
            if (m[i] == 0 || n[j] == 0) continue;
            g->native = product_open(g, m[i], n[j], &p);
            size_t n_bytes = g->native ? dnnl_memory_desc_get_size(scratchpad_of(&p)) : 0;
            if (n_bytes > g->native_scratch) g->native_scratch = n_bytes;
            product_close(&p);
        }
}

void mti_gemm_bf16_plan(mti_gemm *g)
{
    g->native = true, g->native_scratch = 0;
    mti_cpu_serially(ask_scratch, g, 1);
}

bool mti_gemm_bf16_product(const mti_gemm *g, const mti_gemm_tile *t, float *c, void *scratch)
{
    product p;
    dnnl_primitive_t primitive = NULL;
    dnnl_stream_t stream = NULL;
    dnnl_memory_t memory[4] = {NULL};
    const char *a = t->a + (g->a.trans ? t->i : t->i * g->a.ld) * 2;
    const char *b = t->b + (g->b.trans ? t->j * g->b.ld : t->j) * 2;
    bool done =
        product_open(g, t->m, t->n, &p) &&
        dnnl_primitive_create(&primitive, p.desc) == dnnl_success &&
        dnnl_stream_create(&stream, p.engine, dnnl_stream_default_flags) == dnnl_success &&
        dnnl_memory_create(&memory[0], &p.a, p.engine, (void *)a) == dnnl_success &&
        dnnl_memory_create(&memory[1], &p.b, p.engine, (void *)b) == dnnl_success &&
        dnnl_memory_create(&memory[2], &p.c, p.engine, c) == dnnl_success &&
        dnnl_memory_create(&memory[3], scratchpad_of(&p), p.engine, scratch) == dnnl_success;
    if (done) {
        dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, memory[0]},
                                  {DNNL_ARG_WEIGHTS, memory[1]},
                                  {DNNL_ARG_DST, memory[2]},
                                  {DNNL_ARG_SCRATCHPAD, memory[3]}};
        done = dnnl_primitive_execute(primitive, stream, 4, args) == dnnl_success &&
               dnnl_stream_wait(stream) == dnnl_success;
    }
    for (int i = 0; i < 4; i++)
        if (memory[i] != NULL) dnnl_memory_destroy(memory[i]);
    if (stream != NULL) dnnl_stream_destroy(stream);
    if (primitive != NULL) dnnl_primitive_destroy(primitive);
    product_close(&p);
    return done;
}

#else

bool mti_gemm_bf16_fits(const mti_gemm *g)
{
    (void)g;
    return false;
}

void mti_gemm_bf16_plan(mti_gemm *g) { g->native = false; }

bool mti_gemm_bf16_product(const mti_gemm *g, const mti_gemm_tile *t, float *c, void *scratch)
{
    (void)g, (void)t, (void)c, (void)scratch;
    return false;
}

#endif
