/* launch.h: whether the program is one of several that mpirun started, and watching over it. */
#ifndef MTI_CLI_LAUNCH_H
#define MTI_CLI_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mti_launch {
    int64_t ranks, rank;  /* 1 and 0: started alone */
    const char *variable; /* that says so; NULL: none */
} mti_launch;

/* By the variables that MPI's launchers set for each process. */
mti_launch mti_launch_get(void);

/* Whether the launcher's pipe is open, if it has one (PMI-1). MPICH ends a process without it. */
bool mti_launch_reached(void);

/* Lets the launcher end all ranks, also before this one has joined them: MPICH's waits for ever for
 * a process that has ended without a word. (PMI-1; others end all by themselves.) */
void mti_launch_abort(int status);
/* It drops what it has not read by then; it gets so long to read a message. */
#define MTI_LAUNCHER_READS_US 200000

/* A process that is killed cannot say so, and mpirun names no rank. So each rank is a child of a
 * process that only waits for it and tells how it ended. True, with the exit status, in that
 * process, once the child has ended; false in the child, and where there is only one rank. */
bool mti_launch_watch(const mti_launch *l, int *status);

#endif
