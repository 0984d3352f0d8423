/* threads.c: ranks that are threads of one process: each copies from the memory of the others while
 * all of them are in the call. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "comm/comm.h"

/* What a rank shows to the others. */
typedef struct shown {
    const mti_span *out;
    int64_t color, key;
} shown;

/* What a rank has posted one way. */
typedef struct posted {
    enum { EMPTY, POSTED, BEING_COPIED } state;
    mti_span what;
} posted;

typedef struct team {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t ranks, here, left;
    uint64_t round;             /* barriers so far */
    int64_t gone;               /* the first rank that left; -1: none */
    shown *shown;               /* [ranks] */
    void **part;                /* [ranks] of a split: the team of its colour */
    bool *away;                 /* [ranks]: has left */
    posted (*posted)[MTI_WAYS]; /* [ranks] */
} team;

static void team_free(team *m)
{
    if (!m) return;
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    mti_free(m->shown);
    mti_free(m->part);
    mti_free(m->away);
    mti_free(m->posted);
    mti_free(m);
}

static team *team_new(int64_t ranks)
{
    team *m = mti_calloc(1, sizeof *m);
    if (!m) return NULL;
    m->ranks = ranks;
    m->gone = -1;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    size_t n = (size_t)ranks;
    if ((m->shown = mti_calloc(n, sizeof *m->shown)) &&
        (m->part = mti_calloc(n, sizeof *m->part)) && (m->away = mti_calloc(n, sizeof *m->away)) &&
        (m->posted = mti_calloc(n, sizeof *m->posted)))
        return m;
    team_free(m);
    return NULL;
}

/* Waits for all ranks; false if one of them has left. */
static bool barrier(team *m, char *error)
{
    pthread_mutex_lock(&m->lock);
    uint64_t round = m->round;
    if (++m->here == m->ranks) {
        m->here = 0;
        m->round++;
        pthread_cond_broadcast(&m->changed);
    }
    while (m->round == round && m->gone < 0) pthread_cond_wait(&m->changed, &m->lock);
    bool ok = m->round != round;
    if (!ok) {
        m->here--;
        snprintf(error, MTI_COMM_ERROR, "rank %lld has left", (long long)m->gone);
    }
    pthread_mutex_unlock(&m->lock);
    return ok;
}

/* Copies what the others show for this rank. */
static bool take(const team *m, int64_t own, const mti_span *in, char *error)
{
    for (int64_t r = 0; r < m->ranks; r++) {
        const mti_span *from = &m->shown[r].out[own];
        if (r == own) continue;
        if (from->n_bytes != in[r].n_bytes) {
            snprintf(error, MTI_COMM_ERROR, "rank %lld sends %zu bytes; need %zu", (long long)r,
                     from->n_bytes, in[r].n_bytes);
            return false;
        }
        if (from->n_bytes) memcpy(in[r].at, from->at, from->n_bytes);
    }
    return true;
}

static bool exchange(const mti_comm_end *end, const mti_span *out, const mti_span *in, char *error)
{
    team *m = end->state;
    m->shown[end->rank].out = out;
    if (!barrier(m, error)) return false;
    bool ok = take(m, end->rank, in, error);
    return barrier(m, error) && ok; /* until then no rank may change what it shows */
}

/* ---- between neighbours ---- */

static bool post(const mti_comm_end *end, mti_way way, const mti_span *what, char *error)
{
    team *m = end->state;
    int64_t to = mti_neighbour(end, way, true);
    pthread_mutex_lock(&m->lock);
    bool ok = !m->away[to];
    if (ok)
        m->posted[end->rank][way] = (posted){POSTED, *what};
    else
        snprintf(error, MTI_COMM_ERROR, "rank %lld has left", (long long)to);
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return ok;
}

static bool fetch(const mti_comm_end *end, mti_way way, const mti_span *where, char *error)
{
    team *m = end->state;
    int64_t from = mti_neighbour(end, way, false);
    posted *p = &m->posted[from][way];
    pthread_mutex_lock(&m->lock);
    while (p->state != POSTED && !m->away[from]) pthread_cond_wait(&m->changed, &m->lock);
    mti_span what = p->what;
    bool there = p->state == POSTED, ok = there && what.n_bytes == where->n_bytes;
    if (ok) p->state = BEING_COPIED;
    pthread_mutex_unlock(&m->lock);
    if (!there) snprintf(error, MTI_COMM_ERROR, "rank %lld has left", (long long)from);
    if (there && !ok)
        snprintf(error, MTI_COMM_ERROR, "rank %lld sends %zu bytes; need %zu", (long long)from,
                 what.n_bytes, where->n_bytes);
    if (!ok) return false;
    if (what.n_bytes) memcpy(where->at, what.at, what.n_bytes);
    pthread_mutex_lock(&m->lock);
    p->state = EMPTY;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return true;
}

static bool settle(const mti_comm_end *end, mti_way way, char *error)
{
    team *m = end->state;
    int64_t to = mti_neighbour(end, way, true);
    posted *p = &m->posted[end->rank][way];
    pthread_mutex_lock(&m->lock);
    while (p->state == BEING_COPIED || (p->state == POSTED && !m->away[to]))
        pthread_cond_wait(&m->changed, &m->lock);
    bool ok = p->state == EMPTY;
    p->state = EMPTY;
    pthread_mutex_unlock(&m->lock);
    if (!ok) snprintf(error, MTI_COMM_ERROR, "rank %lld has left", (long long)to);
    return ok;
}

/* ---- splitting ---- */

static bool precedes(const team *m, int64_t a, int64_t b)
{
    return m->shown[a].key != m->shown[b].key ? m->shown[a].key < m->shown[b].key : a < b;
}

/* How many ranks have this rank's colour, and how many of those come before it. */
static mti_comm_end place_of(const team *m, int64_t own)
{
    mti_comm_end end = {0};
    for (int64_t r = 0; r < m->ranks; r++) {
        if (m->shown[r].color != m->shown[own].color) continue;
        end.ranks++;
        end.rank += precedes(m, r, own);
    }
    return end;
}

/* The first rank of a colour makes the team for all of them. */
static void *team_of(const team *m, int64_t own)
{
    for (int64_t r = 0; r < m->ranks; r++)
        if (m->shown[r].color == m->shown[own].color && m->part[r]) return m->part[r];
    return NULL;
}

static bool split(const mti_comm_end *end, int64_t color, int64_t key, mti_comm_end *part,
                  char *error)
{
    team *m = end->state;
    m->shown[end->rank].color = color, m->shown[end->rank].key = key;
    if (!barrier(m, error)) return false;
    *part = place_of(m, end->rank);
    m->part[end->rank] = part->rank == 0 ? team_new(part->ranks) : NULL;
    if (!barrier(m, error)) {
        team_free(m->part[end->rank]);
        return false;
    }
    part->state = team_of(m, end->rank);
    if (!part->state) snprintf(error, MTI_COMM_ERROR, "no memory for a group of threads");
    return barrier(m, error) && part->state;
}

static bool aside(const mti_comm_end *end, mti_comm_end *part, char *error)
{
    return split(end, 0, end->rank, part, error);
}

/* ---- ends ---- */

static void interrupt(const mti_comm_end *end)
{
    team *m = end->state;
    pthread_mutex_lock(&m->lock);
    if (m->gone < 0) m->gone = end->rank;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

static void leave(const mti_comm_end *end, bool failed)
{
    team *m = end->state;
    (void)failed;
    pthread_mutex_lock(&m->lock);
    if (m->gone < 0) m->gone = end->rank;
    m->away[end->rank] = true;
    for (int way = 0; way < MTI_WAYS; way++) {
        posted *p = &m->posted[end->rank][way];
        while (p->state == BEING_COPIED) pthread_cond_wait(&m->changed, &m->lock);
        p->state = EMPTY;
    }
    bool last = ++m->left == m->ranks;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (last) team_free(m);
}

static const mti_comm_kind threads = {.n_kind = sizeof threads,
                                      .kind = "threads",
                                      .exchange = exchange,
                                      .split = split,
                                      .close = leave,
                                      .post = post,
                                      .fetch = fetch,
                                      .settle = settle,
                                      .aside = aside,
                                      .interrupt = interrupt};

mt_status mt_comm_of_threads(int64_t ranks, mt_comm **ends)
{
    if (!ends) return mti_fail(MT_ERR_ARGUMENT, "comm_of_threads: the result is NULL");
    if (ranks < 1 || ranks > MTI_COMM_MOST)
        return mti_fail(MT_ERR_ARGUMENT, "comm_of_threads: %lld ranks; need 1 to %d",
                        (long long)ranks, MTI_COMM_MOST);
    team *m = team_new(ranks);
    if (!m) return mt_last_status();
    int64_t n = 0;
    while (n < ranks && (ends[n] = mti_comm_new(&threads, &(mti_comm_end){m, ranks, n}))) n++;
    if (n == ranks) return MT_OK;
    m->left = ranks - n; /* those that were not made */
    for (int64_t r = 0; r < n; r++) mt_comm_free(ends[r]);
    if (n == 0) team_free(m);
    return mt_last_status();
}
