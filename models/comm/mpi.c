/* mpi.c: libmemtape-mpi.so, ranks that are processes which mpirun started. */
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "comm/comm.h"

/* Spans go in pieces, as MPI counts in ints. */
#define MOST_BYTES ((size_t)1 << 30)

typedef struct mpi_end {
    MPI_Comm comm;
    int tests;             /* of a wait before another process gets the core */
    MPI_Request *requests; /* [2 ranks] */
    MPI_Status *statuses;  /* the same */
    struct posted {
        MPI_Request *pieces;
        int n, cap;
    } posted[MTI_WAYS];
} mpi_end;

static bool failed(const char *what, int code, char *error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (code == MPI_SUCCESS) return false;
    MPI_Error_string(code, text, &n);
    snprintf(error, MTI_COMM_ERROR, "%s: %.180s", what, text);
    return true;
}

/* comm is taken over. */
static bool end_of(MPI_Comm comm, int tests, mti_comm_end *end, char *error)
{
    int ranks, rank;
    if (failed("MPI_Comm_size", MPI_Comm_size(comm, &ranks), error) ||
        failed("MPI_Comm_rank", MPI_Comm_rank(comm, &rank), error) ||
        failed("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), error))
        return false;
    mpi_end *m = malloc(sizeof *m);
    MPI_Request *requests = malloc(2 * (size_t)ranks * sizeof *requests);
    MPI_Status *statuses = malloc(2 * (size_t)ranks * sizeof *statuses);
    if (!m || !requests || !statuses) {
        free(m);
        free(requests);
        free(statuses);
        snprintf(error, MTI_COMM_ERROR, "no memory");
        return false;
    }
    *m = (mpi_end){.comm = comm, .tests = tests, .requests = requests, .statuses = statuses};
    *end = (mti_comm_end){m, ranks, rank};
    return true;
}

/* With a core for each rank of this machine a wait is short: what the others send is under way.
 * With fewer, who waits holds up those it waits for. */
#define TESTS_WITH_A_CORE 1000
#define TESTS_WITHOUT     20

static bool find_tests(int *tests, char *error)
{
    MPI_Comm here;
    int ranks;
    cpu_set_t set;
    if (failed("MPI_Comm_split_type",
               MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here),
               error) ||
        failed("MPI_Comm_size", MPI_Comm_size(here, &ranks), error))
        return false;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : ranks;
    *tests = ranks <= cores ? TESTS_WITH_A_CORE : TESTS_WITHOUT;
    return !failed("MPI_Comm_free", MPI_Comm_free(&here), error);
}

static bool open_world(mti_comm_end *end, char *error)
{
    int begun, level, tests;
    MPI_Initialized(&begun);
    if (begun) {
        snprintf(error, MTI_COMM_ERROR, "MPI has been started in this process before");
        return false;
    }
    /* MPICH's own line about MPI_Abort would follow the one that says why. */
    setenv("MPIR_CVAR_SUPPRESS_ABORT_MESSAGE", "1", 0);
    return !failed("MPI_Init_thread", MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level),
                   error) &&
           find_tests(&tests, error) && end_of(MPI_COMM_WORLD, tests, end, error);
}

static size_t piece(const mti_span *span, size_t from)
{
    size_t left = span->n_bytes - from;
    return left < MOST_BYTES ? left : MOST_BYTES;
}

/* Whether the message that came has n bytes. */
static bool is_whole(const MPI_Status *status, size_t n, char *error)
{
    int got;
    MPI_Get_count(status, MPI_BYTE, &got);
    if (got != MPI_UNDEFINED && (size_t)got == n) return true;
    snprintf(error, MTI_COMM_ERROR, "rank %d sends %d bytes; need %zu", status->MPI_SOURCE, got, n);
    return false;
}

#define NAP_NS 20000

/* Waits for n requests. MPI's own wait keeps its core busy, and the rank that it waits for, or
 * other programs, may need it. Naps, as who yields instead comes last among those that want the
 * core. */
static bool wait_for(const mpi_end *m, int n, MPI_Request *requests, MPI_Status *statuses,
                     char *error)
{
    int done = 0;
    for (int tests = 0; !done; tests++) {
        if (failed("MPI_Testall", MPI_Testall(n, requests, &done, statuses), error)) return false;
        if (!done && tests >= m->tests) nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    return true;
}

/* exchange_part begins these receives first, in this order. */
static bool received_all(const mti_comm_end *end, const mti_span *in, size_t from, char *error)
{
    const mpi_end *m = end->state;
    int n = 0;
    for (int64_t i = 1; i < end->ranks; i++) {
        const mti_span *span = &in[(end->rank + end->ranks - i) % end->ranks];
        if (span->n_bytes > from && !is_whole(&m->statuses[n++], piece(span, from), error))
            return false;
    }
    return true;
}

static bool exchange_part(const mti_comm_end *end, const mti_span *out, const mti_span *in,
                          size_t from, bool *more, char *error)
{
    const mpi_end *m = end->state;
    int n = 0;
    *more = false;
    for (int way = 0; way < 2; way++)
        for (int64_t i = 1; i < end->ranks; i++) {
            int64_t r = (way ? end->rank + i : end->rank + end->ranks - i) % end->ranks;
            const mti_span *span = way ? &out[r] : &in[r];
            if (span->n_bytes <= from) continue;
            size_t now = piece(span, from);
            char *at = (char *)span->at + from;
            *more = *more || span->n_bytes > from + now;
            int code = way ? MPI_Isend(at, (int)now, MPI_BYTE, (int)r, 0, m->comm, &m->requests[n])
                           : MPI_Irecv(at, (int)now, MPI_BYTE, (int)r, 0, m->comm, &m->requests[n]);
            if (failed(way ? "MPI_Isend" : "MPI_Irecv", code, error)) return false;
            n++;
        }
    return wait_for(m, n, m->requests, m->statuses, error) && received_all(end, in, from, error);
}

static bool exchange(const mti_comm_end *end, const mti_span *out, const mti_span *in, char *error)
{
    bool more = true;
    for (size_t from = 0; more; from += MOST_BYTES)
        if (!exchange_part(end, out, in, from, &more, error)) return false;
    return true;
}

/* ---- between neighbours: a tag each way ---- */

static bool room_for_pieces(struct posted *p, size_t n)
{
    if ((size_t)p->cap >= n) return true;
    MPI_Request *more = n > INT_MAX ? NULL : realloc(p->pieces, n * sizeof *more);
    if (more) p->pieces = more, p->cap = (int)n;
    return more != NULL;
}

static bool post(const mti_comm_end *end, mti_way way, const mti_span *what, char *error)
{
    mpi_end *m = end->state;
    struct posted *p = &m->posted[way];
    int to = (int)mti_neighbour(end, way, true);
    if (!room_for_pieces(p, what->n_bytes / MOST_BYTES + 1)) {
        snprintf(error, MTI_COMM_ERROR, "no memory for %zu bytes' messages", what->n_bytes);
        return false;
    }
    size_t from = 0;
    do {
        size_t now = piece(what, from);
        int code = MPI_Isend((char *)what->at + from, (int)now, MPI_BYTE, to, 1 + (int)way, m->comm,
                             &p->pieces[p->n]);
        if (failed("MPI_Isend", code, error)) return false;
        p->n++;
        from += now;
    } while (from < what->n_bytes);
    return true;
}

static bool fetch(const mti_comm_end *end, mti_way way, const mti_span *where, char *error)
{
    const mpi_end *m = end->state;
    int source = (int)mti_neighbour(end, way, false);
    size_t from = 0;
    do {
        MPI_Status status;
        MPI_Request request;
        size_t now = piece(where, from);
        int code = MPI_Irecv((char *)where->at + from, (int)now, MPI_BYTE, source, 1 + (int)way,
                             m->comm, &request);
        if (failed("MPI_Irecv", code, error) || !wait_for(m, 1, &request, &status, error) ||
            !is_whole(&status, now, error))
            return false;
        from += now;
    } while (from < where->n_bytes);
    return true;
}

static bool settle(const mti_comm_end *end, mti_way way, char *error)
{
    mpi_end *m = end->state;
    struct posted *p = &m->posted[way];
    int n = p->n;
    p->n = 0;
    for (int i = 0; i < n; i++) {
        MPI_Status status;
        if (!wait_for(m, 1, &p->pieces[i], &status, error)) return false;
    }
    return true;
}

/* ---- opening and closing ---- */

static bool split(const mti_comm_end *end, int64_t color, int64_t key, mti_comm_end *part,
                  char *error)
{
    const mpi_end *m = end->state;
    MPI_Comm comm;
    if (color < 0 || color > INT_MAX || key < INT_MIN || key > INT_MAX) {
        snprintf(error, MTI_COMM_ERROR, "color %lld, key %lld; MPI needs ints, the color from 0 on",
                 (long long)color, (long long)key);
        return false;
    }
    return !failed("MPI_Comm_split", MPI_Comm_split(m->comm, (int)color, (int)key, &comm), error) &&
           end_of(comm, m->tests, part, error);
}

static bool aside(const mti_comm_end *end, mti_comm_end *part, char *error)
{
    const mpi_end *m = end->state;
    int level;
    MPI_Comm comm;
    if (failed("MPI_Query_thread", MPI_Query_thread(&level), error)) return false;
    if (level < MPI_THREAD_MULTIPLE) {
        snprintf(
            error, MTI_COMM_ERROR,
            "this MPI library lets one thread at a time call it: a rank cannot exchange while "
            "it computes; need reduce=after, and fsdp=module or fsdp=block (--recipe plain:...)");
        return false;
    }
    return !failed("MPI_Comm_dup", MPI_Comm_dup(m->comm, &comm), error) &&
           end_of(comm, m->tests, part, error);
}

#define FAILED_TAG    (1 + MTI_WAYS)
#define SECONDS_APART 0.25

/* Tells the ranks after this one, and listens for those before it. */
static bool reports(const mti_comm_end *end)
{
    const mpi_end *m = end->state;
    char nothing = 0;
    for (int64_t r = end->rank + 1; r < end->ranks; r++) {
        MPI_Request request;
        if (MPI_Isend(&nothing, 0, MPI_BYTE, (int)r, FAILED_TAG, m->comm, &request) == MPI_SUCCESS)
            MPI_Request_free(&request);
    }
    double until = MPI_Wtime() + SECONDS_APART;
    int heard = 0;
    while (end->rank > 0 && !heard && MPI_Wtime() < until) {
        MPI_Status status;
        if (MPI_Iprobe(MPI_ANY_SOURCE, FAILED_TAG, m->comm, &heard, &status)) break;
    }
    return !heard;
}

static void close_end(const mti_comm_end *end, bool after_failure)
{
    mpi_end *m = end->state;
    if (after_failure)
        MPI_Abort(MPI_COMM_WORLD, 1); /* does not return */
    else if (m->comm == MPI_COMM_WORLD)
        MPI_Finalize();
    else
        MPI_Comm_free(&m->comm);
    free(m->requests);
    free(m->statuses);
    for (int way = 0; way < MTI_WAYS; way++) free(m->posted[way].pieces);
    free(m);
}

MT_API const mti_comm_kind *mti_comm_entry(size_t n_kind);
const mti_comm_kind *mti_comm_entry(size_t n_kind)
{
    static const mti_comm_kind kind = {.n_kind = sizeof kind,
                                       .kind = "mpi",
                                       .open = open_world,
                                       .exchange = exchange,
                                       .split = split,
                                       .close = close_end,
                                       .post = post,
                                       .fetch = fetch,
                                       .settle = settle,
                                       .reports = reports,
                                       .aside = aside};
    return n_kind == sizeof kind ? &kind : NULL;
}
