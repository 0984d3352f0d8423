/* modelled.h: a pool and a slow model of its rules get the same random requests. */
#ifndef MTT_MODELLED_H
#define MTT_MODELLED_H

#include "fake.h"

typedef struct mtt_model mtt_model; /* each test defines its own */

/* What PyTorch counts: torch.cuda.memory_allocated() tells `allocated`. */
typedef struct mtt_figures {
    size_t requested, allocated, reserved;
} mtt_figures;

typedef struct mtt_model_calls {
    /* The address, or 0: there is no memory. */
    uintptr_t (*alloc)(mtt_model *m, int stream, size_t n_bytes);
    void (*free)(mtt_model *m, uintptr_t at);
    void (*empty_cache)(mtt_model *m);
    mtt_figures (*figures)(const mtt_model *m);
    mtt_figures (*of_stream)(const mtt_model *m, int stream);
    void (*compare)(const mtt_model *m, const mti_pool *pool); /* what else it knows */
} mtt_model_calls;

typedef struct mtt_requests {
    int n;
    uint64_t seed;
    int max_log2;  /* of a request's size */
    int n_streams; /* that requests are drawn for; 0: the default one, without a scope */
} mtt_requests;

/* Addresses must always be equal and, after every request, all figures and their peaks. Returns how
 * many requests were refused, by both. */
size_t mtt_agree(mti_pool *pool, mtt_model *m, const mtt_model_calls *model,
                 const mtt_requests *requests);

#endif
