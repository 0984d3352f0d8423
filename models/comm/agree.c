/* agree.c: what the ranks of a comm tell each other besides tensors. */
#include <string.h>
#include "comm/comm.h"

bool mti_comm_share(mt_comm *comm, const void *own, size_t n_bytes, void *all)
{
    for (int64_t r = 0; r < comm->end.ranks; r++) {
        comm->out[r] = (mti_span){(void *)own, n_bytes};
        comm->in[r] = (mti_span){(char *)all + (size_t)r * n_bytes, n_bytes};
    }
    return mti_comm_exchange(comm);
}

bool mti_comm_gather_texts(mt_comm *comm, const char *own, char **all)
{
    int64_t ranks = comm->end.ranks, rank = comm->end.rank;
    size_t n = strlen(own) + 1, total = 0, *sizes = mti_calloc((size_t)ranks, sizeof *sizes);
    *all = NULL;
    if (!sizes || !mti_comm_share(comm, &n, sizeof n, sizes)) {
        mti_free(sizes);
        return false;
    }
    for (int64_t r = 0; r < ranks; r++) total += sizes[r];
    if (rank == 0) *all = mti_malloc(total);
    bool ok = rank > 0 || *all;
    char *at = *all;
    for (int64_t r = 0; ok && r < ranks; r++) {
        comm->out[r] = r == 0 ? (mti_span){(void *)own, n} : (mti_span){0};
        comm->in[r] = rank == 0 ? (mti_span){at, sizes[r]} : (mti_span){0};
        if (at) at += sizes[r];
    }
    mti_free(sizes);
    return ok && mti_comm_exchange(comm);
}

/* A text is told apart by its hash, and shown by its beginning. */
typedef struct shown {
    uint64_t hash;
    char text[160];
} shown;

mt_status mt_comm_agree(mt_comm *comm, const char *what, const char *text)
{
    if (!mti_given(comm, "comm_agree", "the comm")) return mt_last_status();
    if (!what || !text) return mti_fail(MT_ERR_ARGUMENT, "comm_agree: a text is NULL");
    int64_t ranks = comm->end.ranks, r = 0;
    shown own = {.hash = mti_hash_bytes(MTI_HASH_BEGIN, text, strlen(text))};
    snprintf(own.text, sizeof own.text, "%s", text);
    shown *all = mti_calloc((size_t)ranks, sizeof *all);
    bool ok = all && mti_comm_share(comm, &own, sizeof own, all);
    while (ok && r < ranks && all[r].hash == all[0].hash) r++;
    if (ok && r < ranks)
        ok = mti_fail_bool(MT_ERR_ARGUMENT,
                           "%s of rank %lld is \"%s\", of rank 0 \"%s\"; all ranks need the same",
                           what, (long long)r, all[r].text, all[0].text);
    mti_free(all);
    return ok ? MT_OK : mt_last_status();
}
