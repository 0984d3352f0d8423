/* cheapest_way.c: the cheapest way through the layers within a budget, by dynamic programming.
 *
 * With S the bytes that the segments before a segment keep, its forward and its backward take at
 * most S + forward and S + backward: gradients of later layers are there whatever was chosen, and
 * nothing else of other layers is alive. So a way on from layer i needs some number of bytes beyond
 * S, whatever S is, and of two ways the one that needs no less and costs no less can be dropped:
 * what remains is a front of (bytes needed, cost) at each layer, and the answer is exact. The front
 * at layer 0 has the answers to all budgets, each with the lowest peak for its cost.
 *
 * A front may have many thousands of ways, most of which no answer takes. So each byte that a way
 * needs is given a price, and cost and priced bytes are compared with a lower bound on those of the
 * layers before it (Everett 1963). Ways above a limit are dropped; the limit is raised until an
 * answer lies below it, which is then the cheapest of all. It is a limit on the price of bytes,
 * too, so what was found holds for the budgets below, as long as their answers lie below it. */
#include <math.h>
#include <stdlib.h>
#include "memory/budget.h"

/* One way on from a layer. */
typedef struct way {
    int64_t need; /* the highest allocation, if nothing is kept before it */
    uint64_t flops, remade;
    size_t then; /* index among the ways on from the next segment */
    const mti_budget_option *option;
} way;

typedef struct mti_budget_ways {
    way *at;
    size_t n, cap;
    size_t n_pruned; /* the first so many are a front */
    double least;    /* cost and priced need of one */
} ways;

static bool is_cheaper(const way *a, const way *b)
{
    return a->flops != b->flops ? a->flops < b->flops : a->remade < b->remade;
}

/* Fewest bytes first, then the cheapest; the other keys only make the choice among equals fixed:
 * the first that add_way is given. Else two budgets could give equal plans with unequal rests. */
static int by_need(const void *x, const void *y)
{
    const way *a = x, *b = y;
    if (a->need != b->need) return a->need < b->need ? -1 : 1;
    if (is_cheaper(a, b) != is_cheaper(b, a)) return is_cheaper(a, b) ? -1 : 1;
    if (a->option != b->option) return a->option < b->option ? -1 : 1;
    return (a->then > b->then) - (a->then < b->then);
}

static void prune(ways *w)
{
    size_t n = 0;
    if (w->n > 1) qsort(w->at, w->n, sizeof *w->at, by_need);
    for (size_t i = 0; i < w->n; i++)
        if (!n || is_cheaper(&w->at[i], &w->at[n - 1])) w->at[n++] = w->at[i];
    w->n = w->n_pruned = n;
}

/* The last way of the front that needs at most so much, which is the cheapest such; NULL: none. */
static const way *within(const ways *w, int64_t need)
{
    size_t low = 0, high = w->n_pruned;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (w->at[middle].need <= need)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &w->at[low - 1] : NULL;
}

static bool add_way(ways *w, way item)
{
    const way *other = within(w, item.need);
    if (other && !is_cheaper(&item, other)) return true;
    if (w->n > 256 && w->n > 2 * w->n_pruned) prune(w);
    return MTI_PUSH(w, item);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* What the option needs, if `after` is needed after it. */
static int64_t need_of(const mti_budget_option *o, int64_t after)
{
    return larger(larger(o->forward, o->backward), o->kept + after);
}

/* ---- the relaxation ---- */

typedef struct relaxation {
    const mti_budget_table *t;
    int64_t n_bytes;
    double weight; /* of a FLOP, in bytes of recomputed results: more than all of them together */
    double price;  /* of a byte kept */
    double *cost;  /* [layers + 1]: cost and price of the cheapest way to layer i */
    int64_t *kept; /* [layers + 1]: what that way keeps */
    int64_t *least_kept; /* [layers + 1]: the least that any way to layer i keeps */
    int64_t *least_need; /* [layers + 1]: the least that any way on from there needs */
} relaxation;

#define NO_WAY ((int64_t)1 << 61)

static double cost_of(const relaxation *r, uint64_t flops, uint64_t remade)
{
    return (double)flops * r->weight + (double)remade;
}

/* Some way within the budget takes the option at layer i. */
static bool is_useful(const relaxation *r, int64_t i, const mti_budget_option *o)
{
    return r->least_kept[i] + need_of(o, r->least_need[i + o->n]) <= r->n_bytes;
}

/* Ways whose segments each fit, but not need all fit together. */
static void relax(relaxation *r, double price)
{
    double *cost = r->cost;
    r->price = price;
    for (int64_t i = 1; i <= r->t->layers; i++) cost[i] = HUGE_VAL;
    for (int64_t i = 0; i < r->t->layers; i++)
        for (size_t k = 0; k < r->t->at[i].n; k++) {
            const mti_budget_option *o = &r->t->at[i].at[k];
            double value = cost[i] + cost_of(r, o->flops, o->remade) + price * (double)o->kept;
            if (value >= cost[i + o->n] || !is_useful(r, i, o)) continue;
            cost[i + o->n] = value;
            r->kept[i + o->n] = r->kept[i] + o->kept;
        }
}

/* The price at which the bound on all layers is highest. */
static void find_price(relaxation *r)
{
    int64_t n = r->t->layers, room = r->n_bytes - r->least_need[n];
    double low = 0, high = r->weight;
    for (relax(r, high); r->kept[n] > room && high < 1e60; relax(r, high)) {
        low = high;
        high *= 16;
    }
    for (int i = 0; i < 24; i++) {
        double middle = (low + high) / 2;
        relax(r, middle);
        *(r->kept[n] > room ? &low : &high) = middle;
    }
    relax(r, high);
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

static void find_least_need(const mti_budget_table *t, int64_t *need)
{
    need[t->layers] = t->head;
    for (int64_t i = t->layers - 1; i >= 0; i--) {
        need[i] = NO_WAY;
        for (size_t k = 0; k < t->at[i].n; k++) {
            int64_t it = need_of(&t->at[i].at[k], need[i + t->at[i].at[k].n]);
            if (it < need[i]) need[i] = it;
        }
    }
}

static void find_least_kept(relaxation *r)
{
    for (int64_t i = 1; i <= r->t->layers; i++) r->least_kept[i] = NO_WAY;
    for (int64_t i = 0; i < r->t->layers; i++)
        for (size_t k = 0; k < r->t->at[i].n; k++) {
            const mti_budget_option *o = &r->t->at[i].at[k];
            int64_t kept = r->least_kept[i] + o->kept;
            if (kept < r->least_kept[i + o->n] && is_useful(r, i, o))
                r->least_kept[i + o->n] = kept;
        }
}

static void relaxation_free(relaxation *r)
{
    mti_free(r->cost);
    mti_free(r->kept);
    mti_free(r->least_kept);
    mti_free(r->least_need);
}

static bool relaxation_make(relaxation *r, const mti_budget_table *t, int64_t n_bytes)
{
    size_t n = (size_t)t->layers + 1;
    *r = (relaxation){.t = t,
                      .n_bytes = n_bytes,
                      .weight = weight_of(t),
                      .cost = mti_calloc(n, sizeof(double)),
                      .kept = mti_calloc(n, sizeof(int64_t)),
                      .least_kept = mti_calloc(n, sizeof(int64_t)),
                      .least_need = mti_calloc(n, sizeof(int64_t))};
    bool ok = r->cost && r->kept && r->least_kept && r->least_need;
    if (ok) find_least_need(t, r->least_need);
    if (ok) find_least_kept(r);
    if (!ok) relaxation_free(r);
    return ok;
}

/* ---- all ways below a limit ---- */

/* Slightly below the true sum of costs and priced bytes, because sums are rounded. */
static bool is_within(const mti_budget_search *s, double priced)
{
    return priced * (1 - 1e-10) <= s->limit;
}

/* The ways on by option k of layer i that are within the limit. */
static bool extend(mti_budget_search *s, const relaxation *r, int64_t i, const mti_budget_option *o)
{
    const ways *after = &s->ways[i + o->n];
    double own = cost_of(r, o->flops, o->remade), before = r->cost[i] + own;
    if (!is_useful(r, i, o) || !is_within(s, before + r->price * (double)o->kept + after->least))
        return true;
    for (size_t j = 0; j < after->n; j++) {
        const way *w = &after->at[j];
        const way next = {.need = need_of(o, w->need),
                          .flops = w->flops + o->flops,
                          .remade = w->remade + o->remade,
                          .then = j,
                          .option = o};
        if (r->least_kept[i] + next.need > r->n_bytes) break; /* the next need more */
        s->n_tried++;
        double priced = cost_of(r, next.flops, next.remade) + r->price * (double)next.need;
        if (is_within(s, r->cost[i] + priced) && !add_way(&s->ways[i], next)) return false;
    }
    return true;
}

/* ways[i]: from layer i, for 0 .. layers. */
static bool fill(mti_budget_search *s, const relaxation *r)
{
    const mti_budget_table *t = s->table;
    for (int64_t i = 0; i <= t->layers; i++) s->ways[i].n = s->ways[i].n_pruned = 0;
    if (!add_way(&s->ways[t->layers], (way){.need = t->head})) return false;
    for (int64_t i = t->layers; i >= 0; i--) {
        ways *on = &s->ways[i];
        for (size_t k = 0; i < t->layers && k < t->at[i].n; k++)
            if (!extend(s, r, i, &t->at[i].at[k])) return false;
        prune(on);
        on->least = HUGE_VAL;
        for (size_t j = 0; j < on->n; j++)
            on->least = fmin(on->least, cost_of(r, on->at[j].flops, on->at[j].remade) +
                                            r->price * (double)on->at[j].need);
    }
    return true;
}

static bool follow(const mti_budget_search *s, const way *first, mti_budget_answer *a)
{
    *a = (mti_budget_answer){.peak = larger(first->need, s->table->rest),
                             .flops = first->flops,
                             .remade = first->remade};
    int64_t i = 0;
    for (const way *w = first; w->option; w = &s->ways[i].at[w->then]) {
        if (!MTI_PUSH(&a->path, *w->option)) return false;
        i += w->option->n;
    }
    return true;
}

/* The cheapest of all within the budget, if the limit lets it through; NULL: it does not. *priced:
 * the cost of the cheapest that was found, with every byte of the budget at its price: up to this
 * limit any cheaper one is found, too. */
static const way *cheapest(const mti_budget_search *s, int64_t n_bytes, double *priced)
{
    const way *w = s->ways && n_bytes <= s->n_bytes ? within(&s->ways[0], n_bytes) : NULL;
    *priced =
        w ? (double)w->flops * weight_of(s->table) + (double)w->remade + s->price * (double)n_bytes
          : HUGE_VAL;
    return *priced <= s->limit ? w : NULL;
}

/* Raises the limit until the answer lies below it. */
static bool search(mti_budget_search *s, const relaxation *r)
{
    double least = r->cost[r->t->layers] + r->price * (double)r->t->head, priced = HUGE_VAL;
    s->n_bytes = r->n_bytes;
    s->price = r->price;
    double step = 1 + least * 0x1p-14;
    do {
        s->limit = fmin(step < least ? least + step : HUGE_VAL, priced);
        if (!fill(s, r)) return false;
        step *= 1.5;
    } while (!cheapest(s, r->n_bytes, &priced));
    return true;
}

bool mti_budget_next(mti_budget_search *s, int64_t n_bytes, mti_budget_answer *a, bool *found)
{
    relaxation r;
    *a = (mti_budget_answer){0};
    *found = false;
    if (!s->ways && !(s->ways = mti_calloc((size_t)s->table->layers + 1, sizeof *s->ways)))
        return false;
    bool ok = true;
    double priced;
    if (!cheapest(s, n_bytes, &priced)) {
        if (!relaxation_make(&r, s->table, n_bytes)) return false;
        *found = larger(r.least_need[0], s->table->rest) <= n_bytes;
        if (*found) find_price(&r);
        ok = !*found || search(s, &r);
        relaxation_free(&r);
    } else
        *found = s->table->rest <= n_bytes;
    if (ok && *found) ok = follow(s, cheapest(s, n_bytes, &priced), a);
    if (!ok) {
        mti_free(a->path.at);
        *a = (mti_budget_answer){0};
    }
    return ok;
}

void mti_budget_search_end(mti_budget_search *s)
{
    for (int64_t i = 0; s->ways && i <= s->table->layers; i++) mti_free(s->ways[i].at);
    mti_free(s->ways);
    *s = (mti_budget_search){.table = s->table};
}

bool mti_budget_least(const mti_budget_table *t, int64_t *least)
{
    int64_t *need = mti_calloc((size_t)t->layers + 1, sizeof *need);
    if (!need) return false;
    find_least_need(t, need);
    *least = larger(need[0], t->rest);
    mti_free(need);
    return true;
}
