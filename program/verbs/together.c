/* together.c: the processes that mpirun starts, and what they do together as ranks. */
#include "verbs/together.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "verbs/verbs.h"
#include "comm/comm.h"
#include "report/results.h"
#ifdef __linux__
#include <sys/prctl.h>
#endif

/* ---- a process of mpirun ---- */

static int64_t number_of(const char *name, int64_t least)
{
    const char *text = getenv(name);
    char *end = NULL;
    long long n = text ? strtoll(text, &end, 10) : -1;
    return text && end != text && !*end && n >= least ? n : -1;
}

mti_launch mti_launch_get(void)
{
    /* Hydra (MPICH, Intel MPI) and Slurm's PMI-2; Open MPI */
    static const char *const names[][2] = {{"PMI_SIZE", "PMI_RANK"},
                                           {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        mti_launch l = {number_of(names[i][0], 1), number_of(names[i][1], 0), names[i][0]};
        if (l.ranks > 1 && l.rank >= 0 && l.rank < l.ranks) return l;
    }
    return (mti_launch){1, 0, NULL};
}

/* Whether the launcher's pipe is open, if it has one (PMI-1). MPICH ends a process without it. */
static bool is_reached(void)
{
    const char *fd = getenv("PMI_FD");
    return !fd || fcntl(atoi(fd), F_GETFD) >= 0;
}

void mti_launch_abort(int status)
{
    const char *fd = getenv("PMI_FD");
    usleep(MTI_LAUNCHER_READS_US);
    if (fd) dprintf(atoi(fd), "cmd=abort exitcode=%d\n", status);
}

static void report_killed(const mti_launch *l, pid_t child, int number)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    mti_print(
        stderr, "memtape: rank %lld of %lld was killed by signal %d, %s (process %lld on %s)%s\n",
        (long long)l->rank, (long long)l->ranks, number, strsignal(number), (long long)child, host,
        number == SIGKILL ? "; where nobody did it, the system did, as its memory ran out" : "");
}

/* Hands signals on to the child until it ends; one that comes again in the same second only once,
 * as the terminal and mpirun both send it. */
static int wait_for(const mti_launch *l, pid_t child, const sigset_t *waited)
{
    int passed = 0, ended;
    double at = 0;
    for (;;) {
        int number = 0;
        sigwait(waited, &number);
        if (number && number != SIGCHLD && (number != passed || mti_now() - at > 1)) {
            passed = number;
            at = mti_now();
            kill(child, number);
        }
        if (waitpid(child, &ended, WNOHANG) == child && !(WIFSTOPPED(ended))) break;
    }
    if (!WIFSIGNALED(ended)) return WEXITSTATUS(ended);
    if (WTERMSIG(ended) != passed) report_killed(l, child, WTERMSIG(ended));
    mti_launch_abort(128 + WTERMSIG(ended));
    return 128 + WTERMSIG(ended);
}

void mti_end_with_parent(int number)
{
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, number);
#else
    (void)number;
#endif
}

bool mti_launch_watch(const mti_launch *l, int *status)
{
    static const int handed_on[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    sigset_t waited, before;
    if (l->ranks == 1) return false;
    /* UCX's handler would keep a rank that dies of a fault, and all that wait for it. */
    setenv("UCX_HANDLE_ERRORS", "none", 0);
    setenv("UCX_ERROR_SIGNALS", "", 0);
    sigemptyset(&waited);
    for (size_t i = 0; i < sizeof handed_on / sizeof *handed_on; i++)
        sigaddset(&waited, handed_on[i]);
    sigprocmask(SIG_BLOCK, &waited, &before);
    pid_t parent = getpid(), child = fork();
    if (child > 0) {
        *status = wait_for(l, child, &waited);
        return true;
    }
    if (child == 0) {
        setpgid(0, 0); /* a signal to mpirun's group comes once, from the parent */
        mti_end_with_parent(SIGKILL);
        if (getppid() != parent) _exit(1);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return false; /* without a child: nobody watches, and the rank runs all the same */
}

/* ---- beginning ---- */

static bool same_words(mt_comm *world, int argc, char **argv)
{
    int64_t own = argc, ranks = mt_comm_group(world).ranks, most = 0;
    int64_t *all = mti_calloc((size_t)ranks, sizeof *all);
    bool ok = all && mti_comm_share(world, &own, sizeof own, all);
    for (int64_t r = 0; ok && r < ranks; r++) most = all[r] > most ? all[r] : most;
    mti_free(all);
    for (int64_t i = 1; ok && i < most; i++) {
        char what[64];
        const char *word = i < argc ? argv[i] : "", *before = i - 1 < argc ? argv[i - 1] : "";
        bool value = i > 1 && *before == '-' && *word != '-' && !strchr(before, '=');
        snprintf(what, sizeof what, "%s", before);
        if (!value) snprintf(what, sizeof what, "argument %lld", (long long)i);
        ok = mt_comm_agree(world, what, word) == MT_OK;
    }
    return ok;
}

/* MPI's libraries map so much to begin with; where they cannot, UCX ends the process by an
 * assertion. */
#define MPI_ADDRESSES ((size_t)256 << 20)

static bool has_addresses(void)
{
    void *room = mmap(NULL, MPI_ADDRESSES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return mti_fail_bool(MT_ERR_MEMORY,
                             "out of memory: MPI takes 256 MiB of address space to begin with, and "
                             "the system has less left (ulimit -v?)");
    munmap(room, MPI_ADDRESSES);
    return true;
}

/* With an MPI that is not the launcher's each process would be the only one. */
static mt_comm *open_world(const mti_launch *l)
{
    if (!is_reached())
        return mti_fail_null(MT_ERR_UNSUPPORTED,
                             "PMI_FD, the pipe to mpirun, is not open: a program between has "
                             "closed it, or mpirun is gone; start this one by mpirun itself, or "
                             "unset %s and run it alone",
                             l->variable);
    mt_comm *world = has_addresses() ? mt_comm_open("mpi") : NULL;
    mt_group group = mt_comm_group(world);
    if (!world || (group.ranks == l->ranks && group.rank == l->rank)) return world;
    mt_comm_free(world);
    return mti_fail_null(
        MT_ERR_UNSUPPORTED,
        "%s says %lld ranks, and for MPI this is rank %lld of %lld: it was started "
        "by another MPI's mpirun than the one libmemtape-mpi.so is built with "
        "(docs/faults.md), or by none; then unset %s",
        l->variable, (long long)l->ranks, (long long)group.rank, (long long)group.ranks,
        l->variable);
}

mt_comm *mti_together_begin(const mti_launch *l, int argc, char **argv, int *status)
{
    mt_comm *world = open_world(l);
    if (world && mt_comm_agree(world, "the version", MTI_VERSION) == MT_OK &&
        same_words(world, argc, argv))
        return world;
    *status = world ? MTI_EXIT_USAGE : MTI_EXIT_FAILED;
    if (!world)
        mti_print(stderr, "memtape: rank %lld of %lld: %s\n", (long long)l->rank,
                  (long long)l->ranks, mt_last_error());
    else if (l->rank == 0)
        mti_print(stderr, "memtape: %s\n", mt_last_error());
    if (!world) mti_launch_abort(*status);
    mt_comm_free(world);
    return NULL;
}

/* ---- gathering ---- */

bool mti_together_gather(mt_comm *world, json_t *own, json_t **out)
{
    char *text = mti_json_complete(own, JSON_COMPACT), *all = NULL;
    json_decref(own);
    int64_t ranks = mt_comm_group(world).ranks;
    bool ok = text && mti_comm_gather_texts(world, text, &all);
    *out = NULL;
    if (ok && all) {
        json_t *list = json_array();
        const char *at = all;
        for (int64_t i = 0; i < ranks; i++, at += strlen(at) + 1)
            mti_json_push(list, mti_json_read(at, strlen(at), NULL));
        *out = mti_gathered_json(list);
    }
    mti_free(all);
    mti_free(text);
    return ok;
}

/* ---- ending ---- */

typedef struct ending {
    int64_t status;
    char message[600];
} ending;

/* The first that failed; -1: none. */
static int64_t first_failure(const ending *all, int64_t ranks, bool *alike)
{
    int64_t first = -1;
    *alike = true;
    for (int64_t r = 0; r < ranks; r++) {
        if (all[r].status && first < 0) first = r;
        *alike = *alike && !strcmp(all[r].message, all[0].message);
    }
    return first;
}

int mti_together_end(mt_comm *world, const char *name, int status, const char *message)
{
    mt_group group = mt_comm_group(world);
    ending own = {.status = status}, *all = mti_calloc((size_t)group.ranks, sizeof *all);
    if (status) snprintf(own.message, sizeof own.message, "%s", message);
    if (!all || !mti_comm_share(world, &own, sizeof own, all)) {
        mti_free(all);
        mti_together_abort(world, name);
        return MTI_EXIT_FAILED;
    }
    bool alike;
    int64_t first = first_failure(all, group.ranks, &alike);
    if (group.rank == 0 && first >= 0 && *all[first].message) {
        mti_print(stderr, "%s: ", name);
        if (!alike)
            fprintf(stderr, "rank %lld of %lld: ", (long long)first, (long long)group.ranks);
        mti_print(stderr, "%s\n", all[first].message);
    }
    for (int64_t r = 0; r < group.ranks; r++)
        if (all[r].status > status) status = (int)all[r].status;
    mti_free(all);
    return status;
}

#define SECONDS_TO_END 5 /* until the rank that reports has ended all */

void mti_together_abort(mt_comm *world, const char *name)
{
    mt_group group = mt_comm_group(world);
    const char *text = mt_last_error();
    bool named = !strncmp(text, "rank ", 5); /* another one, perhaps */
    if (!mti_comm_reports(world))
        sleep(SECONDS_TO_END);
    else if (named)
        mti_print(stderr, "%s: %s\n", name, text);
    else
        mti_print(stderr, "%s: rank %lld of %lld: %s\n", name, (long long)group.rank,
                  (long long)group.ranks, *text ? text : "failed without an error message");
    fflush(NULL);
    usleep(MTI_LAUNCHER_READS_US);
    mt_comm_abort(world);
}
