/* start.c: what must hold before main and before any constructor of the libraries.
 *
 * OpenBLAS maps a buffer for each thread, and if the system refuses one it retries for ever. So the
 * program does not start if they do not all fit.
 *
 * OpenBLAS that does not know the CPU takes kernels for an old one, and says so only once it has
 * started; then the program restarts.
 *
 * Stacks: kernels keep tiles of up to 36 KiB on the stack, and OpenBLAS more. If the limit on the
 * main stack is too low, the program gets a larger one; the kernels' other threads have their own.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include "verbs/together.h"
#include "verbs/verbs.h"
#include "memtape/openblas.h"

#define ENOUGH_STACK ((size_t)1 << 20)
#define OWN_STACK    ((size_t)8 << 20)
#define BUFFER_BYTES ((size_t)128 << 20) /* of OpenBLAS, for each thread, at most */
#define MAX_BUFFERS  128                 /* threads that OpenBLAS is built for */
#define OTHERS       ((size_t)16 << 20)  /* what the other libraries map at start */

/* Not getenv, nor stdio below: libc is not initialised yet. */
static const char *setting(char **environment, const char *name)
{
    size_t n = strlen(name);
    for (; *environment; environment++)
        if (!strncmp(*environment, name, n) && (*environment)[n] == '=')
            return *environment + n + 1;
    return NULL;
}

static bool has_enough_stack(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= ENOUGH_STACK;
}

/* OpenBLAS counts the machine's processors, those too that this process may not use. */
static size_t n_buffers(char **environment)
{
    const char *text = setting(environment, "OMP_NUM_THREADS");
    long threads = text ? strtol(text, NULL, 10) : 0, cpus = sysconf(_SC_NPROCESSORS_CONF);
    if (cpus < 1) cpus = MAX_BUFFERS;
    if (threads < 1 || threads > cpus) threads = cpus;
    return threads < MAX_BUFFERS ? (size_t)threads : MAX_BUFFERS;
}

static void settle(int argc, char **argv, char **environment)
{
    static const char text[] =
        "memtape: out of memory: OpenBLAS takes 128 MiB of address space for each thread to begin "
        "with, and the system has less (ulimit -v?); OMP_NUM_THREADS=1 takes the least\n";
    (void)argc, (void)argv;
    size_t n_bytes = n_buffers(environment) * BUFFER_BYTES + OTHERS;
    void *room = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        static const char others[] = "cmd=abort exitcode=1\n"; /* as mti_launch_abort */
        const char *fd = setting(environment, "PMI_FD");
        ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
        if (fd) usleep(MTI_LAUNCHER_READS_US);
        if (fd) written = write((int)strtol(fd, NULL, 10), others, sizeof others - 1);
        (void)written;
        _exit(1);
    }
    munmap(room, n_bytes);
}

/* The loader calls .preinit_array before it initialises any library. With sanitizers, their
 * run-time libraries have to come first. */
#if defined(__has_feature)
#define HAS_FEATURE(x) __has_feature(x)
#else
#define HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    HAS_FEATURE(address_sanitizer) || HAS_FEATURE(thread_sanitizer)
#define BEFORE_ALL ".init_array"
#else
#define BEFORE_ALL ".preinit_array"
#endif
static void (*const before_all[])(int, char **, char **)
    __attribute__((section(BEFORE_ALL), used)) = {settle};

/* ---- after the libraries have started ---- */

/* Not if the variable is set: by the user, or by the restart, whose kernels may not exist. */
bool mti_start_with_fast_kernels(char **argv)
{
    const char *better = mt_openblas_get().better;
    if (!better || getenv(MTI_CORETYPE)) return true;
    if (setenv(MTI_CORETYPE, better, 1) == 0) execv("/proc/self/exe", argv);
    int error = errno;
    mti_print(stderr, "memtape: cannot restart with " MTI_CORETYPE "=%s: %s\n", better,
              strerror(error));
    return error != ENOMEM; /* elsewhere products are slow; without memory nothing is right */
}

typedef struct program {
    mti_main_fn *fn;
    int argc;
    char **argv;
    int status;
} program;

static void *run(void *user)
{
    program *p = user;
    p->status = p->fn(p->argc, p->argv);
    return NULL;
}

int mti_on_enough_stack(mti_main_fn *fn, int argc, char **argv)
{
    if (has_enough_stack()) return fn(argc, argv);
    program p = {fn, argc, argv, MTI_EXIT_FAILED};
    pthread_attr_t attributes;
    pthread_t thread;
    int error = pthread_attr_init(&attributes);
    if (!error) error = pthread_attr_setstacksize(&attributes, OWN_STACK);
    if (!error) error = pthread_create(&thread, &attributes, run, &p);
    if (!error) error = pthread_join(thread, NULL);
    if (error)
        mti_print(stderr,
                  "memtape: the limit on the stack is too low (ulimit -s), and it cannot have a "
                  "thread with a larger one: %s\n",
                  strerror(error));
    return p.status;
}
