/* explain.c: `memtape explain MODEL`: the tape op by op, what each keeps and why. */
#include <stdlib.h>
#include <string.h>
#include "cli/profile.h"
#include "cli/room.h"
#include "cli/verbs.h"
#include "memtape/ops.h"

/* One act of saving, noted as it happened. */
typedef struct save {
    mt_save_info info;
    size_t place;             /* in the order of saving */
    const struct save *payer; /* the first save of this storage */
    uint64_t storage;
    size_t bytes;
    bool parameter;
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK];
} save;

typedef struct tape {
    MTI_VEC(save) saves;         /* once sorted: in the order of their nodes */
    MTI_VEC(mt_node_info) nodes; /* once sorted: in the order of creation */
    bool failed;
} tape;

/* A hook that looks and changes nothing. */
static mt_status note_save(void *user, const mt_save_info *info, mt_tensor *tensor,
                           mt_tensor **kept, void **state)
{
    (void)kept, (void)state;
    tape *t = user;
    mt_storage_info storage = mt_storage_of(tensor);
    save s = {.info = *info,
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
    tape *t = user;
    if (!MTI_PUSH(&t->nodes, *node)) t->failed = true;
}

static int by_sequence(const void *a, const void *b)
{
    const mt_node_info *x = a, *y = b;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

static int by_node(const void *a, const void *b)
{
    const save *x = a, *y = b;
    if (x->info.node != y->info.node) return x->info.node < y->info.node ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static int by_storage(const void *a, const void *b)
{
    const save *x = *(save *const *)a, *y = *(save *const *)b;
    if (x->storage != y->storage) return x->storage < y->storage ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Puts nodes and saves in order and finds each save's payer. */
static bool sort(tape *t)
{
    save **saves = mti_calloc(t->saves.n + 1, sizeof *saves);
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

/* The model's forward pass with every save and every node noted. */
static bool record(tape *t, const mti_options *o, mt_device *device)
{
    const mt_saved_hooks hooks = {.pack = note_save};
    mti_subject subject = {0};
    mti_spender spender = {0};
    mt_tensor *output = NULL;
    bool ok = mti_subject_make(&subject, device, &o->config, o->batch, o->seq, (uint64_t)o->seed,
                               &o->spending) &&
              mti_spender_make(&spender, &o->spending, device, subject.model) &&
              mt_push_saved_hooks(&hooks, t) == MT_OK;
    if (ok) {
        ok = mti_spender_begin(&spender);
        if (ok) output = mti_subject_forward(&subject);
        ok = ok && mti_spender_end(&spender);
        ok = mt_pop_saved_hooks() == MT_OK && ok && output &&
             mt_visit_tape(output, note_node, t) == MT_OK && !t->failed;
    }
    ok = ok && sort(t);
    mt_release(output);
    mti_spender_free(&spender);
    mti_subject_free(&subject);
    return ok;
}

static void tape_free(tape *t)
{
    mti_free(t->saves.at);
    mti_free(t->nodes.at);
}

static bool rehearse(void *user, mt_device *meta)
{
    tape t = {0};
    bool ok = record(&t, user, meta);
    tape_free(&t);
    return ok;
}

static bool check_room(const mti_options *o, const mt_device *device)
{
    mti_options copy = *o;
    return mti_check_room(o, device,
                          &(mti_plan_to_run){.name = o->model,
                                             .config = &o->config,
                                             .batch = o->batch,
                                             .seq = o->seq,
                                             .rehearse = rehearse,
                                             .user = &copy});
}

/* ---- the table ---- */

/* The number, counted from 1, of the op that made `node`. */
static size_t number_of(const tape *t, uint64_t node)
{
    const mt_node_info key = {.sequence = node};
    const mt_node_info *found =
        t->nodes.n ? bsearch(&key, t->nodes.at, t->nodes.n, sizeof key, by_sequence) : NULL;
    return (found ? (size_t)(found - t->nodes.at) : t->nodes.n) + 1;
}

static void save_cells(mti_table *table, const tape *t, const save *s, size_t *total)
{
    static const char *const roles[] = {"in", "out", "aux"};
    char shape[MTI_SHAPE_TEXT];
    const save *payer = s->payer;
    mti_table_cell(table, "%s", s->info.argument);
    mti_table_cell(table, "%s", roles[s->info.role]);
    mti_table_cell(table, "%s", mti_shape_text(shape, s->rank, s->shape));
    mti_table_cell(table, "%s", mt_dtype_name(s->dtype));
    if (s->parameter) {
        mti_table_cell(table, "parameter");
    } else if (payer != s) {
        mti_table_cell(table, "as #%zu %s", number_of(t, payer->info.node), payer->info.argument);
    } else {
        *total += s->bytes;
        mti_table_bytes(table, (int64_t)s->bytes);
    }
    mti_table_bytes(table, (int64_t)*total);
}

/* *next: the first save that no node before this one has made. */
static void node_rows(mti_table *table, const tape *t, size_t n, size_t *next, size_t *total)
{
    const mt_node_info *node = &t->nodes.at[n];
    const save *end = t->saves.at + t->saves.n, *s = t->saves.at + *next;
    while (s < end && s->info.node < node->sequence) s++; /* of nodes that are gone */
    const save *first = s;
    if (s == end || s->info.node != node->sequence) mti_table_ink(table, MTI_DIM);
    mti_table_cell(table, "#%zu", n + 1);
    mti_table_cell(table, "%s", node->module);
    mti_table_cell(table, "%s", node->op);
    for (; s < end && s->info.node == node->sequence; s++) {
        if (s != first) mti_table_skip(table, 3);
        save_cells(table, t, s, total);
    }
    *next = (size_t)(s - t->saves.at);
    if (s != first) return;
    mti_table_cell(table, "nothing");
    mti_table_skip(table, 4);
    mti_table_bytes(table, (int64_t)*total);
}

static bool print_table(const tape *t, FILE *out, const mti_style *style)
{
    static const char *const headings[] = {"op",    "module", "",      "keeps", "its",
                                           "shape", "dtype",  "bytes", "so far"};
    mti_table *table = mti_table_new("reelllrrr", headings);
    size_t next = 0, total = 0;
    for (size_t n = 0; n < t->nodes.n; n++) node_rows(table, t, n, &next, &total);
    mt_status status = mti_table_print(table, out, style);
    mti_table_free(table);
    return status == MT_OK;
}

/* ---- the reasons: one paragraph for each kind of op on this tape ---- */

static bool on_tape(const tape *t, const char *op)
{
    for (size_t n = 0; n < t->nodes.n; n++)
        if (!strcmp(t->nodes.at[n].op, op)) return true;
    return false;
}

static void print_reasons(const tape *t, FILE *out, const mti_style *style)
{
    mti_heading(out, style, "Why");
    for (int i = 0; i < mt_op_count(); i++) {
        mt_op_info info = mt_op_get(i);
        if (!on_tape(t, info.name)) continue;
        fputs("  ", out);
        mti_inked(out, style, MTI_BOLD, "%s", info.name);
        fprintf(out, "  %s\n", info.formula);
        mti_print_wrapped(out, 6, style->width, info.why);
    }
}

int mti_explain(const mti_options *o)
{
    tape t = {0};
    mti_style style = mti_style_of(stdout);
    mt_device *device = mti_open_device(o);
    bool ok = device && check_room(o, device) && record(&t, o, device);
    if (ok) {
        if (!o->quiet) {
            mti_print_model(o, device, stdout, &style);
            fputs("the tape after forward, in the order in which ops were recorded\n\n", stdout);
        }
        ok = print_table(&t, stdout, &style);
    }
    if (ok && !o->quiet) print_reasons(&t, stdout, &style);
    int status = ok ? MTI_EXIT_OK : mti_report_failure(o);
    tape_free(&t);
    mt_device_release(device);
    return status;
}
