/* leaves.c: the tensors that an expression names: "x=10x100,w=100x10". */
#include <ctype.h>
#include <string.h>
#include "expression/expression.h"

int mti_leaf_find(const mti_expression *e, const char *name, size_t n)
{
    for (int i = 0; i < e->n_leaves; i++)
        if (strlen(e->leaves[i].name) == n && !strncmp(e->leaves[i].name, name, n)) return i;
    return -1;
}

/* ---- shapes ---- */

static bool refuse_shape(const mti_expression *e, size_t at, const char *what)
{
    return mti_point_at("shapes", e->options.shapes, at,
                        "%s; need names with extents, such as "
                        "x=10x100,w=100x10",
                        what);
}

/* The digits at text[*at], as an extent. */
static bool read_extent(const mti_expression *e, size_t *at, int64_t *extent)
{
    const char *text = e->options.shapes;
    size_t from = *at;
    *extent = 0;
    for (; isdigit((unsigned char)text[*at]); ++*at)
        if (__builtin_mul_overflow(*extent, 10, extent) ||
            __builtin_add_overflow(*extent, text[*at] - '0', extent))
            return refuse_shape(e, from, "the extent is too large");
    if (*at == from) return refuse_shape(e, from, "an extent is missing");
    return *extent > 0 || refuse_shape(e, from, "an extent of 0");
}

/* "10x100" */
static bool read_shape(const mti_expression *e, size_t *at, mti_named_leaf *leaf)
{
    const char *text = e->options.shapes;
    for (bool more = true; more; *at += more) {
        if (leaf->rank == MT_MAX_RANK) return refuse_shape(e, *at, "too many extents (at most 8)");
        if (!read_extent(e, at, &leaf->shape[leaf->rank])) return false;
        leaf->rank++;
        more = text[*at] == 'x';
    }
    return true;
}

/* "x=10x100" */
static bool read_leaf(mti_expression *e, size_t *at)
{
    const char *text = e->options.shapes;
    size_t n = mti_name_length(text + *at);
    if (!n) return refuse_shape(e, *at, "a name is missing");
    if (n >= MTI_LEAF_NAME) return refuse_shape(e, *at, "the name is too long (at most 31)");
    if (mti_leaf_find(e, text + *at, n) >= 0)
        return refuse_shape(e, *at, "the name is there already");
    if (e->n_leaves == MTI_MAX_LEAVES) return refuse_shape(e, *at, "too many names (at most 32)");
    mti_named_leaf *leaf = &e->leaves[e->n_leaves++];
    *leaf = (mti_named_leaf){.at = *at, .wants = true, .weight = text[*at] == 'w'};
    memcpy(leaf->name, text + *at, n);
    *at += n;
    if (text[*at] != '=') return refuse_shape(e, *at, "\"=\" is missing");
    ++*at;
    return read_shape(e, at, leaf);
}

/* ---- lists of names ---- */

/* Calls set for each leaf of "x,w"; another name is refused. */
static bool each_named(mti_expression *e, const char *option, const char *list,
                       void (*set)(mti_named_leaf *leaf))
{
    for (size_t at = 0; list; at++) {
        size_t n = strcspn(list + at, ",");
        int leaf = mti_leaf_find(e, list + at, n);
        if (leaf < 0)
            return mti_point_at(
                option, list, at,
                "this is not a name of --shapes; need some of them, joined by commas");
        set(&e->leaves[leaf]);
        at += n;
        if (!list[at]) break;
    }
    return true;
}

static void set_no_grad(mti_named_leaf *leaf) { leaf->wants = false; }
static void set_weight(mti_named_leaf *leaf) { leaf->weight = true; }

bool mti_leaves_read(mti_expression *e)
{
    const mti_expression_options *o = &e->options;
    bool more = o->shapes != NULL;
    for (size_t at = 0; more; at += more) {
        if (!read_leaf(e, &at)) return false;
        more = o->shapes[at] == ',';
        if (o->shapes[at] && !more)
            return refuse_shape(e, at, "this is not expected here (\"x\" or \",\" is)");
    }
    for (int i = 0; o->weights && i < e->n_leaves; i++) e->leaves[i].weight = false;
    return each_named(e, "no-grad", o->no_grad, set_no_grad) &&
           (!o->weights || !strcmp(o->weights, "none") ||
            each_named(e, "weights", o->weights, set_weight));
}

bool mti_leaves_settle(mti_expression *e)
{
    for (int i = 0; i < e->n_leaves; i++) {
        mti_named_leaf *leaf = &e->leaves[i];
        if (!leaf->used)
            return mti_point_at("shapes", e->options.shapes, leaf->at,
                                "\"%s\" is not in the expression", leaf->name);
        if (leaf->indices) leaf->wants = leaf->weight = false;
    }
    return true;
}
