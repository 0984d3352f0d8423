/* together.h: the program as one of several that mpirun started, and watching over it. Ranks start
 * with the same words, and end with one message and the worst status. */
#ifndef MTI_CLI_TOGETHER_H
#define MTI_CLI_TOGETHER_H

#include "options/options.h"
#include "report/json.h"

typedef struct mti_launch {
    int64_t ranks, rank;  /* 1 and 0: started alone */
    const char *variable; /* that says so; NULL: none */
} mti_launch;

/* By the variables that MPI's launchers set for each process. */
mti_launch mti_launch_get(void);

/* Lets the launcher end all ranks, also before this one has joined them: MPICH's waits for ever for
 * a process that has ended without a word. (PMI-1; others end all by themselves.) */
void mti_launch_abort(int status);
/* It drops what it has not read by then; it gets so long to read a message. */
#define MTI_LAUNCHER_READS_US 200000

/* A process that is killed cannot say so, and mpirun names no rank. So each rank is a child of a
 * process that only waits for it and tells how it ended. True, with the exit status, in that
 * process, once the child has ended; false in the child, and where there is only one rank. */
bool mti_launch_watch(const mti_launch *l, int *status);

/* The parent's death sends this process the signal; only Linux can say so. */
void mti_end_with_parent(int number);

/* Joins the other ranks, and checks that all are of one version and were given the same words. NULL
 * on failure, which rank 0 has reported; *status is the exit status. */
mt_comm *mti_together_begin(const mti_launch *l, int argc, char **argv, int *status);
/* Every rank's status and, unless that is MTI_EXIT_OK, its message ("": rank 0 has printed it).
 * Rank 0 prints the first rank's; returns the worst status. Every rank calls it. */
int mti_together_end(mt_comm *world, const char *name, int status, const char *message);
/* On rank 0 *out: {"schema": "memtape.ranks/1", "ranks": [..]} of every rank's `own`, which is
 * taken over; on the others NULL. Every rank calls it. */
bool mti_together_gather(mt_comm *world, json_t *own, json_t **out);
/* A rank that has failed while others may wait for it prints its last error and ends all ranks. */
void mti_together_abort(mt_comm *world, const char *name);

#endif
