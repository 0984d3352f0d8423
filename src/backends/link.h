/* link.h: how ranks reach each other from device memory that the host cannot read. A backend with
 * such memory has a table of these functions. What they do is queued behind the backend's compute,
 * and compute that is queued later finds it done; a wait for the device fails, instead of waiting
 * for ever, when another rank is gone. Sums of 16-bit numbers may be rounded at each addition, and
 * the order of sums is the backend's. */
#ifndef MTI_LINK_H
#define MTI_LINK_H

#include "base/base.h"

#define MTI_LINK_ID 128 /* bytes of a group's name */

typedef struct mti_ctx mti_ctx;   /* a backend's own state: threads, streams */
typedef struct mti_link mti_link; /* one rank's end of a group */

/* All but send and receive must be called by every rank of the group, in the same order. n counts
 * elements of dtype, a float but where bytes are moved only: gather, spread. */
typedef struct mti_link_kind {
    /* Whether this machine has what links need. id: NULL, or a name for a new group, which one rank
     * makes and gives to the others. */
    bool (*find)(mti_ctx *ctx, void *id);
    /* Waits for all ranks. beside: for send and receive, which run beside compute, from rank 0 to
     * rank 1. NULL on failure. */
    mti_link *(*open)(mti_ctx *ctx, const void *id, int64_t ranks, int64_t rank, bool beside);
    /* failed: waits for nobody. */
    void (*close)(mti_link *link, bool failed);
    /* all[ranks * n]: every rank's own[n]; own may lie where it belongs in all. */
    bool (*gather)(mti_link *link, mt_dtype dtype, const void *own, void *all, size_t n);
    /* own[n]: the sum of what every rank has there in all[ranks * n]; own may lie in all. */
    bool (*scatter_sum)(mti_link *link, mt_dtype dtype, const void *all, void *own, size_t n);
    /* x[n] becomes the sum of every rank's, on all ranks or on one; x[n] becomes that rank's. */
    bool (*sum)(mti_link *link, mt_dtype dtype, void *x, size_t n);
    bool (*sum_on)(mti_link *link, mt_dtype dtype, void *x, size_t n, int64_t rank);
    bool (*spread)(mti_link *link, mt_dtype dtype, void *x, size_t n, int64_t rank);
    /* Sends out to a rank, this one included, and receives in from it, between begin and end; 0
     * bytes: neither. */
    bool (*trade)(mti_link *link, const void *out, size_t n_out, void *in, size_t n_in,
                  int64_t rank);
    /* Around several of the above, which then are one. */
    bool (*begin)(mti_link *link);
    bool (*end)(mti_link *link);
    /* Between two ranks, of a link beside compute. What is sent stays as it is until settle, after
     * which compute may change it. The host waits for the other rank in none of them. */
    bool (*send)(mti_link *link, const void *what, size_t n_bytes, int64_t to);
    bool (*receive)(mti_link *link, void *where, size_t n_bytes, int64_t from);
    bool (*settle)(mti_link *link);
} mti_link_kind;

#endif
