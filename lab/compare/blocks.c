/* blocks.c: who is alive at an instant, and what two instants have in common. */
#include <stdlib.h>
#include <string.h>
#include "compare/blocks.h"

typedef struct live {
    size_t size;
    uint64_t place;
    mti_context context;
} live;

typedef MTI_VEC(live) lives;

/* ---- the tensors of an instant ---- */

/* The events that made what is alive after n of them, by address: as far as they were recorded. */
static bool find_makers(const mti_history *h, size_t n, mti_hashmap *makers)
{
    for (size_t i = 0; i < n && i < h->events.n; i++) {
        const mti_action_event *e = &h->events.at[i];
        if (e->action != MTI_ACT_ALLOC && e->action != MTI_ACT_FREE_REQUESTED) continue;
        const size_t old = mti_hashmap_find(makers, e->place);
        if (old != MTI_NO_PLACE) mti_hashmap_remove(makers, e->place, old);
        if (e->action == MTI_ACT_ALLOC && !mti_hashmap_add(makers, e->place, i)) return false;
    }
    return true;
}

static bool insert(lives *all, mti_hashmap *at, live one)
{
    if (mti_hashmap_find(at, one.place) != MTI_NO_PLACE) return true;
    return mti_hashmap_add(at, one.place, all->n) && MTI_PUSH(all, one);
}

/* From the end back to the instant: what is freed after it was alive, what is made after it was
 * not. A size of 0 marks one of these. */
static bool undo_events(const mti_history *h, size_t n, lives *all, mti_hashmap *at)
{
    for (size_t i = h->events.n; i-- > n;) {
        const mti_action_event *e = &h->events.at[i];
        if (e->action == MTI_ACT_FREE_REQUESTED &&
            !insert(all, at, (live){e->size, e->place, h->contexts.at[0]}))
            return false;
        if (e->action != MTI_ACT_ALLOC) continue;
        const size_t found = mti_hashmap_find(at, e->place);
        if (found == MTI_NO_PLACE) continue;
        all->at[found].size = 0;
        mti_hashmap_remove(at, e->place, found);
    }
    return true;
}

static int by_size_and_op(const void *a, const void *b)
{
    const live *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? -1 : 1;
    int order = strcmp(x->context.op, y->context.op);
    if (!order) order = strcmp(x->context.where, y->context.where);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

/* After n events, by size and op. Empty tensors are left out. */
static bool find_live(const mti_history *h, size_t n, lives *all)
{
    mti_hashmap at = {0}, makers = {0};
    bool ok = find_makers(h, n, &makers);
    for (size_t i = 0; ok && i < h->blocks.n; i++) {
        const mti_area *b = &h->blocks.at[i];
        const live one = {b->requested, b->place, h->contexts.at[b->context]};
        if (!b->pending) ok = insert(all, &at, one);
    }
    ok = ok && undo_events(h, n, all, &at);
    size_t kept = 0;
    for (size_t i = 0; ok && i < all->n; i++) {
        live one = all->at[i];
        const size_t maker = mti_hashmap_find(&makers, one.place);
        if (maker != MTI_NO_PLACE) one.context = h->contexts.at[h->events.at[maker].context];
        if (one.size) all->at[kept++] = one;
    }
    all->n = kept;
    if (ok && kept) qsort(all->at, kept, sizeof *all->at, by_size_and_op);
    mti_hashmap_free(&at);
    mti_hashmap_free(&makers);
    return ok;
}

/* ---- matching ---- */

/* By op; what no op requests, such as a parameter, by its place. */
static int compare_ops(const mti_context *a, const mti_context *b)
{
    const int order = strcmp(a->op, b->op);
    return order || *a->op ? order : strcmp(a->where, b->where);
}

/* Takes out of x[n] and y[*m], of one size, pairs of one op; what is left stays in order. */
static size_t match_ops(live *x, size_t *n, live *y, size_t *m)
{
    size_t i = 0, j = 0, left_x = 0, left_y = 0, pairs = 0;
    while (i < *n && j < *m) {
        const mti_context *c = &x[i].context;
        const int order = compare_ops(c, &y[j].context);
        if (!order)
            i++, j++, pairs++;
        else if (order < 0)
            x[left_x++] = x[i++];
        else
            y[left_y++] = y[j++];
    }
    while (i < *n) x[left_x++] = x[i++];
    while (j < *m) y[left_y++] = y[j++];
    *n = left_x, *m = left_y;
    return pairs;
}

static size_t count_contexts(const live *x, size_t n)
{
    size_t different = n > 0;
    for (size_t i = 1; i < n; i++)
        different += strcmp(x[i].context.op, x[i - 1].context.op) ||
                     strcmp(x[i].context.where, x[i - 1].context.where);
    return different;
}

/* All of one size: x[n] measured, y[m] predicted. */
static bool match_size(mti_block_match *out, live *x, size_t n, live *y, size_t m)
{
    const size_t size = n ? x->size : y->size;
    mti_block_row row = {.size = size, .measured = n, .predicted = m};
    const size_t pairs = match_ops(x, &n, y, &m), more = n < m ? n : m;
    out->n_by_op += pairs, out->bytes_by_op += pairs * size;
    out->n_by_size += more, out->bytes_by_size += more * size;
    if (n == m) return true;
    const live *left = n > m ? x + more : y + more;
    row.context = left->context;
    row.n_contexts = count_contexts(left, n > m ? n - more : m - more);
    return MTI_PUSH(&out->rows, row);
}

int64_t mti_block_row_difference(const mti_block_row *r)
{
    return mti_bytes_more(r->measured, r->predicted, r->size);
}

static int most_first(const void *a, const void *b)
{
    const mti_block_row *x = a, *y = b;
    const int64_t i = llabs(mti_block_row_difference(x)), j = llabs(mti_block_row_difference(y));
    if (i != j) return i < j ? 1 : -1;
    return x->size < y->size ? 1 : -1;
}

static size_t same_size(const lives *all, size_t from, size_t size)
{
    size_t end = from;
    while (end < all->n && all->at[end].size == size) end++;
    return end - from;
}

bool mti_blocks_match(mti_block_match *m, const mti_history *measured, size_t n_measured,
                      const mti_history *predicted, size_t n_predicted)
{
    lives x = {0}, y = {0};
    *m = (mti_block_match){0};
    bool ok = find_live(measured, n_measured, &x) && find_live(predicted, n_predicted, &y);
    for (size_t i = 0, j = 0; ok && (i < x.n || j < y.n);) {
        const size_t a = i < x.n ? x.at[i].size : SIZE_MAX, b = j < y.n ? y.at[j].size : SIZE_MAX;
        const size_t size = a < b ? a : b, n = same_size(&x, i, size), k = same_size(&y, j, size);
        ok = match_size(m, n ? x.at + i : NULL, n, k ? y.at + j : NULL, k);
        i += n, j += k;
    }
    if (ok && m->rows.n) qsort(m->rows.at, m->rows.n, sizeof *m->rows.at, most_first);
    mti_free(x.at);
    mti_free(y.at);
    return ok;
}

void mti_block_match_free(mti_block_match *m)
{
    mti_free(m->rows.at);
    *m = (mti_block_match){0};
}
