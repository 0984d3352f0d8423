/* as_ranks.c: threads as ranks, and their models. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "as_ranks.h"
#include "files/files.h"

enum { MOST = 16 };

typedef struct ranked {
    mt_comm *world;
    mtt_ranked_fn *run;
    void *user;
} ranked;

static void *run_ranked(void *argument)
{
    const ranked *r = argument;
    r->run(r->world, r->user);
    mt_comm_free(r->world);
    return NULL;
}

void mtt_as_ranks(int64_t ranks, mtt_ranked_fn *run, void *user)
{
    mt_comm *ends[MOST];
    pthread_t threads[MOST];
    ranked each[MOST];
    assert_in_range(ranks, 1, MOST);
    mtt_ok(mt_comm_of_threads(ranks, ends));
    for (int64_t i = 0; i < ranks; i++) {
        each[i] = (ranked){ends[i], run, user};
        assert_int_equal(pthread_create(&threads[i], NULL, run_ranked, &each[i]), 0);
    }
    for (int64_t i = 0; i < ranks; i++) pthread_join(threads[i], NULL);
}

static int64_t at_least_1(int64_t n) { return n ? n : 1; }

int64_t mtt_count_ranks(const mt_parallel *h)
{
    return at_least_1(h->tensor) * at_least_1(h->context) * at_least_1(h->data) *
           at_least_1(h->pipeline);
}

void mtt_need(bool ok, const char *what, const char *file, int line)
{
    if (ok) return;
    fprintf(stderr, "%s:%d: not so: %s (%s)\n", file, line, what, mt_last_error());
    abort();
}

bool mtt_same_files(const char *a, const char *b)
{
    size_t n[2] = {0, 1};
    char *first = mti_file_read(a, SIZE_MAX / 4, &n[0]);
    char *second = mti_file_read(b, SIZE_MAX / 4, &n[1]);
    bool same = first && second && n[0] == n[1] && !memcmp(first, second, n[0]);
    mti_free(first);
    mti_free(second);
    return same;
}

/* ---- models ---- */

const mt_model_config mtt_models[MTT_MODELS] = {
    {.hidden = 32, .heads = 4, .layers = 2, .vocab = 61, .context = 16},
    {.hidden = 32, .heads = 4, .layers = 2, .vocab = 64, .context = 16, .untied = true},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 32,
     .heads = 8,
     .kv_heads = 4,
     .layers = 2,
     .vocab = 61,
     .context = 16,
     .ffn = 48,
     .unturned_period = 2}, /* its layers differ */
    {.kind = MT_MODEL_BERT, .hidden = 32, .heads = 4, .layers = 2, .vocab = 61, .context = 16},
    {.hidden = 32,
     .heads = 4,
     .layers = 2,
     .vocab = 61,
     .context = 16,
     .norm = MT_NORM_PARALLEL,
     .untied = true,
     .rope_theta = 500,
     .rope_dim = 2,
     .joint_products = true,
     .qkv_by_head = true},
};
const char *const mtt_model_names[MTT_MODELS] = {"gpt", "gpt, untied", "llama", "bert", "gpt-neox"};
