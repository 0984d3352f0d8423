/* tape.c: a forward pass, op by op, with what each op saves. */
#include <stdlib.h>
#include <string.h>
#include "measure/tape.h"

/* A hook that records and changes nothing. */
static mt_status note_save(void *user, const mt_save_info *info, mt_tensor *tensor,
                           mt_tensor **kept, void **state)
{
    (void)kept, (void)state;
    mti_tape *t = user;
    mt_storage_info storage = mt_storage_of(tensor);
    mti_tape_save s = {.info = *info,
                       .place = t->saves.n,
                       .storage = storage.serial,
                       .bytes = storage.bytes,
                       .parameter = storage.category == MT_PARAMETER,
                       .dtype = mt_dtype_of(tensor),
                       .rank = mt_rank(tensor)};
    s.info.module = mti_intern(info->module);
    memcpy(s.shape, mt_shape(tensor), (size_t)s.rank * sizeof *s.shape);
    return MTI_PUSH(&t->saves, s) ? MT_OK : mt_last_status();
}

static void note_node(void *user, const mt_node_info *node)
{
    mti_tape *t = user;
    if (!MTI_PUSH(&t->nodes, *node)) t->failed = true;
}

/* A checkpoint is no node, and its inputs are saved with numbers of their own, one after the other:
 * it becomes one. */
static bool add_checkpoints(mti_tape *t)
{
    uint64_t last = 0, first = 0;
    for (size_t i = 0; i < t->saves.n; i++) {
        mt_save_info *info = &t->saves.at[i].info;
        if (strcmp(info->op, "checkpoint")) continue;
        const mt_node_info node = {.sequence = info->node, .op = info->op, .module = info->module};
        bool begins = !first || info->node != last + 1;
        if (begins && !MTI_PUSH(&t->nodes, node)) return false;
        if (begins) first = info->node;
        last = info->node;
        info->node = first;
    }
    return true;
}

static int by_sequence(const void *a, const void *b)
{
    const mt_node_info *x = a, *y = b;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

static int by_node(const void *a, const void *b)
{
    const mti_tape_save *x = a, *y = b;
    if (x->info.node != y->info.node) return x->info.node < y->info.node ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static int by_storage(const void *a, const void *b)
{
    const mti_tape_save *x = *(mti_tape_save *const *)a, *y = *(mti_tape_save *const *)b;
    if (x->storage != y->storage) return x->storage < y->storage ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Sorts nodes and saves, and finds each save's payer. */
static bool sort(mti_tape *t)
{
    mti_tape_save **saves = mti_calloc(t->saves.n + 1, sizeof *saves);
    if (!saves) return false;
    if (t->nodes.n) qsort(t->nodes.at, t->nodes.n, sizeof *t->nodes.at, by_sequence);
    if (t->saves.n) qsort(t->saves.at, t->saves.n, sizeof *t->saves.at, by_node);
    for (size_t i = 0; i < t->saves.n; i++) saves[i] = &t->saves.at[i];
    qsort(saves, t->saves.n, sizeof *saves, by_storage);
    for (size_t i = 0; i < t->saves.n; i++) {
        bool shares = i && saves[i]->storage == saves[i - 1]->storage;
        saves[i]->payer = shares ? saves[i - 1]->payer : saves[i];
    }
    mti_free(saves);
    return true;
}

static const mt_saved_hooks tape_hooks = {.pack = note_save};

bool mti_tape_begin(mti_tape *t)
{
    *t = (mti_tape){0};
    return mt_push_saved_hooks(&tape_hooks, t) == MT_OK;
}

bool mti_tape_end(mti_tape *t, mt_tensor *output)
{
    return mt_pop_saved_hooks() == MT_OK && output &&
           mt_visit_tape(output, note_node, t) == MT_OK && !t->failed && add_checkpoints(t) &&
           sort(t);
}

bool mti_tape_of(mti_tape *t, mti_forward_fn *forward, void *user)
{
    if (!mti_tape_begin(t)) return false;
    MT_AUTO mt_tensor *output = forward(user);
    return mti_tape_end(t, output);
}

/* The first forward of a step. */
static mt_tensor *first_output(void *subject)
{
    mti_subject *s = subject;
    mti_step step = {0};
    bool ok = mti_step_begin(&step, &s->stage, &(mti_batches){mti_subject_take, NULL, s}) &&
              mti_step_infer(&step);
    mt_tensor *output = ok ? mt_retain(step.in_flight[0].output) : NULL;
    mti_step_end(&step);
    return output;
}

bool mti_tape_record(mti_tape *t, mt_device *device, const mti_workload *w)
{
    mti_subject s = {0};
    mti_memory_hooks hooks = {0};
    *t = (mti_tape){0};
    bool ok = mti_subject_make(&s, device, w, true) &&
              mti_memory_hooks_make(&hooks, &w->memory, &s.stage) &&
              mti_tape_of(t, first_output, &s);
    mti_memory_hooks_free(&hooks);
    mti_subject_free(&s);
    return ok;
}

void mti_tape_free(mti_tape *t)
{
    mti_free(t->saves.at);
    mti_free(t->nodes.at);
    *t = (mti_tape){0};
}

size_t mti_tape_number(const mti_tape *t, uint64_t node)
{
    const mt_node_info key = {.sequence = node};
    const mt_node_info *found =
        t->nodes.n ? bsearch(&key, t->nodes.at, t->nodes.n, sizeof key, by_sequence) : NULL;
    return (found ? (size_t)(found - t->nodes.at) : t->nodes.n) + 1;
}
