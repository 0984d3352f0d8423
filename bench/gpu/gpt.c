/* gpt.c: training steps of a GPT on a device.
 *
 * gpt: one fixed batch, at full speed. OPTIONs: offload=IN_FLIGHT,PREFETCH (offload.h), fused (the
 * loss), adamw8bit, adafactor, expandable (segments). After "ready" it obeys lines on standard
 * input: steps N   -> "ns T" and "loss L": N steps from a device at rest to a device at rest
 * gradients -> "digest N H": a hash of the N bytes of a backward's gradients rest      -> frees the
 * memory that the allocator caches end       -> "memory REQUESTED ALLOCATED ACTIVE RESERVED"
 * (peaks, bytes), "flops N" of a step, "parameters N"; of that step's offload "out N", "in N",
 * "lowered N", "in_vain N", "host_peak N", "peak_in_step WITH WITHOUT" (bytes), "copying S WAITING
 * HIDDEN". curve: batches of a text's bytes; "loss L" after each step. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gpu.h"

typedef struct trained {
    mt_device *device;
    mt_module *gpt;
    mt_optimizer *optimizer;
    mt_tensor *tokens, *targets; /* i64 [b,s] */
    mt_offload *offload;         /* for saved tensors; NULL: no offload */
} trained;

/* What a step may have, besides the model. */
typedef struct options {
    int64_t offload[2]; /* in flight (0: none), ahead */
    bool fused, adamw8bit, adafactor, expandable;
} options;

static bool open_gpt(trained *t, const char *kind, const mt_model_config *config, double lr,
                     const options *o)
{
    *t = (trained){.device = mt_device_open(kind)};
    if (!t->device ||
        (o->expandable && mt_mem_set_expandable(t->device, &(mt_expandable){0}) != MT_OK))
        return false;
    mt_seed(t->device, 1);
    t->gpt = mt_model_new(t->device, config);
    t->optimizer =
        o->adafactor
            ? mt_adafactor_new(t->gpt, &(mt_adafactor_options){.lr = lr, .weight_decay = 0.01})
            : mt_adamw_new(t->gpt, &(mt_adamw_options){.lr = lr,
                                                       .weight_decay = 0.01,
                                                       .moments = o->adamw8bit ? MT_MOMENTS_8BIT
                                                                               : MT_MOMENTS_WIDE});
    if (o->offload[0])
        t->offload =
            mt_offload_new(t->device, &(mt_offload_options){.in_flight = (int)o->offload[0],
                                                            .prefetch = (int)o->offload[1]});
    return t->gpt && t->optimizer && (!o->offload[0] || t->offload);
}

static void close_gpt(trained *t)
{
    mt_offload_free(t->offload);
    mt_optimizer_free(t->optimizer);
    mt_module_free(t->gpt);
    mt_release(t->tokens);
    mt_release(t->targets);
    mt_device_release(t->device);
}

/* Computes gradients; returns the loss, which is on the device and which the caller releases. */
static mt_tensor *forward_and_backward(trained *t)
{
    if (mt_module_zero_grad(t->gpt) != MT_OK) return NULL;
    if (t->offload && mt_offload_begin(t->offload) != MT_OK) return NULL;
    MT_AUTO mt_tensor *loss = mt_model_forward_loss(t->gpt, t->tokens, t->targets);
    if (t->offload && mt_offload_end(t->offload) != MT_OK) return NULL;
    return loss && mt_backward(loss) == MT_OK ? mt_detach(loss) : NULL;
}

static bool step(trained *t, mt_tensor **loss)
{
    mt_set(loss, forward_and_backward(t));
    return *loss && mt_optimizer_step(t->optimizer) == MT_OK;
}

/* ---- gpt ---- */

/* Pseudo-random token ids, the same as bench/peer.py's. */
static bool make_tokens(trained *t, int64_t batch, int64_t seq, int64_t vocab)
{
    size_t n_bytes = (size_t)(batch * seq) * sizeof(int64_t);
    for (int64_t shift = 0; shift < 2; shift++) {
        int64_t *ids = malloc(n_bytes);
        if (!ids) return false;
        for (int64_t i = 0; i < batch * seq; i++) ids[i] = ((i + shift) * 7919 + 104729) % vocab;
        mt_tensor *made = mt_from_data(t->device, MT_I64, 2, (int64_t[]){batch, seq}, ids, n_bytes);
        free(ids);
        *(shift ? &t->targets : &t->tokens) = made;
        if (!made) return false;
    }
    return true;
}

static bool timed_steps(trained *t, long n)
{
    MT_AUTO mt_tensor *loss = NULL;
    if (mt_device_sync(t->device) != MT_OK) return false;
    int64_t start = bench_now_ns();
    for (long i = 0; i < n; i++)
        if (!step(t, &loss)) return false;
    if (mt_device_sync(t->device) != MT_OK) return false;
    int64_t took = bench_now_ns() - start;
    double value = loss ? mt_item(loss) : NAN;
    printf("ns %lld\nloss %.9g\n", (long long)took, value);
    return isfinite(value);
}

/* FNV-1a, 64 bits at a time: equal hashes mean equal bits in two runs. */
static uint64_t hash_of(uint64_t hash, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, n - i < 8 ? n - i : 8);
        hash = (hash ^ word) * 0x100000001b3;
        hash ^= hash >> 32; /* otherwise high bits would never affect low ones */
    }
    return hash;
}

static bool hash_gradients(trained *t)
{
    const mt_named_tensor *all;
    size_t n, n_hashed = 0;
    uint64_t hash = 0xcbf29ce484222325;
    MT_AUTO mt_tensor *loss = forward_and_backward(t);
    if (!loss || mt_module_params(t->gpt, &all, &n) != MT_OK) return false;
    for (size_t i = 0; i < n; i++) {
        mt_tensor *g = mt_grad(all[i].tensor);
        size_t n_bytes = g ? (size_t)mt_numel(g) * mt_dtype_size(mt_dtype_of(g)) : 0;
        unsigned char *bytes = malloc(n_bytes + 1);
        bool ok = g && bytes && mt_to_host(g, bytes, n_bytes) == MT_OK;
        if (ok) hash = hash_of(hash, bytes, n_bytes);
        free(bytes);
        if (!ok) return false;
        n_hashed += n_bytes;
    }
    printf("digest %zu %016llx\n", n_hashed, (unsigned long long)hash);
    return true;
}

static bool obey(trained *t)
{
    char line[64], word[16];
    long n = 0;
    while (fgets(line, sizeof line, stdin) && sscanf(line, "%15s %ld", word, &n) >= 1) {
        bool ok = true;
        if (strcmp(word, "end") == 0) return true;
        if (strcmp(word, "rest") == 0)
            mt_mem_empty_cache(t->device);
        else if (strcmp(word, "gradients") == 0)
            ok = hash_gradients(t);
        else
            ok = strcmp(word, "steps") == 0 && timed_steps(t, n);
        if (!ok) return false;
        puts("done");
    }
    return true;
}

static bool tell_offload(trained *t)
{
    mt_offload_stats s;
    if (mt_offload_get_stats(t->offload, &s) != MT_OK) return false;
    printf("out %zu\nin %zu\nlowered %zu\nin_vain %zu\nhost_peak %zu\n", s.bytes_out, s.bytes_in,
           s.lowered, s.bytes_in_vain, s.host_peak);
    printf("peak_in_step %zu %zu\n", s.peak, s.peak_without);
    printf("copying %.9f %.9f %.4f\n", s.copy_s, s.wait_s, s.hidden);
    return true;
}

/* Reports one more step; the peaks are those of all steps. */
static bool tell(trained *t)
{
    MT_AUTO mt_tensor *loss = NULL;
    uint64_t n_elements = 0, n_bytes = 0;
    mt_flops_reset(t->device);
    if (!step(t, &loss) || mt_device_sync(t->device) != MT_OK) return false;
    if (mt_module_size(t->gpt, &n_elements, &n_bytes) != MT_OK) return false;
    if (t->offload && !tell_offload(t)) return false;
    mt_flops flops = mt_flops_get(t->device);
    mt_mem_stats s;
    mt_mem_get_stats(t->device, &s);
    printf("memory %zu %zu %zu %zu\n", s.requested.peak, s.allocated.peak, s.active.peak,
           s.reserved.peak);
    printf("flops %llu\nparameters %llu\n", (unsigned long long)(flops.forward + flops.backward),
           (unsigned long long)n_elements);
    return true;
}

static bool read_options(int n, char **words, options *o)
{
    const struct flag {
        const char *name;
        bool *is;
    } flags[] = {{"fused", &o->fused},
                 {"adamw8bit", &o->adamw8bit},
                 {"adafactor", &o->adafactor},
                 {"expandable", &o->expandable}};
    for (int i = 0; i < n; i++) {
        bool known =
            sscanf(words[i], "offload=%" SCNd64 ",%" SCNd64, &o->offload[0], &o->offload[1]) == 2;
        for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
            if (strcmp(words[i], flags[k].name) == 0) known = *flags[k].is = true;
        if (!known) return false;
    }
    return true;
}

int gpu_gpt(int argc, char **argv)
{
    mt_model_config config = {.kind = MT_MODEL_GPT, .act = MT_ACT_GELU_TANH};
    int64_t batch, seq;
    options o = {0};
    if (argc < 8 || !mt_dtype_parse(argv[1], &config.dtype) ||
        !read_options(argc - 8, argv + 8, &o))
        return 2;
    gpu_numbers(argv + 2, 6,
                (int64_t *const[]){&config.layers, &config.hidden, &config.heads, &config.vocab,
                                   &batch, &seq});
    config.context = seq;
    if (o.fused) config.ops.loss = MT_LOSS_FUSED;
    trained t;
    bool ok = open_gpt(&t, argv[0], &config, 1e-4, &o) && make_tokens(&t, batch, seq, config.vocab);
    if (ok) puts("ready");
    ok = ok && obey(&t) && tell(&t);
    if (!ok) bench_failed("gpt");
    close_gpt(&t);
    return ok ? 0 : 1;
}

/* ---- curve ---- */

static unsigned char *read_text(const char *path, int64_t *n)
{
    FILE *f = fopen(path, "rb");
    unsigned char *text = malloc((size_t)1 << 20);
    *n = f && text ? (int64_t)fread(text, 1, (size_t)1 << 20, f) : 0;
    if (f) fclose(f);
    return text;
}

/* The text position of row r of step i depends on r and i alone. */
static bool next_batch(trained *t, const unsigned char *text, int64_t n_text, int64_t i,
                       int64_t batch, int64_t seq)
{
    size_t n_bytes = (size_t)(batch * seq) * sizeof(int64_t);
    int64_t *ids = malloc(2 * n_bytes), *next = ids + batch * seq;
    if (!ids) return false;
    for (int64_t r = 0; r < batch; r++) {
        const unsigned char *from = text + (i * batch + r) * 7919 % (n_text - seq - 1);
        for (int64_t j = 0; j < seq; j++) {
            ids[r * seq + j] = from[j];
            next[r * seq + j] = from[j + 1];
        }
    }
    mt_set(&t->tokens, mt_from_data(t->device, MT_I64, MT_SHAPE(batch, seq), ids, n_bytes));
    mt_set(&t->targets, mt_from_data(t->device, MT_I64, MT_SHAPE(batch, seq), next, n_bytes));
    free(ids);
    return t->tokens && t->targets;
}

int gpu_curve(int argc, char **argv)
{
    mt_model_config config = {.kind = MT_MODEL_GPT, .act = MT_ACT_GELU, .vocab = 256};
    int64_t steps, batch, seq, n_text;
    if (argc != 8) return 2;
    gpu_numbers(
        argv + 2, 6,
        (int64_t *const[]){&steps, &config.layers, &config.hidden, &config.heads, &batch, &seq});
    config.context = seq;
    unsigned char *text = read_text(argv[1], &n_text);
    trained t = {0};
    bool ok = text && n_text > seq + 1 && open_gpt(&t, argv[0], &config, 3e-3, &(options){0});
    for (int64_t i = 0; ok && i < steps; i++) {
        MT_AUTO mt_tensor *loss = NULL;
        ok = next_batch(&t, text, n_text, i, batch, seq) && step(&t, &loss);
        if (ok) printf("loss %.9g\n", mt_item(loss));
    }
    if (!ok) bench_failed("curve");
    close_gpt(&t);
    free(text);
    return ok ? 0 : 1;
}
