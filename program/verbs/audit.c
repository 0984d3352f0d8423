/* audit.c: `memtape audit [OP]`: what each op keeps for each set of wanted gradients, whether it is
 * needed, and what would be cheaper. */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "audit/op_audit.h"
#include "verbs/verbs.h"
#include "report/keys.h"
#include "report/terminal.h"

/* The wanted gradients: "dx dw". */
static const char *wanted_text(char *buf, size_t size, const mti_op_audit *a, unsigned want)
{
    *buf = 0;
    const mt_op_info info = mt_all_ops_get(mt_all_ops_find(a->of.op));
    for (int i = 0; i < a->of.n_in; i++) {
        const char *letter =
            info.inputs[i] ? info.inputs[i] : info.inputs[0]; /* cat: all have one letter */
        if (want >> i & 1) mti_append(buf, size, "%sd%s", *buf ? " " : "", letter ? letter : "in");
    }
    return buf;
}

/* ---- text ---- */

static void kept_cells(mti_table *t, const mti_op_audit *a, const mti_audit_kept *k)
{
    char shape[MTI_SHAPE_TEXT];
    mti_table_cells(t, "%s|%s|%s|%s", k->argument, mt_save_role_name(k->role),
                    mti_shape_text(shape, k->rank, k->shape),
                    k->parameter ? "parameter" : MTI_THOUSANDS(k->bytes));
    if (!k->needed)
        mti_table_cell(t, "NOT NEEDED");
    else if (isfinite(k->difference))
        mti_table_cell(t, "%.2g", k->difference);
    else
        mti_table_cell(t, "not finite");
    mti_table_cell(t, "%s", k->altered);
    const mti_cheaper *way = mti_audit_cheaper(a->of.op, k, 0);
    if (!way) {
        mti_table_skip(t, 2);
        return;
    }
    mti_table_cells(t, "%s|%s: %s", MTI_THOUSANDS(mti_cheaper_bytes(way, k)),
                    mti_cheaper_name(way->kind), way->text);
}

static void set_rows(mti_table *t, const mti_op_audit *a, const mti_audit_set *s, bool first)
{
    char want[64];
    wanted_text(want, sizeof want, a, s->want);
    for (int i = 0; i < s->n_kept; i++) {
        if (!s->kept[i].needed) mti_table_ink(t, MTI_BAD);
        mti_table_cells(t, "%s|%s", first && i == 0 ? a->of.op : "", i ? "" : want);
        kept_cells(t, a, &s->kept[i]);
    }
    if (s->n_kept) return;
    mti_table_ink(t, MTI_DIM);
    mti_table_cells(t, "%s|%s|nothing|||||||", first ? a->of.op : "", want);
}

/* For one op all sets are shown; for many ops single gradients and all of them together. */
static bool shown(const mti_op_audit *a, int set, bool all)
{
    unsigned want = a->sets[set].want;
    return all || set == a->n_sets - 1 || (want & (want - 1)) == 0;
}

static bool print_table(const mti_op_audit *audits, size_t n, bool all, const mti_sheet *to)
{
    mti_table *t =
        mti_table_new("lllllrrlrl", "op|for|keeps|its|shape|bytes|off by *|altered|bytes|cheaper");
    for (size_t i = 0; i < n; i++) {
        if (*audits[i].of.note) {
            mti_table_ink(t, MTI_DIM);
            mti_table_note(t, 0, "%s, %s:", audits[i].of.op, audits[i].of.note);
        }
        for (int j = 0; j < audits[i].n_sets; j++)
            if (shown(&audits[i], j, all)) set_rows(t, &audits[i], &audits[i].sets[j], j == 0);
    }
    return mti_table_finish(t, to);
}

/* One op in full: its formula, its reason, and every cheaper way. */
static void print_op(const mti_op_audit *a, const mti_sheet *to)
{
    const mt_op_info info = mt_all_ops_get(mt_all_ops_find(a->of.op));
    mti_inked(to, MTI_BOLD, "%s", info.name);
    mti_print(to->out, "  %s\n", info.formula);
    mti_print_wrapped(to, 2, info.why);
}

static void print_ways(const mti_op_audit *a, const mti_sheet *to)
{
    const mti_audit_set *all = &a->sets[a->n_sets - 1]; /* every gradient */
    if (a->n_sets == 0 || all->n_kept == 0) return;
    mti_heading(to, "Cheaper ways");
    for (int i = 0; i < all->n_kept; i++) {
        const mti_audit_kept *k = &all->kept[i];
        const mti_cheaper *way;
        for (size_t n = 0; (way = mti_audit_cheaper(a->of.op, k, n)); n++)
            mti_print(to->out, "  %s  %s -> %s bytes  %s: %s\n", k->argument,
                      MTI_THOUSANDS(k->bytes), MTI_THOUSANDS(mti_cheaper_bytes(way, k)),
                      mti_cheaper_name(way->kind), way->text);
    }
}

static bool print_taken(const mti_op_audit *audits, size_t n, const mti_sheet *to)
{
    mti_table *t = mti_table_new("lllrrr", "op|instead of|keeps|bytes|before|off by *");
    int n_rows = 0;
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < audits[i].n_taken; k++, n_rows++) {
            const mti_audit_taken *taken = &audits[i].taken[k];
            mti_table_cells(t, "%s%s%s|%s|%s|%s|%s", audits[i].of.op,
                            *audits[i].of.note ? ", " : "", audits[i].of.note,
                            taken->argument ? taken->argument : "all",
                            taken->argument ? mti_cheaper_name(taken->kind) : "nothing: recomputes",
                            MTI_THOUSANDS(taken->after), MTI_THOUSANDS(taken->before));
            mti_table_cell(t, taken->difference > 0 ? "%.2g" : "0 (same bits)", taken->difference);
        }
    }
    if (n_rows) mti_heading(to, "Cheaper ways, taken and measured");
    mt_status status = n_rows ? mti_table_print(t, to) : MT_OK;
    mti_table_free(t);
    return status == MT_OK;
}

static void print_findings(const mti_op_audit *audits, size_t n, const mti_sheet *to)
{
    int n_kept = 0, n_findings = 0;
    for (size_t i = 0; i < n; i++) {
        n_findings += audits[i].n_findings;
        for (int j = 0; j < audits[i].n_sets; j++) n_kept += audits[i].sets[j].n_kept;
    }
    fputs("\n", to->out);
    mti_print_wrapped(
        to, 0,
        "* |g' - g| / |g| over the wanted gradients; g' is what backward computes from "
        "the altered tensor. Bytes are those of the example's shapes, in f32.");
    fprintf(to->out, "%d kept tensors altered, %d of them without effect\n", n_kept, n_findings);
}

static bool print_audits(const mti_op_audit *audits, size_t n, const mti_options *o)
{
    mti_sheet sheet = mti_sheet_of(stdout);
    if (sheet.width < 132 && !sheet.live) sheet.width = 132;
    if (o->workload.name && !o->quiet) {
        print_op(&audits[0], &sheet);
        fputs("\n", stdout);
    }
    if (!print_table(audits, n, o->workload.name != NULL, &sheet)) return false;
    if (o->workload.name && !o->quiet) print_ways(&audits[0], &sheet);
    if (!o->quiet && !print_taken(audits, n, &sheet)) return false;
    if (!o->quiet) print_findings(audits, n, &sheet);
    return true;
}

/* ---- JSON ---- */

typedef struct kept {
    const char *op;
    const mti_audit_kept *is;
} kept;

static void describe_way(mti_fields *f, const void *object)
{
    const kept *k = object;
    const mti_cheaper none = {0}, *way = k->op ? mti_audit_cheaper(k->op, k->is, f->i) : &none;
    mti_field_text(f, "kind", mti_cheaper_name(way->kind));
    mti_field_text(f, "text", way->text);
    mti_field_size(f, "bytes", mti_cheaper_bytes(way, k->is));
}

static void describe_kept(mti_fields *f, const void *object)
{
    const kept *o = object;
    const mti_audit_kept *k = o->is;
    size_t n_ways = 0;
    while (o->op && mti_audit_cheaper(o->op, k, n_ways)) n_ways++;
    mti_field_text(f, "name", k->argument);
    mti_field_name(f, "role", &mti_save_roles, (int)k->role);
    mti_field_shape(f, "shape", k->rank, k->shape);
    mti_field_text(f, "dtype", mt_dtype_name(k->dtype));
    KEYS(f, mti_audit_kept, k, KEY(bytes), KEY(parameter), KEY(needed), KEY(altered),
         KEY_OR_NULL(difference));
    mti_field_list(f, "cheaper", describe_way, o, n_ways, 0);
}

typedef struct set {
    const mti_op_audit *audit;
    const mti_audit_set *is;
} set;

static void describe_ith_kept(mti_fields *f, const void *object)
{
    const set *s = object;
    describe_kept(f, &(kept){s->audit->of.op, &s->is->kept[f->i]});
}

static void describe_set(mti_fields *f, const void *audit)
{
    const mti_op_audit *a = audit;
    const set s = {a, &a->sets[f->i]};
    char wanted[64];
    mti_field_text(f, "wants", a->of.op ? wanted_text(wanted, sizeof wanted, a, s.is->want) : NULL);
    mti_field_size(f, "bytes", s.is->bytes);
    mti_field_list(f, "keeps", describe_ith_kept, &s, (size_t)s.is->n_kept, 0);
}

static void describe_taken(mti_fields *f, const void *taken)
{
    const mti_audit_taken *t = taken;
    mti_field_text(mti_null_unless(f, t->argument), "name", t->argument);
    mti_field_text(f, "kind", mti_cheaper_name(t->kind));
    KEYS(f, mti_audit_taken, t, KEY(before), KEY_AS("bytes", after), KEY(difference));
}

static void describe_op(mti_fields *f, const void *audit)
{
    const mti_op_audit *a = audit;
    mti_field_text(f, "op", a->of.op);
    mti_field_text(f, "how", a->of.note);
    mti_field_list(f, "sets", describe_set, a, (size_t)a->n_sets, 0);
    mti_field_list(f, "taken", describe_taken, a->taken, (size_t)a->n_taken, sizeof *a->taken);
    mti_field_int(f, "findings", a->n_findings);
}

typedef struct audit_list {
    const mti_op_audit *at;
    size_t n;
} audit_list;

void mti_describe_audits(mti_fields *f, const void *object)
{
    const audit_list *a = object;
    mti_field_schema(f, "memtape.audit/1");
    mti_field_list(f, "ops", describe_op, a->at, a->n, sizeof *a->at);
}

/* ---- the verb ---- */

/* An unknown op is a usage error. */
static bool known(const mti_options *o)
{
    if (!o->workload.name) return true;
    const char *names[256];
    int n = mt_all_ops_count();
    assert(n <= 256);
    for (int i = 0; i < n; i++) names[i] = mt_all_ops_get(i).name;
    if (mti_choose("OP", names, n, o->workload.name) >= 0) return true;
    mti_print(stderr, "memtape audit: %s\n", mt_last_error());
    return false;
}

static bool run_all(mti_op_audit *audits, size_t *n, const mti_options *o)
{
    mt_device *device = mti_open_device(&o->workload);
    bool ok = device != NULL;
    mti_case c;
    for (int i = 0; ok && mti_audit_case(i, &c); i++) {
        if (o->workload.name && strcmp(c.op, o->workload.name) != 0) continue;
        mti_op_audit *a = &audits[(*n)++];
        ok = mti_audit_run(a, &c, device, o->workload.seed) &&
             mti_audit_take(a, device, o->workload.seed);
    }
    mt_device_release(device);
    return ok;
}

int mti_audit(const mti_options *o)
{
    if (!known(o)) return MTI_EXIT_USAGE;
    size_t n = 0;
    mti_op_audit *audits =
        mti_calloc((size_t)mti_case_count(&mti_all_cases, MTI_CASE_AUDIT), sizeof *audits);
    bool ok =
        audits && run_all(audits, &n, o) && (mti_wants_json(o) || print_audits(audits, n, o)) &&
        (!o->json || mti_json_write(mti_json_of(mti_describe_audits, &(audit_list){audits, n}),
                                    o->json) == MT_OK);
    mti_free(audits);
    return ok ? MTI_EXIT_OK : mti_report_failure(o);
}
