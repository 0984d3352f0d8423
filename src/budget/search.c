/* search.c: the cheapest way through the layers within a budget, by dynamic programming.
 *
 * With S the bytes that the segments before a segment keep, its forward and its backward take at
 * most S + forward and S + backward: gradients of later layers are there whatever was chosen, and
 * nothing else of other layers is alive. So of two ways to layer i, the one that keeps no less and
 * costs no less can be dropped: what remains is a front of (bytes kept, cost) at each layer, and
 * the answer is exact.
 *
 * A front may have many thousands of ways, most of which no answer takes. So each way is first
 * compared with a lower bound on what the layers after it cost, from a relaxation: bytes beyond the
 * budget may be bought at a price each (Everett 1963). Ways above a limit are dropped; the limit is
 * raised until an answer lies below it, which is then the cheapest of all. */
#include <math.h>
#include <stdlib.h>
#include "budget/budget.h"

/* One way to begin at a layer, by way of the one before. */
typedef struct way {
    int64_t kept;
    uint64_t flops, remade;
    size_t from; /* index among the ways of `layer` */
    int64_t layer;
    const mti_budget_option *option;
} way;

typedef struct ways {
    way *at;
    size_t n, cap;
    size_t n_pruned; /* the first so many are a front */
} ways;

static bool is_cheaper(const way *a, const way *b)
{
    return a->flops != b->flops ? a->flops < b->flops : a->remade < b->remade;
}

/* Fewest bytes first, then the cheapest; the other keys only make the choice among equals fixed. */
static int by_kept(const void *x, const void *y)
{
    const way *a = x, *b = y;
    if (a->kept != b->kept) return a->kept < b->kept ? -1 : 1;
    if (is_cheaper(a, b) != is_cheaper(b, a)) return is_cheaper(a, b) ? -1 : 1;
    if (a->layer != b->layer) return a->layer > b->layer ? -1 : 1;
    if (a->option != b->option) return a->option < b->option ? -1 : 1;
    return (a->from > b->from) - (a->from < b->from);
}

static void prune(ways *w)
{
    size_t n = 0;
    if (w->n > 1) qsort(w->at, w->n, sizeof *w->at, by_kept);
    for (size_t i = 0; i < w->n; i++)
        if (!n || is_cheaper(&w->at[i], &w->at[n - 1])) w->at[n++] = w->at[i];
    w->n = w->n_pruned = n;
}

/* Whether a way of the front keeps no more and costs no more. */
static bool is_beaten(const ways *w, const way *item)
{
    size_t low = 0, high = w->n_pruned; /* those before `low` keep no more */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (w->at[middle].kept <= item->kept)
            low = middle + 1;
        else
            high = middle;
    }
    return low && !is_cheaper(item, &w->at[low - 1]);
}

static bool add_way(ways *w, way item)
{
    if (is_beaten(w, &item)) return true;
    if (w->n > 256 && w->n > 2 * w->n_pruned) prune(w);
    return MTI_PUSH(w, item);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t most_of(const mti_budget_option *o) { return larger(o->forward, o->backward); }

/* ---- the relaxation ---- */

typedef struct relaxation {
    const mti_budget_table *t;
    int64_t n_bytes, room; /* room: all that segments may keep together */
    double weight; /* of a FLOP, in bytes of recomputed results: more than all of them together */
    double price;  /* of a byte kept */
    double *tail;  /* [layers + 1]: cost and price of the cheapest way on from layer i */
    int64_t *tail_kept;  /* [layers + 1]: what that way keeps */
    int64_t *tail_least; /* [layers + 1]: the least that any way on from there keeps */
} relaxation;

#define NO_WAY ((int64_t)1 << 61)

static double cost_of(const relaxation *r, uint64_t flops, uint64_t remade)
{
    return (double)flops * r->weight + (double)remade;
}

/* Drops segments that do not fit by themselves; the sum of the others counts at the end only. */
static void relax(relaxation *r, double price)
{
    r->price = price;
    for (int64_t i = r->t->layers - 1; i >= 0; i--) {
        r->tail[i] = HUGE_VAL;
        r->tail_least[i] = r->tail_kept[i] = NO_WAY;
        for (size_t k = 0; k < r->t->at[i].n; k++) {
            const mti_budget_option *o = &r->t->at[i].at[k];
            int64_t to = i + o->n;
            if (most_of(o) > r->n_bytes || r->tail_least[to] == NO_WAY) continue;
            double value = cost_of(r, o->flops, o->remade) + price * (double)o->kept + r->tail[to];
            if (o->kept + r->tail_least[to] < r->tail_least[i])
                r->tail_least[i] = o->kept + r->tail_least[to];
            if (value >= r->tail[i]) continue;
            r->tail[i] = value;
            r->tail_kept[i] = o->kept + r->tail_kept[to];
        }
    }
}

/* Slightly below the true bound, because sums are rounded. */
static double bound(const relaxation *r, int64_t layer, int64_t kept, double cost)
{
    double on = r->tail[layer] - r->price * (double)(r->room - kept);
    return cost + on - 1e-10 * (cost + r->tail[layer]);
}

/* The price at which the bound is highest; false if nothing fits. */
static bool find_price(relaxation *r)
{
    relax(r, 0);
    if (r->tail_least[0] > r->room) return false;
    if (r->tail_kept[0] <= r->room) return true;
    double low = 0, high = r->weight;
    for (relax(r, high); r->tail_kept[0] > r->room && high < 1e60; relax(r, high)) {
        low = high;
        high *= 16;
    }
    for (int i = 0; i < 40; i++) {
        double middle = (low + high) / 2;
        relax(r, middle);
        *(r->tail_kept[0] > r->room ? &low : &high) = middle;
    }
    relax(r, high);
    return true;
}

/* What all segments may keep together: the budget less the head's or the last segment's own needs.
 */
static int64_t room_of(const mti_budget_table *t, int64_t n_bytes)
{
    int64_t beyond = NO_WAY;
    for (int64_t i = 0; i < t->layers; i++)
        for (size_t k = 0; k < t->at[i].n; k++) {
            const mti_budget_option *o = &t->at[i].at[k];
            int64_t more = most_of(o) - o->kept;
            if (i + o->n == t->layers && more < beyond) beyond = more;
        }
    return n_bytes - larger(beyond, t->head);
}

static double weight_of(const mti_budget_table *t)
{
    double sum = 1;
    for (int64_t i = 0; i < t->layers; i++) {
        uint64_t most = 0;
        for (size_t k = 0; k < t->at[i].n; k++)
            if (t->at[i].at[k].remade > most) most = t->at[i].at[k].remade;
        sum += (double)most;
    }
    return sum;
}

static void relaxation_free(relaxation *r)
{
    mti_free(r->tail);
    mti_free(r->tail_kept);
    mti_free(r->tail_least);
}

static bool relaxation_make(relaxation *r, const mti_budget_table *t, int64_t n_bytes)
{
    size_t n = (size_t)t->layers + 1;
    *r = (relaxation){.t = t,
                      .n_bytes = n_bytes,
                      .room = room_of(t, n_bytes),
                      .weight = weight_of(t),
                      .tail = mti_calloc(n, sizeof(double)),
                      .tail_kept = mti_calloc(n, sizeof(int64_t)),
                      .tail_least = mti_calloc(n, sizeof(int64_t))};
    if (r->tail && r->tail_kept && r->tail_least) return true;
    relaxation_free(r);
    return false;
}

/* ---- all ways below a limit ---- */

static bool is_hopeless(const relaxation *r, int64_t layer, const way *w, double limit)
{
    return w->kept + r->tail_least[layer] > r->room ||
           bound(r, layer, w->kept, cost_of(r, w->flops, w->remade)) > limit;
}

/* ways[i]: to begin at layer i, for 0 .. layers. */
static bool fill(const relaxation *r, double limit, ways *ways_to)
{
    const mti_budget_table *t = r->t;
    if (!add_way(&ways_to[0], (way){0})) return false;
    for (int64_t i = 0; i < t->layers; i++) {
        prune(&ways_to[i]);
        for (size_t k = 0; k < t->at[i].n; k++) {
            const mti_budget_option *o = &t->at[i].at[k];
            for (size_t j = 0; j < ways_to[i].n; j++) {
                const way *w = &ways_to[i].at[j];
                if (w->kept + most_of(o) > r->n_bytes) break; /* the next keep more */
                const way next = {.kept = w->kept + o->kept,
                                  .flops = w->flops + o->flops,
                                  .remade = w->remade + o->remade,
                                  .from = j,
                                  .layer = i,
                                  .option = o};
                if (!is_hopeless(r, i + o->n, &next, limit) && !add_way(&ways_to[i + o->n], next))
                    return false;
            }
        }
    }
    prune(&ways_to[t->layers]);
    return true;
}

static int64_t peak_of(const mti_budget_table *t, const mti_budget_answer *a)
{
    int64_t kept = 0, peak = t->rest;
    for (size_t i = 0; i < a->path.n; i++) {
        const mti_budget_option *o = &a->path.at[i];
        peak = larger(peak, kept + larger(o->forward, o->backward));
        kept += o->kept;
    }
    return larger(peak, kept + t->head);
}

static bool follow(const mti_budget_table *t, const ways *ways_to, const way *last,
                   mti_budget_answer *a)
{
    *a = (mti_budget_answer){.flops = last->flops, .remade = last->remade};
    for (const way *w = last; w->option; w = &ways_to[w->layer].at[w->from])
        if (!MTI_PUSH(&a->path, *w->option)) return false;
    for (size_t i = 0; i < a->path.n / 2; i++) {
        mti_budget_option *x = &a->path.at[i], *y = &a->path.at[a->path.n - 1 - i], other = *x;
        *x = *y;
        *y = other;
    }
    a->peak = peak_of(t, a);
    return true;
}

/* Whether any way fits: only the way that keeps least matters. */
static bool can_fit(const mti_budget_table *t, int64_t n_bytes, int64_t *kept)
{
    kept[0] = 0;
    for (int64_t i = 1; i <= t->layers; i++) kept[i] = NO_WAY;
    for (int64_t i = 0; i < t->layers; i++)
        for (size_t k = 0; k < t->at[i].n; k++) {
            const mti_budget_option *o = &t->at[i].at[k];
            if (kept[i] + most_of(o) <= n_bytes && kept[i] + o->kept < kept[i + o->n])
                kept[i + o->n] = kept[i] + o->kept;
        }
    return t->rest <= n_bytes && kept[t->layers] + t->head <= n_bytes;
}

/* Searches below the limit only. Makes a new a->path. */
static bool search_below(const relaxation *r, double limit, mti_budget_answer *a, bool *found)
{
    const mti_budget_table *t = r->t;
    ways *ways_to = mti_calloc((size_t)t->layers + 1, sizeof *ways_to);
    if (!ways_to) return false;
    bool ok = fill(r, limit, ways_to);
    const ways *ends = &ways_to[t->layers];
    /* Costs fall as bytes rise: the last that fits is the cheapest. */
    size_t n = ends->n;
    while (n && ends->at[n - 1].kept + t->head > r->n_bytes) n--;
    if (ok && n) {
        const way *best = &ends->at[n - 1];
        *found = cost_of(r, best->flops, best->remade) <= limit;
        ok = !*found || follow(t, ways_to, best, a);
    }
    for (int64_t i = 0; i <= t->layers; i++) mti_free(ways_to[i].at);
    mti_free(ways_to);
    return ok;
}

/* Raises the limit until an answer lies below it; searches below `limit` only if that is >= 0. */
static bool search_once(const mti_budget_table *t, int64_t n_bytes, double limit,
                        mti_budget_answer *a, bool *found)
{
    relaxation r;
    *a = (mti_budget_answer){0};
    *found = false;
    if (!relaxation_make(&r, t, n_bytes)) return false;
    bool ok = true;
    if (can_fit(t, n_bytes, r.tail_kept) && find_price(&r)) {
        double least = bound(&r, 0, 0, 0), step = 1 + r.tail[0] * 0x1p-16;
        if (limit >= 0) ok = search_below(&r, limit, a, found);
        for (int i = 0; limit < 0 && ok && !*found; i++, step *= 4)
            ok = search_below(&r, i < 8 ? least + step : HUGE_VAL, a, found);
    }
    relaxation_free(&r);
    return ok;
}

bool mti_budget_search(const mti_budget_table *t, int64_t n_bytes, mti_budget_answer *a,
                       bool *found)
{
    bool ok = search_once(t, n_bytes, -1, a, found), lower = ok && *found;
    while (ok && lower) {
        mti_budget_answer next;
        double cost = (double)a->flops * weight_of(t) + (double)a->remade;
        ok = search_once(t, a->peak - 1, cost, &next, &lower);
        lower = lower && next.flops == a->flops && next.remade == a->remade; /* not just rounded */
        mti_free((lower ? a : &next)->path.at);
        if (lower) *a = next;
    }
    if (!ok) {
        mti_free(a->path.at);
        *a = (mti_budget_answer){0};
    }
    return ok;
}

bool mti_budget_least(const mti_budget_table *t, int64_t most, int64_t *least)
{
    int64_t *kept = mti_calloc((size_t)t->layers + 1, sizeof *kept);
    if (!kept) return false;
    int64_t too_little = t->rest - 1;
    *least = most;
    while (*least - too_little > 1) {
        int64_t middle = too_little + (*least - too_little) / 2;
        *(can_fit(t, middle, kept) ? least : &too_little) = middle;
    }
    mti_free(kept);
    return true;
}
