/* group.h: ranks that compute together, and what carries data between them. */
#ifndef MEMTAPE_GROUP_H
#define MEMTAPE_GROUP_H

#include <stdint.h>
#include "memtape/status.h"

MT_C_BEGIN

/* What carries data between ranks, as one of them holds it. */
typedef struct mt_comm mt_comm;

/* Ranks that compute together, as one of them sees it. Without a comm, collectives run on a device
 * without data only, where no data has to move. */
typedef struct mt_group {
    int64_t ranks, rank; /* how many, and which of them this one is, from 0 on */
    mt_comm *comm;       /* borrowed; it must outlive the tape of what was computed through it */
} mt_group;

/* A group without a comm. */
#define MT_RANKS(n) (&(mt_group){.ranks = (n)})

/* What is on CUDA goes from GPU to GPU through NCCL, whichever comm it is: all ranks of a comm must
 * come to their first collective of tensors on CUDA, and all to their first mt_send or mt_recv. The
 * comm keeps their device open. */

/* Joins the processes that were started together; kind: "mpi" (mpirun -n 4 PROGRAM), a module
 * beside the library. Once in a process. The first call of every process waits for the others. NULL
 * on failure. */
MT_API mt_comm *mt_comm_open(const char *kind);
/* The same for threads of this process: ends[ranks], one for each thread. */
MT_API mt_status mt_comm_of_threads(int64_t ranks, mt_comm **ends);
/* The ranks that give the same color, in the order of key and, where keys are equal, of rank. All
 * ranks of comm must call it. NULL on failure. */
MT_API mt_comm *mt_comm_split(mt_comm *comm, int64_t color, int64_t key);
/* All ranks of comm. */
MT_API mt_group mt_comm_group(mt_comm *comm);
/* Waits until what mt_send, and the backward of mt_recv, sent through comm has arrived, and
 * releases it. Their calls wait for what they must, so this is for the end of a step. NULL: nothing
 * to do. */
MT_API mt_status mt_comm_settle(mt_comm *comm);
/* Bytes that this rank has sent to others through comm. */
MT_API uint64_t mt_comm_sent(const mt_comm *comm);
/* Seconds that this rank has spent moving data through comm, and waiting for others to. */
MT_API double mt_comm_seconds(const mt_comm *comm);
/* Seconds, not among those, in which data moved through comm while this rank computed. */
MT_API double mt_comm_hidden(const mt_comm *comm);
/* MT_OK if every rank gives the same text; else all get an error that names `what` (as rank 0 calls
 * it), a rank that differs, and both texts. Every rank calls it. */
MT_API mt_status mt_comm_agree(mt_comm *comm, const char *what, const char *text);
/* Parts before the whole. A thread that waits for this rank afterwards fails; a process waits in
 * here for all others to come here too, so call mt_comm_abort instead after a failure. */
MT_API void mt_comm_free(mt_comm *comm);
/* As mt_comm_free, but ends the other processes: a rank that has failed keeps no other waiting. */
MT_API void mt_comm_abort(mt_comm *comm);

MT_C_END
#endif
