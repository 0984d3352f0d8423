/* nccl_data.cc: what the collectives of the double of NCCL move and add. */
#include <string.h>
#include "cudasim/memory.h"
#include "cudasim/nccl_data.h"
#include "cudasim/simulator.h"

namespace nccl_double
{

std::atomic<uint64_t> n_moved;

const char *const names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclReduce",
                             "ncclBroadcast", "ncclSend",          "ncclRecv"};

size_t size_of(int dtype)
{
    return dtype == NCCL_F64 ? 8 : dtype == NCCL_F32 ? 4 : dtype == NCCL_U8 ? 1 : 2;
}

namespace
{

template <class T> void add_to(void *to, const void *part, size_t n)
{
    T *sum = static_cast<T *>(to);
    const T *x = static_cast<const T *>(part);
    for (size_t i = 0; i < n; i++) sum[i] = sum[i] + x[i];
}
void add_bf16(void *to, const void *part, size_t n)
{
    __nv_bfloat16 *sum = static_cast<__nv_bfloat16 *>(to);
    const __nv_bfloat16 *x = static_cast<const __nv_bfloat16 *>(part);
    for (size_t i = 0; i < n; i++)
        sum[i] = __float2bfloat16(__bfloat162float(sum[i]) + __bfloat162float(x[i]));
}
void add_f16(void *to, const void *part, size_t n)
{
    __half *sum = static_cast<__half *>(to);
    const __half *x = static_cast<const __half *>(part);
    for (size_t i = 0; i < n; i++) sum[i] = __float2half(__half2float(sum[i]) + __half2float(x[i]));
}
void add(int dtype, void *to, const void *part, size_t n)
{
    switch (dtype) {
    case NCCL_F32: add_to<float>(to, part, n); break;
    case NCCL_F64: add_to<double>(to, part, n); break;
    case NCCL_BF16: add_bf16(to, part, n); break;
    case NCCL_F16: add_f16(to, part, n); break;
    default: add_to<unsigned char>(to, part, n);
    }
}

/* Covers elements [first, first + n) of what every rank gives. */
std::vector<char> sum_of(const std::vector<call_t> &all, size_t first, size_t n)
{
    size_t size = size_of(all[0]->dtype);
    const char *own = byte_at(all[0]->from, first * size);
    std::vector<char> sum(own, own + n * size);
    for (size_t r = 1; r < all.size(); r++)
        add(all[0]->dtype, sum.data(), byte_at(all[r]->from, first * size), n);
    return sum;
}

void put(void *to, const std::vector<char> &bytes)
{
    if (!bytes.empty()) memcpy(to, bytes.data(), bytes.size());
}

} // namespace

void carry_out(const std::vector<call_t> &all)
{
    cudasim::access open;
    const call &c = *all[0];
    size_t ranks = all.size(), n_bytes = c.n * size_of(c.dtype);
    size_t others = n_bytes * (ranks - 1);
    std::vector<std::vector<char>> parts;
    switch (c.what) {
    case kind::all_gather:
        n_moved += ranks * others;
        for (size_t r = 0; r < ranks; r++)
            parts.emplace_back(byte_at(all[r]->from, 0), byte_at(all[r]->from, n_bytes));
        for (size_t r = 0; r < ranks; r++)
            for (size_t s = 0; s < ranks; s++) put(byte_at(all[r]->to, s * n_bytes), parts[s]);
        break;
    case kind::reduce_scatter:
        n_moved += ranks * others;
        for (size_t r = 0; r < ranks; r++) parts.push_back(sum_of(all, r * c.n, c.n));
        for (size_t r = 0; r < ranks; r++) put(all[r]->to, parts[r]);
        break;
    case kind::all_reduce:
        n_moved += 2 * others;
        parts.push_back(sum_of(all, 0, c.n));
        for (size_t r = 0; r < ranks; r++) put(all[r]->to, parts[0]);
        break;
    case kind::reduce:
        n_moved += others;
        put(all[(size_t)c.root]->to, sum_of(all, 0, c.n));
        break;
    default:
        n_moved += others;
        parts.emplace_back(byte_at(all[(size_t)c.root]->from, 0),
                           byte_at(all[(size_t)c.root]->from, n_bytes));
        for (size_t r = 0; r < ranks; r++) put(all[r]->to, parts[0]);
    }
}

/* In place only as the library allows it: a rank's part where it belongs in the whole. */
bool lies_well(const call &c, int rank, size_t ranks)
{
    size_t n_bytes = c.n * size_of(c.dtype), n_from = n_bytes, n_to = n_bytes;
    const char *from = byte_at(c.from, 0), *to = byte_at(c.to, 0);
    switch (c.what) {
    case kind::send:
    case kind::recv: return true;
    case kind::all_gather:
        if (from == to + (size_t)rank * n_bytes) return true;
        n_to *= ranks;
        break;
    case kind::reduce_scatter:
        if (to == from + (size_t)rank * n_bytes) return true;
        n_from *= ranks;
        break;
    default:
        if (from == to) return true;
    }
    return from + n_from <= to || to + n_to <= from;
}

bool same(const call &a, const call &b)
{
    return a.what == b.what && a.n == b.n && a.dtype == b.dtype && a.op == b.op && a.root == b.root;
}

} // namespace nccl_double
