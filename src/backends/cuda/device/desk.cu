/* desk.cu: hands out desks (desk.h), each to one call at a time. */
#include <pthread.h>
#include "backends/cuda/device/cleanup.h"
#include "backends/cuda/device/desk.h"
#include "backends/cuda/kernels.h"

struct mti_desks {
    pthread_mutex_t lock;
    mti_desk_place *idle;
};

static void desks_free(mti_desk_place *list)
{
    while (list) {
        mti_desk_place *place = list;
        list = place->next;
        if (place->desk) mti_cuda_forgive(cudaFree(place->desk));
        if (place->note) mti_cuda_forgive(cudaFreeHost(place->note));
        mti_free(place);
    }
}

/* NULL: out of memory; mti_fail was called. */
static mti_desk_place *desk_new()
{
    mti_desk_place *place = static_cast<mti_desk_place *>(mti_calloc(1, sizeof *place));
    if (!place) return nullptr;
    if (mti_cuda_ok(cudaMalloc(&place->desk, sizeof *place->desk), "memory for a desk") &&
        mti_cuda_ok(cudaMallocHost(&place->note, sizeof *place->note), "memory for a desk"))
        return place;
    desks_free(place);
    return nullptr;
}

bool mti_cuda_desks_open(mti_ctx *ctx)
{
    ctx->desks = static_cast<mti_desks *>(mti_calloc(1, sizeof *ctx->desks));
    if (!ctx->desks) return false;
    pthread_mutex_init(&ctx->desks->lock, nullptr);
    ctx->desks->idle = desk_new();
    return ctx->desks->idle != nullptr;
}

/* No desk is borrowed any more. */
void mti_cuda_desks_close(mti_ctx *ctx)
{
    if (!ctx->desks) return;
    desks_free(ctx->desks->idle);
    pthread_mutex_destroy(&ctx->desks->lock);
    mti_free(ctx->desks);
}

mti_borrowed_desk::mti_borrowed_desk(mti_ctx *context) : ctx(context)
{
    pthread_mutex_lock(&ctx->desks->lock);
    place = ctx->desks->idle;
    if (place) ctx->desks->idle = place->next;
    pthread_mutex_unlock(&ctx->desks->lock);
    if (!place) place = desk_new();
}

mti_borrowed_desk::~mti_borrowed_desk()
{
    if (!place) return;
    pthread_mutex_lock(&ctx->desks->lock);
    place->next = ctx->desks->idle;
    ctx->desks->idle = place;
    pthread_mutex_unlock(&ctx->desks->lock);
}
