/* functions.c: every row of the op table as ops/op_cases.def calls it, and compositions. */
#include <stdlib.h>
#include <string.h>
#include "bench.h"

/* Tensors are so small that the op's overhead dominates. */
static const mti_case_sizes sizes = {
    [MTI_SIZE_M] = 4, [MTI_SIZE_N] = 8, [MTI_SIZE_K] = 8, [MTI_SIZE_V] = 16,
    [MTI_SIZE_B] = 1, [MTI_SIZE_A] = 2, [MTI_SIZE_S] = 8, [MTI_SIZE_D] = 4,
};

bool bench_tiny_case(int nth, mti_case *out)
{
    return mti_case_get(&mti_all_cases, MTI_CASE_BENCH, nth, sizes, out);
}

/* [b,s,3d] -> [b,s,d]: attention between a block's two projections, with p[0] heads. */
static mt_tensor *heads(mt_tensor **in, const double *p)
{
    int64_t n = (int64_t)p[0];
    const int64_t *shape = mt_shape(in[0]);
    int64_t b = shape[0], s = shape[1], d = shape[2] / 3;
    mt_tensor *part[3];
    if (mt_split(in[0], 2, 3, (int64_t[]){d, d, d}, part) != MT_OK) return NULL;
    for (int i = 0; i < 3; i++) {
        mt_set(&part[i], mt_reshape(part[i], MT_SHAPE(b, s, n, d / n)));
        mt_set(&part[i], mt_transpose(part[i], 1, 2));
    }
    mt_tensor *y = mt_flash_attention(part[0], part[1], part[2], 0, true, 0);
    for (int i = 0; i < 3; i++) mt_release(part[i]);
    mt_set(&y, mt_transpose(y, 1, 2));
    mt_set(&y, mt_reshape(y, MT_SHAPE(b, s, d)));
    return y;
}

/* i64 [b,s], w [v,d], positions [s,d] -> [b,s,d] */
static mt_tensor *embed(mt_tensor **in, const double *p)
{
    MT_AUTO mt_tensor *h = mt_embedding(in[0], in[1], NULL);
    return (void)p, mt_add(h, in[2]);
}

/* Parses "1.5,0.5"; false if it is not a list of numbers. */
static bool parse_parameters(const char *text, mti_case *c)
{
    char *end;
    for (c->n_p = 0; c->n_p < MTI_CASE_PARAMETERS; text = end + 1) {
        c->p[c->n_p++] = strtod(text, &end);
        if (end == text || (*end && *end != ',')) return false;
        if (!*end) return true;
    }
    return false;
}

bool bench_find_function(const char *name, bench_function *f)
{
    size_t length = strcspn(name, "/");
    char plain[32];
    if (length >= sizeof plain) return false;
    memcpy(plain, name, length);
    plain[length] = 0;
    *f = (bench_function){.composed = strcmp(plain, "heads") == 0   ? heads
                                      : strcmp(plain, "embed") == 0 ? embed
                                                                    : NULL};
    if (!f->composed && !mti_case_find(&mti_all_cases, plain, MTI_CASE_BENCH, sizes, &f->of))
        return false;
    return !name[length] || parse_parameters(name + length + 1, &f->of);
}

mt_tensor *bench_call(const bench_function *f, mt_tensor **in)
{
    return f->composed ? f->composed(in, f->of.p) : mti_case_call(&f->of, in);
}
