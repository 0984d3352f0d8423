#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "layouts.h"

tensor_layout layout_dense(int rank)
{
    tensor_layout l = {{0}, 0, 0, false};
    for (int d = 0; d < rank; d++) l.order[d] = d;
    return l;
}

static int put_bits(char *at, size_t room, const char *what, unsigned bits)
{
    int n = bits ? snprintf(at, room, "%s", what) : 0;
    for (int d = 0; bits >> d; d++)
        if (bits >> d & 1) n += snprintf(at + n, room - (size_t)n, " %d", d);
    return n;
}

const char *layout_text(const tensor_layout *l, int rank, char text[128])
{
    int n = snprintf(text, 128, "in memory as [");
    for (int d = 0; d < rank; d++)
        n += snprintf(text + n, 128 - (size_t)n, "%s%d", d ? "," : "", l->order[d]);
    n += snprintf(text + n, 128 - (size_t)n, "]");
    n += put_bits(text + n, 128 - (size_t)n, ", expanded", l->expanded);
    n += put_bits(text + n, 128 - (size_t)n, ", sliced", l->sliced);
    if (l->offset) snprintf(text + n, 128 - (size_t)n, ", offset");
    return text;
}

/* ---- the list of layouts ---- */

typedef struct layout_list {
    tensor_layout *at;
    int n;
} layout_list;

static void add(layout_list *list, tensor_layout l)
{
    list->at = realloc(list->at, (size_t)(list->n + 1) * sizeof *list->at);
    assert_non_null(list->at);
    list->at[list->n++] = l;
}

/* The next permutation; false after the last. */
static bool next_order(int rank, int *order)
{
    int i = rank - 2, j = rank - 1;
    while (i >= 0 && order[i] > order[i + 1]) i--;
    if (i < 0) return false;
    while (order[j] < order[i]) j--;
    int swapped = order[i];
    order[i] = order[j], order[j] = swapped;
    for (int a = i + 1, b = rank - 1; a < b; a++, b--) {
        swapped = order[a];
        order[a] = order[b], order[b] = swapped;
    }
    return true;
}

/* Adds l, then l with each dimension sliced, then with all dimensions sliced. */
static void add_sliced(layout_list *list, tensor_layout l, int rank)
{
    add(list, l);
    for (int d = 0; d < rank; d++) {
        l.sliced = 1u << d;
        add(list, l);
    }
    l.sliced = (1u << rank) - 1;
    if (rank > 1) add(list, l);
}

static tensor_layout swapped(tensor_layout l, int d)
{
    int order = l.order[d];
    l.order[d] = l.order[d + 1], l.order[d + 1] = order;
    return l;
}

int layouts_with(int rank, unsigned expanded, bool every_order, tensor_layout **out)
{
    layout_list list = {0};
    tensor_layout l = layout_dense(rank), backwards = l;
    l.expanded = backwards.expanded = expanded;
    for (int d = 0; d < rank; d++) backwards.order[d] = rank - 1 - d;
    do {
        add_sliced(&list, l, rank);
        l.offset = true;
        add(&list, l);
        l.offset = false;
    } while (every_order && next_order(rank, l.order));
    for (int d = 0; !every_order && d + 1 < rank; d++) add(&list, swapped(l, d));
    if (!every_order && rank > 2) add(&list, backwards);
    backwards.sliced = (1u << rank) - 1;
    if (!every_order && rank > 1) add(&list, backwards);
    *out = list.at;
    return list.n;
}

/* ---- tensors with a layout ---- */

static int64_t count(int rank, const int64_t *shape)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++) n *= shape[d];
    return n;
}

/* The offset of element i (row-major) with these strides. */
static int64_t place_of(int rank, const int64_t *shape, const int64_t *strides, int64_t i)
{
    int64_t at = 0;
    for (int d = rank - 1; d >= 0; d--) {
        at += i % shape[d] * strides[d];
        i /= shape[d];
    }
    return at;
}

void layout_repeat(int rank, const int64_t *shape, unsigned expanded, double *values)
{
    int64_t strides[MT_MAX_RANK], gap = 1, n = count(rank, shape);
    for (int d = rank - 1; d >= 0; d--) {
        strides[d] = expanded >> d & 1 ? 0 : gap;
        gap *= shape[d];
    }
    for (int64_t i = 0; i < n; i++) values[i] = values[place_of(rank, shape, strides, i)];
}

mt_layout layout_of(mt_dtype dtype, int rank, const int64_t *shape, const tensor_layout *l,
                    int64_t *stored)
{
    mt_layout as = {.dtype = dtype, .rank = rank};
    int64_t gap = 1, first = l->offset, n = count(rank, shape);
    for (int i = rank - 1; i >= 0; i--) {
        int d = l->order[i];
        bool expanded = l->expanded >> d & 1, sliced = l->sliced >> d & 1;
        as.shape[d] = shape[d];
        as.strides[d] = expanded ? 0 : gap;
        if (sliced) first += gap;
        gap *= (expanded ? 1 : shape[d]) + (sliced ? 2 : 0);
    }
    *stored = gap + l->offset;
    as.offset = n ? (size_t)first * mt_dtype_size(dtype) : 0;
    return as;
}

mt_tensor *layout_make(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                       const double *values, const tensor_layout *l)
{
    int64_t stored, n = count(rank, shape);
    mt_layout as = layout_of(dtype, rank, shape, l, &stored);
    int64_t first = (int64_t)(as.offset / mt_dtype_size(dtype));
    double *all = malloc((size_t)(stored + 1) * sizeof *all);
    assert_non_null(all);
    for (int64_t i = 0; i < stored; i++) all[i] = mt_dtype_is_float(dtype) ? (double)NAN : -7;
    for (int64_t i = 0; i < n; i++) all[first + place_of(rank, shape, as.strides, i)] = values[i];
    MT_AUTO mt_tensor *whole = mtt_from_doubles(device, dtype, 1, &stored, all);
    free(all);
    return whole ? mt_view_as(whole, &as) : NULL;
}
