/* link.cu: what ranks send each other, as NCCL's collectives. They run on the stream of compute, so
 * nothing waits but what needs their results. What stages of a pipeline send each other runs on a
 * stream of its own, for each direction: on one stream a stage that sends could not receive before
 * its message has been taken, and two that send to each other would wait for ever.
 *
 * NCCL connects two ranks at the first message between them, and the host of each waits until the
 * other has made the call, too. So the two exchange a byte as they open a link, and no later
 * message waits for the other's host. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/device/link.h"

/* Where bytes are moved only, dtypes that NCCL does not have, or not in all versions, are bytes. */
static int type_of(mt_dtype dtype, size_t *n)
{
    switch (dtype) {
    case MT_F32: return NCCL_F32;
    case MT_F64: return NCCL_F64;
    case MT_F16: return NCCL_F16;
    case MT_BF16: return NCCL_BF16;
    default: *n *= mt_dtype_size(dtype); return NCCL_U8;
    }
}

static bool sums(mt_dtype dtype)
{
    return mt_dtype_is_float(dtype) ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "nccl: a sum of %s among ranks; need f32, f64, bf16 or "
                         "f16, in which ops compute",
                         mt_dtype_name(dtype));
}

static bool gather(mti_link *l, mt_dtype dtype, const void *own, void *all, size_t n)
{
    int type = type_of(dtype, &n);
    return mti_nccl_ready(l, "all_gather") &&
           mti_nccl_call(l, "ncclAllGather", &nccl_functions::all_gather, own, all, n, type);
}

static bool scatter_sum(mti_link *l, mt_dtype dtype, const void *all, void *own, size_t n)
{
    int type = type_of(dtype, &n), op = NCCL_SUM;
    return sums(dtype) && mti_nccl_ready(l, "reduce_scatter") &&
           mti_nccl_call(l, "ncclReduceScatter", &nccl_functions::reduce_scatter, all, own, n, type,
                         op);
}

static bool sum(mti_link *l, mt_dtype dtype, void *x, size_t n)
{
    int type = type_of(dtype, &n), op = NCCL_SUM;
    return sums(dtype) && mti_nccl_ready(l, "all_reduce") &&
           mti_nccl_call(l, "ncclAllReduce", &nccl_functions::all_reduce, x, x, n, type, op);
}

static bool sum_on(mti_link *l, mt_dtype dtype, void *x, size_t n, int64_t rank)
{
    int type = type_of(dtype, &n), op = NCCL_SUM, root = (int)rank;
    return sums(dtype) && mti_nccl_ready(l, "reduce") &&
           mti_nccl_call(l, "ncclReduce", &nccl_functions::reduce, x, x, n, type, op, root);
}

static bool spread(mti_link *l, mt_dtype dtype, void *x, size_t n, int64_t rank)
{
    int type = type_of(dtype, &n), root = (int)rank;
    return mti_nccl_ready(l, "broadcast") &&
           mti_nccl_call(l, "ncclBroadcast", &nccl_functions::broadcast, x, x, n, type, root);
}

static bool trade(mti_link *l, const void *out, size_t n_out, void *in, size_t n_in, int64_t rank)
{
    int type = NCCL_U8, peer = (int)rank;
    return (!n_out ||
            mti_nccl_call(l, "ncclSend", &nccl_functions::send, out, n_out, type, peer)) &&
           (!n_in || mti_nccl_call(l, "ncclRecv", &nccl_functions::recv, in, n_in, type, peer));
}

static bool begin(mti_link *l)
{
    if (!mti_nccl_ready(l, "a collective") ||
        !mti_nccl_ok(l, l->ctx->nccl->call.group_start(), "ncclGroupStart"))
        return false;
    l->grouped = true;
    return true;
}

/* Also after a failure inside. */
static bool end(mti_link *l)
{
    int status = mti_nccl_end_group(l);
    return mti_nccl_ready(l, "a collective") && mti_nccl_ok(l, status, "ncclGroupEnd") &&
           (!l->beside || mti_cuda_ok(cudaEventRecord(l->end, l->stream), "recording an event"));
}

/* ---- between two ranks, beside compute ---- */

static bool follow_compute(mti_link *l)
{
    return mti_cuda_ok(cudaEventRecord(l->compute_done, l->ctx->stream), "recording an event") &&
           mti_cuda_ok(cudaStreamWaitEvent(l->stream, l->compute_done, 0), "ordering a message");
}

/* A message alone is a group, too: without one ncclSend may return ncclSuccess before it is in the
 * stream, and the event would be ahead of it (pytorch, pull request 138860). */
template <class F, class P>
static bool message(mti_link *l, const char *name, F function, P at, size_t n_bytes, int64_t other)
{
    int type = NCCL_U8, peer = (int)other;
    bool alone = !l->grouped;
    if (alone && !begin(l)) return false;
    bool ok = mti_nccl_call(l, name, function, at, n_bytes, type, peer);
    return !alone ? ok : end(l) && ok;
}

/* The other rank's host is not waited for: two may send to each other before either receives. */
static bool send(mti_link *l, const void *what, size_t n_bytes, int64_t to)
{
    return mti_nccl_ready(l, "send") && follow_compute(l) &&
           message(l, "ncclSend", &nccl_functions::send, what, n_bytes, to);
}

static bool settle(mti_link *l)
{
    return mti_nccl_ready(l, "send") &&
           mti_cuda_ok(cudaStreamWaitEvent(l->ctx->stream, l->end, 0), "waiting for a message");
}

static bool receive(mti_link *l, void *where, size_t n_bytes, int64_t from)
{
    return mti_nccl_ready(l, "recv") && follow_compute(l) &&
           message(l, "ncclRecv", &nccl_functions::recv, where, n_bytes, from) && settle(l);
}

static char *bytes_of(struct mti_nccl *nccl)
{
    pthread_mutex_lock(&nccl->lock);
    bool ok = nccl->bytes || mti_cuda_ok(cudaMalloc(&nccl->bytes, 2), "memory for ranks");
    pthread_mutex_unlock(&nccl->lock);
    return ok ? nccl->bytes : nullptr;
}

static bool connect(mti_link *l)
{
    char *bytes = bytes_of(l->ctx->nccl);
    return bytes && (l->rank == 0 ? message(l, "ncclSend", &nccl_functions::send, bytes, 1, 1)
                                  : message(l, "ncclRecv", &nccl_functions::recv, bytes + 1, 1, 0));
}

static mti_link *open(mti_ctx *ctx, const void *id, int64_t ranks, int64_t rank, bool beside)
{
    mti_link *l = mti_nccl_open(ctx, id, ranks, rank, beside);
    if (!l || !beside || ranks == 1 || connect(l)) return l;
    mti_nccl_close(l, true);
    return nullptr;
}

const mti_link_kind mti_cuda_links = {mti_nccl_find, open,   mti_nccl_close, gather, scatter_sum,
                                      sum,           sum_on, spread,         trade,  begin,
                                      end,           send,   receive,        settle};
