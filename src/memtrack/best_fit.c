/* best_fit.c: bins of pairing heaps for the small pool, treaps for the large one and for what is
 * larger than any bin. */
#include "memtrack/best_fit.h"

/* ---- a bin: cells of one size, the lowest place on top ---- */

static bool lower(const mti_cell *a, const mti_cell *b) { return a->place < b->place; }

/* Joins two heaps; either may be NULL. */
static mti_cell *meld(mti_cell *a, mti_cell *b)
{
    if (!a) return b;
    if (!b) return a;
    if (lower(b, a)) {
        mti_cell *t = a;
        a = b, b = t;
    }
    b->fit.heap.prev = a;
    b->fit.heap.next = a->fit.heap.child;
    if (b->fit.heap.next) b->fit.heap.next->fit.heap.prev = b;
    a->fit.heap.child = b;
    return a;
}

static mti_cell *detached(mti_cell *cell)
{
    cell->fit.heap.prev = cell->fit.heap.next = NULL;
    return cell;
}

/* Joins a list of siblings: in pairs from the left, then the pairs from the right. */
static mti_cell *meld_siblings(mti_cell *first)
{
    mti_cell *pairs = NULL, *top = NULL;
    while (first) {
        mti_cell *a = first, *b = a->fit.heap.next;
        first = b ? b->fit.heap.next : NULL;
        a = meld(detached(a), b ? detached(b) : NULL);
        a->fit.heap.next = pairs;
        pairs = a;
    }
    while (pairs) {
        mti_cell *next = pairs->fit.heap.next;
        top = meld(top, detached(pairs));
        pairs = next;
    }
    return top;
}

static size_t bin_of(const mti_cell *cell) { return cell->block.size / MTI_BLOCK_UNIT - 1; }

static void add_to_bin(mti_fit *fit, mti_cell *cell)
{
    size_t i = bin_of(cell);
    cell->fit.heap.child = NULL;
    fit->bin[i] = meld(fit->bin[i], detached(cell));
    fit->word[i / 64] |= 1ull << i % 64;
    fit->words |= 1ull << i / 64;
}

static void remove_from_bin(mti_fit *fit, mti_cell *cell)
{
    size_t i = bin_of(cell);
    mti_cell *prev = cell->fit.heap.prev, *next = cell->fit.heap.next;
    mti_cell *below = cell->fit.heap.child ? meld_siblings(cell->fit.heap.child) : NULL;
    if (prev) {
        *(prev->fit.heap.child == cell ? &prev->fit.heap.child : &prev->fit.heap.next) = next;
        if (next) next->fit.heap.prev = prev;
        fit->bin[i] = meld(fit->bin[i], below);
        return;
    }
    fit->bin[i] = below;
    if (below) return;
    fit->word[i / 64] &= ~(1ull << i % 64);
    if (!fit->word[i / 64]) fit->words &= ~(1ull << i / 64);
}

/* NULL if no bin has one. */
static mti_cell *best_in_bins(const mti_fit *fit, size_t size)
{
    size_t i = size / MTI_BLOCK_UNIT - 1, w = i / 64;
    uint64_t bins = fit->word[w] & ~0ull << i % 64;
    if (!bins) {
        uint64_t words = fit->words & ~1ull << w; /* the words after w */
        if (!words) return NULL;
        w = (size_t)__builtin_ctzll(words);
        bins = fit->word[w];
    }
    return fit->bin[w * 64 + (size_t)__builtin_ctzll(bins)];
}

/* ---- the treap: ordered by size then place, a heap by random priority ---- */

static bool before(const mti_cell *a, const mti_cell *b)
{
    return a->block.size != b->block.size ? a->block.size < b->block.size : lower(a, b);
}

static void add_to_treap(mti_fit *fit, mti_cell *cell)
{
    fit->random = fit->random * 6364136223846793005u + 1442695040888963407u;
    cell->fit.tree.priority = fit->random;
    mti_cell **at = &fit->root[cell->large];
    while (*at && (*at)->fit.tree.priority >= cell->fit.tree.priority)
        at = before(cell, *at) ? &(*at)->fit.tree.less : &(*at)->fit.tree.more;
    /* The new cell replaces this subtree, whose nodes are divided between its two sides. */
    mti_cell *rest = *at, **less = &cell->fit.tree.less, **more = &cell->fit.tree.more;
    *at = cell;
    while (rest) {
        if (before(rest, cell))
            *less = rest, less = &rest->fit.tree.more, rest = *less;
        else
            *more = rest, more = &rest->fit.tree.less, rest = *more;
    }
    *less = *more = NULL;
}

static void remove_from_treap(mti_fit *fit, mti_cell *cell)
{
    mti_cell **at = &fit->root[cell->large];
    while (*at != cell) at = before(cell, *at) ? &(*at)->fit.tree.less : &(*at)->fit.tree.more;
    mti_cell *less = cell->fit.tree.less, *more = cell->fit.tree.more;
    while (less && more) {
        if (less->fit.tree.priority >= more->fit.tree.priority)
            *at = less, at = &less->fit.tree.more, less = *at;
        else
            *at = more, at = &more->fit.tree.less, more = *at;
    }
    *at = less ? less : more;
}

static mti_cell *best_in_treap(mti_cell *cell, size_t size)
{
    mti_cell *best = NULL;
    while (cell) {
        if (cell->block.size >= size)
            best = cell, cell = cell->fit.tree.less;
        else
            cell = cell->fit.tree.more;
    }
    return best;
}

/* ---- both ---- */

static bool is_in_treap(const mti_cell *cell)
{
    return cell->large || cell->block.size > MTI_SMALL_SEGMENT;
}

mti_cell *mti_fit_best(const mti_fit *fit, size_t size, bool large)
{
    mti_cell *best = large ? NULL : best_in_bins(fit, size);
    return best ? best : best_in_treap(fit->root[large], size);
}

void mti_fit_add(mti_fit *fit, mti_cell *cell)
{
    fit->n++;
    fit->n_bytes += cell->block.size;
    is_in_treap(cell) ? add_to_treap(fit, cell) : add_to_bin(fit, cell);
}

void mti_fit_remove(mti_fit *fit, mti_cell *cell)
{
    fit->n--;
    fit->n_bytes -= cell->block.size;
    is_in_treap(cell) ? remove_from_treap(fit, cell) : remove_from_bin(fit, cell);
}

bool mti_fit_holds(const mti_fit *fit, const mti_cell *cell)
{
    if (is_in_treap(cell)) {
        const mti_cell *at = fit->root[cell->large];
        while (at && at != cell) at = before(cell, at) ? at->fit.tree.less : at->fit.tree.more;
        return at == cell;
    }
    size_t i = bin_of(cell);
    if (!(fit->word[i / 64] >> i % 64 & 1) || !(fit->words >> i / 64 & 1)) return false;
    const mti_cell *prev = cell->fit.heap.prev;
    if (!prev) return fit->bin[i] == cell;
    return prev->fit.heap.child == cell ? lower(prev, cell) : prev->fit.heap.next == cell;
}
