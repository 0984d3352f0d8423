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
    uint64_t storage;
    size_t bytes;
    bool parameter;
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK];
} save;

typedef struct tape {
    MTI_VEC(save) saves;
    MTI_VEC(mt_node_info) nodes; /* in order of creation once sorted */
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

/* The model's forward pass with every save and every node noted. */
static bool record(tape *t, const mti_options *o, mt_device *device)
{
    const mt_saved_hooks hooks = {.pack = note_save};
    mti_subject subject = {0};
    mti_spender spender = {0};
    mt_tensor *output = NULL;
    bool ok = mti_subject_make(&subject, device, &o->config, o->batch, o->seq, (uint64_t)o->seed) &&
              mti_spender_make(&spender, &o->spending, device, subject.model) &&
              mt_push_saved_hooks(&hooks, t) == MT_OK;
    if (ok) {
        ok = mti_spender_begin(&spender);
        if (ok) output = mti_subject_forward(&subject);
        ok = ok && mti_spender_end(&spender);
        ok = mt_pop_saved_hooks() == MT_OK && ok && output &&
             mt_visit_tape(output, note_node, t) == MT_OK && !t->failed;
    }
    if (ok) qsort(t->nodes.at, t->nodes.n, sizeof *t->nodes.at, by_sequence);
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
    size_t i = 0;
    while (i < t->nodes.n && t->nodes.at[i].sequence != node) i++;
    return i + 1;
}

/* The first save of the storage that saves.at[i] refers to. */
static const save *payer_of(const tape *t, size_t i)
{
    size_t j = 0;
    while (t->saves.at[j].storage != t->saves.at[i].storage) j++;
    return &t->saves.at[j];
}

static void save_cells(mti_table *table, const tape *t, size_t i, size_t *total)
{
    static const char *const roles[] = {"in", "out", "aux"};
    char shape[MTI_SHAPE_TEXT];
    const save *s = &t->saves.at[i], *payer = payer_of(t, i);
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

static void node_rows(mti_table *table, const tape *t, size_t n, size_t *total)
{
    const mt_node_info *node = &t->nodes.at[n];
    bool first = true;
    for (size_t i = 0; i < t->saves.n; i++) {
        if (t->saves.at[i].info.node != node->sequence) continue;
        if (first) {
            mti_table_cell(table, "#%zu", n + 1);
            mti_table_cell(table, "%s", node->module);
            mti_table_cell(table, "%s", node->op);
        } else {
            mti_table_skip(table, 3);
        }
        save_cells(table, t, i, total);
        first = false;
    }
    if (!first) return;
    mti_table_ink(table, MTI_DIM);
    mti_table_cell(table, "#%zu", n + 1);
    mti_table_cell(table, "%s", node->module);
    mti_table_cell(table, "%s", node->op);
    mti_table_cell(table, "nothing");
    mti_table_skip(table, 4);
    mti_table_bytes(table, (int64_t)*total);
}

static bool print_table(const tape *t, FILE *out, const mti_style *style)
{
    static const char *const headings[] = {"op",    "module", "",      "keeps", "its",
                                           "shape", "dtype",  "bytes", "so far"};
    mti_table *table = mti_table_new("reelllrrr", headings);
    size_t total = 0;
    for (size_t n = 0; n < t->nodes.n; n++) node_rows(table, t, n, &total);
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
