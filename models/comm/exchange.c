/* exchange.c: the exchange that all collectives are made of, from memory that the host can read. */
#include <string.h>
#include "comm/comm.h"

static bool fail_comm(const mt_comm *comm, const char *error)
{
    return mti_fail_bool(MT_ERR_UNSUPPORTED, "rank %lld of %lld: %s", (long long)comm->end.rank,
                         (long long)comm->end.ranks, error);
}

bool mti_comm_count_time(mt_comm *comm, double began, bool ok, const char *error)
{
    comm->seconds += mti_now() - began;
    return ok || (*error ? fail_comm(comm, error) : false);
}

bool mti_comm_exchange(mt_comm *comm)
{
    char error[MTI_COMM_ERROR] = "";
    int64_t own = comm->end.rank;
    if (comm->in[own].n_bytes) /* often where it already is */
        memmove(comm->in[own].at, comm->out[own].at, comm->in[own].n_bytes);
    double began = mti_now();
    bool ok = comm->kind->exchange(&comm->end, comm->out, comm->in, error);
    if (!mti_comm_count_time(comm, began, ok, error)) return false;
    for (int64_t r = 0; r < comm->end.ranks; r++)
        if (r != own) comm->sent += comm->out[r].n_bytes;
    return true;
}
