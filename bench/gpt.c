/* gpt.c: training steps of a GPT on one fixed batch, timed one by one.
 *
 * After "ready" on standard output it obeys lines on standard input:
 *     plain N    N steps                     -> N lines "plain F B O LOSS"
 *     ledger N   N pairs of steps, one       -> N pairs of lines "off F B O LOSS",
 *                without and one with ledger            "on F B O LOSS"
 *     traced N   N pairs of steps, one       -> N pairs of lines as for ledger,
 *                without and one with clocks            "best F B O LOSS" of the fastest traced
 *                around the kernels                     step, and its parts (bench.h)
 *     end                                    -> "memory START PEAK" in KiB, "books ALLOCATED
 *                                               RESERVED": the allocator's peaks in bytes,
 *                                               and of a step "flops N" and "moved N", the
 *                                               bytes of its ops' tensors
 * F, B, O: ns of forward with loss, backward, optimizer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"

typedef struct bench_model {
    mt_device *device;
    mt_module *gpt;
    mt_optimizer *adamw;
    mt_tensor *tokens, *targets; /* i64 [b,s] */
    mt_ledger *ledger;           /* reset after each step that it records */
    bool autocast;               /* forward and loss, to bf16 */
} bench_model;

typedef struct step_times {
    int64_t forward, backward, optimizer; /* ns */
    double loss;
} step_times;

/* Pseudo-random token ids, the same in peer.py. */
static mt_tensor *make_tokens(mt_device *device, int64_t batch, int64_t seq, int64_t vocab,
                              int64_t shift)
{
    size_t n_bytes = (size_t)(batch * seq) * sizeof(int64_t);
    int64_t *ids = malloc(n_bytes);
    if (!ids) return NULL;
    for (int64_t i = 0; i < batch * seq; i++) ids[i] = ((i + shift) * 7919 + 104729) % vocab;
    mt_tensor *t = mt_from_data(device, MT_I64, MT_SHAPE(batch, seq), ids, n_bytes);
    free(ids);
    return t;
}

/* BENCH_SEGMENTS: "GRANULE" or "GRANULE reclaim", in bytes (mt_expandable); "" or unset: segments
 * of their own size. */
static bool expand(mt_device *device)
{
    const char *text = getenv("BENCH_SEGMENTS");
    if (!text || !*text) return true;
    const mt_expandable options = {.granule = strtoull(text, NULL, 10),
                                   .reclaim = strstr(text, "reclaim") != NULL};
    return mt_mem_set_expandable(device, &options) == MT_OK;
}

static bool open_model(bench_model *b, const mt_model_config *config, int64_t batch, int64_t seq,
                       int threads)
{
    b->device = mt_device_open("cpu");
    if (!b->device || mt_device_set_threads(b->device, threads) != MT_OK || !expand(b->device))
        return false;
    mt_seed(b->device, 1);
    b->gpt = mt_model_new(b->device, config);
    b->adamw = mt_adamw_new(b->gpt, &(mt_adamw_options){.lr = 1e-3, .weight_decay = 0.01});
    b->tokens = make_tokens(b->device, batch, seq, config->vocab, 0);
    b->targets = make_tokens(b->device, batch, seq, config->vocab, 1);
    b->ledger = mt_ledger_new(b->device);
    return b->gpt && b->adamw && b->tokens && b->targets && b->ledger;
}

static void close_model(bench_model *b)
{
    mt_ledger_free(b->ledger);
    mt_optimizer_free(b->adamw);
    mt_module_free(b->gpt);
    mt_release(b->tokens);
    mt_release(b->targets);
    mt_device_release(b->device);
}

static bool step(bench_model *b, step_times *t)
{
    int64_t start = bench_now_ns();
    if (mt_module_zero_grad(b->gpt) != MT_OK) return false;
    if (b->autocast && mt_autocast_begin(MT_BF16) != MT_OK) return false;
    MT_AUTO mt_tensor *h = mt_forward(b->gpt, b->tokens);
    mt_set(&h, mt_cross_entropy(h, b->targets, MT_IGNORE));
    if (b->autocast && mt_autocast_end() != MT_OK) return false;
    if (!h) return false;
    t->loss = mt_item(h);
    int64_t forward = bench_now_ns();
    if (mt_backward(h) != MT_OK) return false;
    int64_t backward = bench_now_ns();
    if (mt_optimizer_step(b->adamw) != MT_OK) return false;
    t->optimizer = bench_now_ns() - backward;
    t->backward = backward - forward;
    t->forward = forward - start;
    return isfinite(t->loss);
}

/* A step with the ledger on. */
static bool step_with_ledger(bench_model *b, step_times *t)
{
    int64_t start = bench_now_ns();
    mt_ledger *ledger = b->ledger;
    if (mt_ledger_begin(ledger) != MT_OK) return false;
    int64_t ready = bench_now_ns();
    bool ok = step(b, t);
    int64_t done = bench_now_ns();
    ok = mt_ledger_end(ledger) == MT_OK && ok && mt_ledger_bytes(ledger) > 0;
    mt_ledger_reset(
        ledger); /* from here on it watches nothing, so that steps without it pay nothing */
    t->forward += ready - start;
    t->optimizer += bench_now_ns() - done;
    return ok;
}

static void print_step(const char *word, const step_times *t)
{
    printf("%s %lld %lld %lld %.6f\n", word, (long long)t->forward, (long long)t->backward,
           (long long)t->optimizer, t->loss);
}

/* N pairs; the parts are those of one step, so they sum to it. */
static bool traced(bench_model *b, long n)
{
    step_times best = {0};
    for (long i = 0; i < n; i++) {
        step_times off, on;
        if (!step(b, &off)) return false;
        bench_trace_begin(b->device);
        bool ok = step(b, &on);
        bench_trace_end(b->device);
        if (!ok) return false;
        int64_t total = on.forward + on.backward + on.optimizer;
        if (!i || total < best.forward + best.backward + best.optimizer) {
            best = on;
            bench_trace_keep();
        }
        print_step("off", &off);
        print_step("on", &on);
    }
    print_step("best", &best);
    return bench_trace_print();
}

static bool timed(bench_model *b, const char *word, bool (*one)(bench_model *b, step_times *t))
{
    step_times t;
    if (!one(b, &t)) return false;
    print_step(word, &t);
    return true;
}

static bool obey(bench_model *b)
{
    char line[64], word[16];
    long n;
    while (fgets(line, sizeof line, stdin) && sscanf(line, "%15s %ld", word, &n) == 2) {
        bool pairs = strcmp(word, "ledger") == 0;
        if (strcmp(word, "traced") == 0) {
            if (!traced(b, n)) return false;
            n = 0;
        }
        for (long i = 0; i < n; i++) {
            if (!pairs && !timed(b, "plain", step)) return false;
            if (pairs && !(timed(b, "off", step) && timed(b, "on", step_with_ledger))) return false;
        }
        puts("done");
    }
    return true;
}

/* What the ops of one more step count; the optimizer counts nothing. */
static bool print_counts(bench_model *b)
{
    step_times t;
    mt_traffic before = mt_traffic_get(b->device);
    mt_flops_reset(b->device);
    if (!step(b, &t)) return false;
    mt_flops flops = mt_flops_get(b->device);
    mt_traffic after = mt_traffic_get(b->device);
    printf("flops %llu\n", (unsigned long long)(flops.forward + flops.backward));
    printf("moved %llu\n",
           (unsigned long long)(after.products - before.products + after.others - before.others));
    return true;
}

static void print_books(mt_device *device)
{
    mt_mem_stats s;
    mt_mem_get_stats(device, &s);
    printf("books %zu %zu\n", s.allocated.peak, s.reserved.peak);
}

int bench_gpt(int argc, char **argv)
{
    mt_model_config config = {.kind = MT_MODEL_GPT, .dtype = MT_F32};
    int64_t *fields[] = {&config.layers, &config.hidden, &config.heads, &config.vocab};
    if (argc != 9 && argc != 10) return 2;
    bench_model b = {.autocast = argc == 10 && !strcmp(argv[9], "autocast")};
    if (argc == 10 && !b.autocast && !mt_dtype_parse(argv[9], &config.dtype))
        return bench_failed("dtype");
    for (int i = 0; i < 4; i++) *fields[i] = strtoll(argv[i], NULL, 10);
    int64_t batch = strtoll(argv[4], NULL, 10), seq = strtoll(argv[5], NULL, 10);
    config.context = strtoll(argv[6], NULL, 10);
    if (mt_act_parse(argv[7], &config.act) != MT_OK) return bench_failed("act");
    long start = bench_status_kib("VmRSS");
    bool ok = open_model(&b, &config, batch, seq, atoi(argv[8]));
    if (ok) puts("ready");
    ok = ok && obey(&b) && print_counts(&b);
    if (ok) print_books(b.device);
    if (ok) printf("memory %ld %ld\n", start, bench_status_kib("VmHWM"));
    if (!ok) bench_failed("gpt");
    close_model(&b);
    return ok ? 0 : 1;
}
