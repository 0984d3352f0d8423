/* llmc.c: the GPT's step as llm.c's page describes its reference on the processor: loops over f32
 * in C, some of them with OpenMP, one array each for parameters, gradients, moments and
 * activations, and no library. Written for this comparison from that description; the loops that it
 * leaves on one thread are on one here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int L, C, NH, V, B, T, context, is_tanh, N; /* N: rows, B * T */

enum {
    WTE,
    WPE,
    LN1W,
    LN1B,
    QKVW,
    QKVB,
    PROJW,
    PROJB,
    LN2W,
    LN2B,
    FCW,
    FCB,
    OUTW,
    OUTB,
    LNFW,
    LNFB,
    N_PARAMS
};
enum {
    ENCODED,
    LN1,
    LN1M,
    LN1R,
    QKV,
    ATTY,
    PREATT,
    ATT,
    PROJ,
    RES2,
    LN2,
    LN2M,
    LN2R,
    FC,
    GELU,
    OUT,
    RES3,
    LNF,
    LNFM,
    LNFR,
    LOGITS,
    PROBS,
    N_ACTS
};

/* Arrays that lie one after the other; per layer, but for the first two and those from `last` on.
 */
typedef struct arrays {
    float *all, *at[N_ACTS];
    size_t size[N_ACTS], count;
} arrays;

static arrays arrays_new(int n, int first, int last, const size_t *size)
{
    arrays a = {0};
    for (int i = 0; i < n; i++) {
        a.size[i] = size[i];
        a.count += size[i] * (size_t)(i >= first && i < last ? L : 1);
    }
    a.all = calloc(a.count, sizeof(float));
    if (!a.all) exit(1);
    float *next = a.all;
    for (int i = 0; i < n; next += size[i] * (size_t)(i >= first && i < last ? L : 1), i++)
        a.at[i] = next;
    return a;
}

static float *of(const arrays *a, int what, int layer)
{
    return a->at[what] + a->size[what] * (size_t)layer;
}

static void norm_forward(float *out, float *mean, float *rstd, const float *x, const float *w,
                         const float *b)
{
    for (int r = 0; r < N; r++, x += C, out += C) {
        float m = 0, v = 0;
        for (int i = 0; i < C; i++) m += x[i];
        m /= C;
        for (int i = 0; i < C; i++) v += (x[i] - m) * (x[i] - m);
        float s = 1.0f / sqrtf(v / C + 1e-5f);
        for (int i = 0; i < C; i++) out[i] = s * (x[i] - m) * w[i] + b[i];
        mean[r] = m, rstd[r] = s;
    }
}

static void norm_backward(float *dx, float *dw, float *db, const float *dout, const float *x,
                          const float *w, const float *mean, const float *rstd)
{
    for (int r = 0; r < N; r++, x += C, dx += C, dout += C) {
        float m = mean[r], s = rstd[r], sum = 0, weighted = 0;
        for (int i = 0; i < C; i++) {
            sum += w[i] * dout[i];
            weighted += w[i] * dout[i] * (x[i] - m) * s;
        }
        sum /= C, weighted /= C;
        for (int i = 0; i < C; i++) {
            float normed = (x[i] - m) * s;
            db[i] += dout[i];
            dw[i] += normed * dout[i];
            dx[i] += (w[i] * dout[i] - sum - normed * weighted) * s;
        }
    }
}

/* Eight rows at a time, so that a weight is loaded once for them; sequences are multiples of 8. */
static void product_forward(float *out, const float *x, const float *w, const float *b, int in,
                            int n_out)
{
#pragma omp parallel for
    for (int r = 0; r < N; r += 8)
        for (int o = 0; o < n_out; o++) {
            float sum[8];
            for (int k = 0; k < 8; k++) sum[k] = b ? b[o] : 0;
            for (int i = 0; i < in; i++)
                for (int k = 0; k < 8; k++)
                    sum[k] += x[(size_t)(r + k) * in + i] * w[(size_t)o * in + i];
            for (int k = 0; k < 8; k++) out[(size_t)(r + k) * n_out + o] = sum[k];
        }
}

static void product_backward(float *dx, float *dw, float *db, const float *dout, const float *x,
                             const float *w, int in, int n_out)
{
#pragma omp parallel for
    for (int r = 0; r < N; r++)
        for (int o = 0; o < n_out; o++)
            for (int i = 0; i < in; i++)
                dx[(size_t)r * in + i] += w[(size_t)o * in + i] * dout[(size_t)r * n_out + o];
#pragma omp parallel for
    for (int o = 0; o < n_out; o++)
        for (int r = 0; r < N; r++) {
            float d = dout[(size_t)r * n_out + o];
            if (db) db[o] += d;
            for (int i = 0; i < in; i++) dw[(size_t)o * in + i] += x[(size_t)r * in + i] * d;
        }
}

static void attention_forward(float *out, float *preatt, float *att, const float *qkv)
{
    const int hs = C / NH;
    const float scale = 1.0f / sqrtf((float)hs);
#pragma omp parallel for collapse(3)
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            for (int h = 0; h < NH; h++) {
                const float *q = qkv + (size_t)(b * T + t) * 3 * C + h * hs,
                            *keys = qkv + (size_t)b * T * 3 * C + C + h * hs;
                float *pre = preatt + ((size_t)(b * NH + h) * T + t) * T, *p = att + (pre - preatt),
                      most = -1e4f, sum = 0;
                float *y = out + (size_t)(b * T + t) * C + h * hs;
                for (int u = 0; u <= t; u++) {
                    float dot = 0;
                    for (int i = 0; i < hs; i++) dot += q[i] * keys[(size_t)u * 3 * C + i];
                    pre[u] = dot * scale;
                    most = pre[u] > most ? pre[u] : most;
                }
                for (int u = 0; u <= t; u++) sum += p[u] = expf(pre[u] - most);
                for (int u = 0; u < T; u++) p[u] = u <= t ? p[u] / sum : 0;
                for (int i = 0; i < hs; i++) y[i] = 0;
                for (int u = 0; u <= t; u++)
                    for (int i = 0; i < hs; i++) y[i] += p[u] * keys[(size_t)u * 3 * C + C + i];
            }
}

static void attention_backward(float *dqkv, float *dpre, float *datt, const float *dout,
                               const float *qkv, const float *att)
{
    const int hs = C / NH;
    const float scale = 1.0f / sqrtf((float)hs);
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            for (int h = 0; h < NH; h++) {
                const size_t row = ((size_t)(b * NH + h) * T + t) * T,
                             at = (size_t)(b * T + t) * 3 * C + h * hs,
                             first = (size_t)b * T * 3 * C + C + h * hs;
                const float *p = att + row, *dy = dout + (size_t)(b * T + t) * C + h * hs;
                float *dp = datt + row, *ds = dpre + row;
                for (int u = 0; u <= t; u++)
                    for (int i = 0; i < hs; i++) {
                        dp[u] += qkv[first + (size_t)u * 3 * C + C + i] * dy[i];
                        dqkv[first + (size_t)u * 3 * C + C + i] += p[u] * dy[i];
                    }
                for (int v = 0; v <= t; v++)
                    for (int u = 0; u <= t; u++) ds[u] += p[v] * ((u == v) - p[u]) * dp[v];
                for (int u = 0; u <= t; u++)
                    for (int i = 0; i < hs; i++) {
                        dqkv[at + i] += qkv[first + (size_t)u * 3 * C + i] * ds[u] * scale;
                        dqkv[first + (size_t)u * 3 * C + i] += qkv[at + i] * ds[u] * scale;
                    }
            }
}

#define TANH_SCALE 0.7978845608f
static void gelu_forward(float *out, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = 0.5f * x[i] *
                 (1 + (is_tanh ? tanhf(TANH_SCALE * (x[i] + 0.044715f * x[i] * x[i] * x[i]))
                               : erff(x[i] * 0.70710678f)));
}

static void gelu_backward(float *dx, const float *x, const float *dout, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float t = is_tanh ? tanhf(TANH_SCALE * (x[i] + 0.044715f * x[i] * x[i] * x[i]))
                          : erff(x[i] * 0.70710678f);
        float slope = is_tanh ? (1 - t * t) * TANH_SCALE * (1 + 3 * 0.044715f * x[i] * x[i])
                              : 1.12837917f * 0.70710678f * expf(-0.5f * x[i] * x[i]);
        dx[i] += (0.5f * (1 + t) + 0.5f * x[i] * slope) * dout[i];
    }
}

static void add(float *out, const float *a, const float *b)
{
    for (size_t i = 0; i < (size_t)N * C; i++) out[i] = a[i] + b[i];
}

static void add_to_both(float *da, float *db, const float *dout)
{
    for (size_t i = 0; i < (size_t)N * C; i++) da[i] += dout[i], db[i] += dout[i];
}

static int token(int i) { return (int)(((long long)i * 7919 + 104729) % V); }

static float forward(const arrays *p, const arrays *a)
{
    float *x = a->at[ENCODED], loss = 0;
    for (int r = 0; r < N; r++)
        for (int i = 0; i < C; i++)
            x[(size_t)r * C + i] =
                p->at[WTE][(size_t)token(r) * C + i] + p->at[WPE][(size_t)(r % T) * C + i];
    for (int l = 0; l < L; l++) {
        norm_forward(of(a, LN1, l), of(a, LN1M, l), of(a, LN1R, l), x, of(p, LN1W, l),
                     of(p, LN1B, l));
        product_forward(of(a, QKV, l), of(a, LN1, l), of(p, QKVW, l), of(p, QKVB, l), C, 3 * C);
        attention_forward(of(a, ATTY, l), of(a, PREATT, l), of(a, ATT, l), of(a, QKV, l));
        product_forward(of(a, PROJ, l), of(a, ATTY, l), of(p, PROJW, l), of(p, PROJB, l), C, C);
        add(of(a, RES2, l), x, of(a, PROJ, l));
        norm_forward(of(a, LN2, l), of(a, LN2M, l), of(a, LN2R, l), of(a, RES2, l), of(p, LN2W, l),
                     of(p, LN2B, l));
        product_forward(of(a, FC, l), of(a, LN2, l), of(p, FCW, l), of(p, FCB, l), C, 4 * C);
        gelu_forward(of(a, GELU, l), of(a, FC, l), (size_t)N * 4 * C);
        product_forward(of(a, OUT, l), of(a, GELU, l), of(p, OUTW, l), of(p, OUTB, l), 4 * C, C);
        add(of(a, RES3, l), of(a, RES2, l), of(a, OUT, l));
        x = of(a, RES3, l);
    }
    norm_forward(a->at[LNF], a->at[LNFM], a->at[LNFR], x, p->at[LNFW], p->at[LNFB]);
    product_forward(a->at[LOGITS], a->at[LNF], p->at[WTE], NULL, C, V);
#pragma omp parallel for
    for (int r = 0; r < N; r++) {
        const float *logits = a->at[LOGITS] + (size_t)r * V;
        float *probs = a->at[PROBS] + (size_t)r * V, most = -1e4f, sum = 0;
        for (int i = 0; i < V; i++) most = logits[i] > most ? logits[i] : most;
        for (int i = 0; i < V; i++) sum += probs[i] = expf(logits[i] - most);
        for (int i = 0; i < V; i++) probs[i] /= sum;
    }
    for (int r = 0; r < N; r++) loss -= logf(a->at[PROBS][(size_t)r * V + token(r + 1)]);
    return loss / N;
}

static void backward(const arrays *p, const arrays *g, const arrays *a, const arrays *d)
{
    memset(g->all, 0, g->count * sizeof(float));
    memset(d->all, 0, d->count * sizeof(float));
    for (int r = 0; r < N; r++)
        for (int i = 0; i < V; i++)
            d->at[LOGITS][(size_t)r * V + i] =
                (a->at[PROBS][(size_t)r * V + i] - (i == token(r + 1))) / N;
    product_backward(d->at[LNF], g->at[WTE], NULL, d->at[LOGITS], a->at[LNF], p->at[WTE], C, V);
    norm_backward(of(d, RES3, L - 1), g->at[LNFW], g->at[LNFB], d->at[LNF], of(a, RES3, L - 1),
                  p->at[LNFW], a->at[LNFM], a->at[LNFR]);
    for (int l = L - 1; l >= 0; l--) {
        const float *x = l ? of(a, RES3, l - 1) : a->at[ENCODED];
        float *dx = l ? of(d, RES3, l - 1) : d->at[ENCODED];
        add_to_both(of(d, RES2, l), of(d, OUT, l), of(d, RES3, l));
        product_backward(of(d, GELU, l), of(g, OUTW, l), of(g, OUTB, l), of(d, OUT, l),
                         of(a, GELU, l), of(p, OUTW, l), 4 * C, C);
        gelu_backward(of(d, FC, l), of(a, FC, l), of(d, GELU, l), (size_t)N * 4 * C);
        product_backward(of(d, LN2, l), of(g, FCW, l), of(g, FCB, l), of(d, FC, l), of(a, LN2, l),
                         of(p, FCW, l), C, 4 * C);
        norm_backward(of(d, RES2, l), of(g, LN2W, l), of(g, LN2B, l), of(d, LN2, l), of(a, RES2, l),
                      of(p, LN2W, l), of(a, LN2M, l), of(a, LN2R, l));
        add_to_both(dx, of(d, PROJ, l), of(d, RES2, l));
        product_backward(of(d, ATTY, l), of(g, PROJW, l), of(g, PROJB, l), of(d, PROJ, l),
                         of(a, ATTY, l), of(p, PROJW, l), C, C);
        attention_backward(of(d, QKV, l), of(d, PREATT, l), of(d, ATT, l), of(d, ATTY, l),
                           of(a, QKV, l), of(a, ATT, l));
        product_backward(of(d, LN1, l), of(g, QKVW, l), of(g, QKVB, l), of(d, QKV, l),
                         of(a, LN1, l), of(p, QKVW, l), C, 3 * C);
        norm_backward(dx, of(g, LN1W, l), of(g, LN1B, l), of(d, LN1, l), x, of(p, LN1W, l),
                      of(a, LN1M, l), of(a, LN1R, l));
    }
    for (int r = 0; r < N; r++)
        for (int i = 0; i < C; i++) {
            g->at[WTE][(size_t)token(r) * C + i] += d->at[ENCODED][(size_t)r * C + i];
            g->at[WPE][(size_t)(r % T) * C + i] += d->at[ENCODED][(size_t)r * C + i];
        }
}

static void adamw(const arrays *p, const arrays *g, float *m, float *v, int t)
{
    const float unbias_m = 1 - powf(0.9f, (float)t), unbias_v = 1 - powf(0.999f, (float)t);
    for (size_t i = 0; i < p->count; i++) {
        m[i] = 0.9f * m[i] + 0.1f * g->all[i];
        v[i] = 0.999f * v[i] + 0.001f * g->all[i] * g->all[i];
        p->all[i] -=
            1e-3f * (m[i] / unbias_m / (sqrtf(v[i] / unbias_v) + 1e-8f) + 0.01f * p->all[i]);
    }
}

static void start(const arrays *p)
{
    srand(1);
    for (int i = 0; i < N_PARAMS; i++) {
        const int is_matrix =
                      i == WTE || i == WPE || i == QKVW || i == PROJW || i == FCW || i == OUTW,
                  is_one = i == LN1W || i == LN2W || i == LNFW;
        const size_t n = p->size[i] * (size_t)(i >= LN1W && i < LNFW ? L : 1);
        for (size_t k = 0; k < n; k++)
            p->at[i][k] = !is_matrix
                              ? (float)is_one
                              : 0.02f * sqrtf(-2 * logf((1.0f + rand()) / (1.0f + RAND_MAX))) *
                                    cosf(6.2831853f * rand() / RAND_MAX);
    }
}

static long status_kib(const char *name)
{
    char line[256];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, name, strlen(name))) kib = atol(line + strlen(name) + 1);
    if (status) fclose(status);
    return kib;
}

int main(int argc, char **argv)
{
    if (argc < 11) return 2;
    int *const shape[] = {&L, &C, &NH, &V, &B, &T, &context};
    for (int i = 0; i < 7; i++) *shape[i] = atoi(argv[2 + i]);
    is_tanh = !strcmp(argv[9], "gelu_tanh"), N = B * T;
    const long before = status_kib("VmRSS");
    const size_t c = (size_t)C, n = (size_t)N, scores = (size_t)B * NH * T * T;
    const size_t sizes[N_PARAMS] = {V * c,     context * c, c, c, 3 * c * c, 3 * c,
                                    c * c,     c,           c, c, 4 * c * c, 4 * c,
                                    4 * c * c, c,           c, c};
    const size_t acts[N_ACTS] = {n * c, n * c, n,     n, 3 * n * c, n * c,     scores,    scores,
                                 n * c, n * c, n * c, n, n,         4 * n * c, 4 * n * c, n * c,
                                 n * c, n * c, n,     n, n * V,     n * V};
    const arrays p = arrays_new(N_PARAMS, LN1W, LNFW, sizes),
                 g = arrays_new(N_PARAMS, LN1W, LNFW, sizes),
                 a = arrays_new(N_ACTS, LN1, LNF, acts), d = arrays_new(N_ACTS, LN1, LNF, acts);
    float *m = calloc(p.count, sizeof *m), *v = calloc(p.count, sizeof *v);
    if (!m || !v) return 1;
    start(&p);
    const char *clock = getenv("BENCH_CLOCK");
    const clockid_t id =
        clock && !strcmp(clock, "cpu") ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    char line[64];
    printf("version 0\nready\n");
    fflush(stdout);
    for (int t = 0, steps;
         fgets(line, sizeof line, stdin) && sscanf(line, "plain %d", &steps) == 1;) {
        while (steps-- > 0) {
            struct timespec from, to;
            clock_gettime(id, &from);
            const float loss = forward(&p, &a);
            backward(&p, &g, &a, &d);
            adamw(&p, &g, m, v, ++t);
            clock_gettime(id, &to);
            printf("plain %lld 0 0 %.7g\n",
                   (to.tv_sec - from.tv_sec) * 1000000000LL + to.tv_nsec - from.tv_nsec,
                   (double)loss);
        }
        printf("done\n");
        fflush(stdout);
    }
    printf("memory %ld %ld\n", before, status_kib("VmHWM"));
    free(m), free(v), free(p.all), free(g.all), free(a.all), free(d.all);
    return 0;
}
