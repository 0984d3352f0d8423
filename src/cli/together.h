/* together.h: the program as one of several ranks: they start with the same words, and end with one
 * message and the worst status. */
#ifndef MTI_CLI_TOGETHER_H
#define MTI_CLI_TOGETHER_H

#include "cli/launch.h"
#include "options/options.h"
#include "report/json.h"

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
