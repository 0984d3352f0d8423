/* nccl_data.h: what the ranks of the double of NCCL ask for, and what moves then. */
#ifndef CUDASIM_NCCL_DATA_H
#define CUDASIM_NCCL_DATA_H

#include <atomic>
#include <memory>
#include <vector>
#include "backends/cuda/device/nccl.h"

namespace nccl_double
{

enum struct kind { all_gather, reduce_scatter, all_reduce, reduce, broadcast, send, recv };

extern const char *const names[]; /* of the library's functions, by kind */

/* What one rank asks for. */
struct call {
    kind what;
    const void *from;
    void *to;
    size_t n;
    int dtype, op, root; /* or peer */
    cudaStream_t stream;
    bool started, over;
};
typedef std::shared_ptr<call> call_t;

extern std::atomic<uint64_t> n_moved; /* bytes from rank to rank, as rings would send them */

size_t size_of(int dtype);
/* Carries out a collective, for which each rank has made its call. */
void carry_out(const std::vector<call_t> &all);

/* Whether two ranks' calls are the same collective; whether a call's memory lies as NCCL needs it:
 * in place only where a rank's part belongs in the whole. */
bool same(const call &a, const call &b);
bool lies_well(const call &c, int rank, size_t ranks);

inline const char *byte_at(const void *p, size_t n_bytes)
{
    return static_cast<const char *>(p) + n_bytes;
}
inline char *byte_at(void *p, size_t n_bytes) { return static_cast<char *>(p) + n_bytes; }

} // namespace nccl_double

#endif
