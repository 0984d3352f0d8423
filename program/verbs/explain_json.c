/* explain_json.c: the tape of an expression, and its step event by event. */
#include <limits.h>
#include <string.h>
#include "verbs/explain.h"
#include "memtape/models/collectives.h"
#include "report/keys.h"

static const char *const phases[] = {"forward", "recompute", "backward"};

static void describe_leaf(mti_fields *f, const void *at)
{
    const mti_expression_walk *walk = at;
    const mti_named_leaf *leaf = &walk->e->leaves[f->i];
    mti_field_text(f, "name", leaf->name);
    mti_field_shape(f, "shape", leaf->rank, leaf->shape);
    mti_field_size(f, "storage", walk->storages[f->i]);
    KEYS(f, mti_named_leaf, leaf, KEY(weight), KEY(indices), KEY_AS("gradient", wants));
}

static void describe_save(mti_fields *f, const void *at)
{
    const mti_tape_save *s = at;
    mti_field_text(f, "name", s->info.argument);
    mti_field_name(f, "role", &mti_save_roles, (int)s->info.role);
    mti_field_shape(f, "shape", s->rank, s->shape);
    mti_field_text(f, "dtype", mt_dtype_name(s->dtype));
    KEYS(f, mti_tape_save, s, KEY(storage), KEY(bytes), KEY(parameter));
    mti_field_bool(f, "pays", !s->parameter && s->payer == s);
}

/* Gives the op's row; a checkpoint has none. */
static mt_op_info row_of(const char *op)
{
    int i = mt_all_ops_find(op);
    if (i >= 0) return mt_all_ops_get(i);
    return (mt_op_info){.formula = "",
                        .why = "what comes from outside; the rest is computed again"};
}

static void describe_op(mti_fields *f, const void *at)
{
    const mti_tape *t = at;
    const mt_node_info none = {0}, *node = t->nodes.n ? &t->nodes.at[f->i] : &none;
    const mt_op_info row = row_of(node->op);
    size_t from = 0, n = 0;
    while (from < t->saves.n && t->saves.at[from].info.node < node->sequence) from++;
    while (from + n < t->saves.n && t->saves.at[from + n].info.node == node->sequence) n++;
    KEYS(f, mt_node_info, node, KEY(op), KEY_AS("text", module));
    KEYS(f, mt_op_info, &row, KEY(formula), KEY(why));
    mti_field_list(f, "keeps", describe_save, n ? &t->saves.at[from] : NULL, n,
                   sizeof *t->saves.at);
}

/* n characters of the expression, as far as there is room for them. */
static void describe_text(mti_fields *f, const char *key, const char *from, size_t n)
{
    char text[160];
    snprintf(text, sizeof text, "%.*s", (int)n, n ? from : "");
    mti_field_text(f, key, text);
}

static void describe_step(mti_fields *f, const void *at)
{
    const mti_expression_walk *walk = at;
    const mti_expression_step none = {0}, *s = walk->steps.n ? &walk->steps.at[f->i] : &none;
    const mti_term nothing = {0}, *t = walk->steps.n ? &walk->e->terms[s->term] : &nothing;
    mti_field_one_of(f, "phase", s->phase, phases, 3);
    describe_text(f, "text", walk->e->options.text + t->from, t->to - t->from);
    mti_field_int(mti_null_unless(f, s->node), "op",
                  (int64_t)mti_tape_number(&walk->tape, s->node));
    mti_field_size(f, "events", s->n_events);
}

static void describe_gradient(mti_fields *f, const void *at)
{
    const mti_expression_gradient *g = at;
    describe_text(f, "of", g->of, g->length);
    KEYS(f, mti_expression_gradient, g, KEY(storage), KEY_AS("events", n_events));
}

void mti_describe_explained(mti_fields *f, const void *at)
{
    const mti_expression_walk *walk = at;
    const mti_timeline *t = &walk->timeline;
    mti_field_schema(f, "memtape.explain/1");
    mti_field_text(f, "expression", walk->e->options.text);
    mti_field_text(f, "dtype", mt_dtype_name(walk->e->options.dtype));
    mti_field_list(f, "leaves", describe_leaf, walk, (size_t)walk->e->n_leaves, 0);
    mti_field_list(f, "ops", describe_op, &walk->tape, walk->tape.nodes.n, 0);
    mti_field_list(f, "steps", describe_step, walk, walk->steps.n, 0);
    mti_field_list(f, "gradients", describe_gradient, walk->gradients.at, walk->gradients.n,
                   sizeof *walk->gradients.at);
    mti_field_list(f, "timeline", mti_describe_event, t->events.at, t->events.n,
                   sizeof *t->events.at);
}
