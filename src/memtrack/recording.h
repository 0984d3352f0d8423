/* recording.h: the inside of a trace, and what the pool tells it. */
#ifndef MTI_RECORDING_H
#define MTI_RECORDING_H

#include <pthread.h>
#include "memtrack/best_fit.h"
#include "memtrack/trace.h"

typedef enum mti_act { MTI_TAKE, MTI_GIVE, MTI_RECATEGORISE } mti_act;

typedef struct mti_request {
    mti_act act;
    uint32_t block; /* in `blocks` */
    mt_category category;
    mti_stream *stream;
} mti_request;

typedef struct mti_traced {
    void *ptr;
    size_t n_bytes;
    mti_block *now; /* while it lives: in the recording, later in a repetition */
} mti_traced;

struct mti_trace {
    mti_pool *pool;
    pthread_t thread;
    const char *why_not;
    uint64_t beside; /* what lives before it */
    MTI_VEC(mti_request) requests;
    MTI_VEC(mti_traced) blocks;
    MTI_VEC(uint32_t) survivors;
};

/* Under the pool's lock: */
/* Recorded by the calling thread; t may be NULL. */
static inline bool mti_trace_is_mine(const mti_trace *t)
{
    return t && pthread_equal(t->thread, pthread_self());
}
void mti_trace_took(mti_trace *t, mti_cell *cell);
void mti_trace_gave(mti_trace *t, mti_cell *cell);
void mti_trace_recategorised(mti_trace *t, const mti_cell *cell);
void mti_trace_spoil(mti_trace *t, const char *why); /* the first reason stays */

#endif
