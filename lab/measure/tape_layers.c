/* tape_layers.c: layers whose ops keep the same, in the same way. */
#include <stdlib.h>
#include <string.h>
#include "measure/tape.h"
#include "measure/timeline.h"

static long layer_of(const mt_node_info *node)
{
    const char *number = mti_number_in(node->module);
    return *number ? strtol(number, NULL, 10) : -1;
}

/* The saves of a node are at[first] to at[first + n - 1]. */
static size_t saves_of(const mti_tape *t, size_t node, const size_t *first)
{
    size_t n = 0;
    while (first[node] + n < t->saves.n &&
           t->saves.at[first[node] + n].info.node == t->nodes.at[node].sequence)
        n++;
    return n;
}

/* Whether both cost nothing for the same reason: the payer is the same, or one at the same place
 * before each. x is of the node that is `apart` nodes before y's. */
static bool paid_alike(const mti_tape *t, const mti_tape_save *x, const mti_tape_save *y,
                       size_t apart)
{
    if ((x->payer == x) != (y->payer == y)) return false;
    if (x->payer == x || x->payer == y->payer) return true;
    return !strcmp(x->payer->info.argument, y->payer->info.argument) &&
           mti_tape_number(t, x->payer->info.node) + apart ==
               mti_tape_number(t, y->payer->info.node);
}

static bool saves_alike(const mti_tape *t, const mti_tape_save *x, const mti_tape_save *y,
                        size_t apart)
{
    return !strcmp(x->info.argument, y->info.argument) && x->info.role == y->info.role &&
           x->parameter == y->parameter && x->dtype == y->dtype && x->rank == y->rank &&
           !memcmp(x->shape, y->shape, (size_t)x->rank * sizeof *x->shape) &&
           (x->parameter || (x->bytes == y->bytes && paid_alike(t, x, y, apart)));
}

static bool nodes_alike(const mti_tape *t, size_t a, size_t b, const size_t *first)
{
    const mt_node_info *x = &t->nodes.at[a], *y = &t->nodes.at[b];
    size_t n = saves_of(t, a, first);
    bool alike = !strcmp(x->op, y->op) && mti_compare_paths(x->module, y->module) == 0 &&
                 n == saves_of(t, b, first);
    for (size_t i = 0; alike && i < n; i++)
        alike = saves_alike(t, &t->saves.at[first[a] + i], &t->saves.at[first[b] + i], b - a);
    return alike;
}

static size_t bytes_of(const mti_tape *t, size_t node, size_t n, const size_t *first)
{
    size_t bytes = 0;
    for (size_t k = node; k < node + n; k++)
        for (size_t i = 0; i < saves_of(t, k, first); i++) {
            const mti_tape_save *s = &t->saves.at[first[k] + i];
            if (s->payer == s && !s->parameter) bytes += s->bytes;
        }
    return bytes;
}

/* Whether the n nodes from `node` on are the layer after the last of the stretch, and like it. */
static bool joins(const mti_tape *t, const mti_tape_stretch *s, size_t node, size_t n, long layer,
                  const size_t *first)
{
    size_t before = node - n;
    bool alike = layer >= 0 && s->last_layer == layer - 1 && s->n == n;
    for (size_t i = 0; alike && i < n; i++) alike = nodes_alike(t, before + i, node + i, first);
    return alike;
}

static bool find(mti_tape_stretches *out, const mti_tape *t, const size_t *first)
{
    for (size_t at = 0, n; at < t->nodes.n; at += n) {
        long layer = layer_of(&t->nodes.at[at]);
        for (n = 1; at + n < t->nodes.n && layer_of(&t->nodes.at[at + n]) == layer;) n++;
        mti_tape_stretch *last = out->n ? &out->at[out->n - 1] : NULL;
        if (last && joins(t, last, at, n, layer, first)) {
            last->n_layers++;
            last->last_layer = layer;
            continue;
        }
        const mti_tape_stretch fresh = {.first = at,
                                        .n = n,
                                        .n_layers = 1,
                                        .first_layer = layer,
                                        .last_layer = layer,
                                        .bytes = bytes_of(t, at, n, first)};
        if (!MTI_PUSH(out, fresh)) return false;
    }
    return true;
}

bool mti_tape_stretches_of(const mti_tape *t, mti_tape_stretches *out)
{
    *out = (mti_tape_stretches){0};
    size_t *first = mti_calloc(t->nodes.n + 1, sizeof *first), next = 0;
    for (size_t n = 0; first && n < t->nodes.n; n++) {
        while (next < t->saves.n && t->saves.at[next].info.node < t->nodes.at[n].sequence) next++;
        first[n] = next;
    }
    bool ok = first && find(out, t, first);
    mti_free(first);
    return ok;
}
