/* launch.c: the processes that mpirun starts. */
#include "cli/launch.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/base.h"

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

bool mti_launch_reached(void)
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

static void report(const mti_launch *l, pid_t child, int number)
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
        siginfo_t info;
        int number = sigwaitinfo(waited, &info);
        if (number > 0 && number != SIGCHLD && (number != passed || mti_now() - at > 1)) {
            passed = number;
            at = mti_now();
            kill(child, number);
        }
        if (waitpid(child, &ended, WNOHANG) == child && !(WIFSTOPPED(ended))) break;
    }
    if (!WIFSIGNALED(ended)) return WEXITSTATUS(ended);
    if (WTERMSIG(ended) != passed) report(l, child, WTERMSIG(ended));
    mti_launch_abort(128 + WTERMSIG(ended));
    return 128 + WTERMSIG(ended);
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
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return false; /* without a child: nobody watches, and the rank runs all the same */
}
