/* explain.c: `memtape explain MODEL` or `--expr TEXT`: the tape op by op, what each keeps and why.
 */
#include <string.h>
#include "options/option_table.h"
#include "verbs/explain.h"
#include "verbs/verbs.h"
#include "measure/headroom.h"
#include "measure/tape.h"
#include "report/results.h"

static bool print(const mti_tape *t, const mti_options *o, const mt_device *device)
{
    mti_sheet sheet = mti_sheet_of(stdout);
    return o->output.quiet
               ? mti_print_tape(t, "module", true, &sheet)
               : mti_print_explained(t, &o->workload, device, o->output.verbose, stdout);
}

static bool rehearse(void *user, mt_device *meta)
{
    mti_tape t;
    bool ok = mti_tape_record(&t, meta, user);
    mti_tape_free(&t);
    return ok;
}

/* ---- an expression ---- */

static bool print_leaves(const mti_expression *e, const mti_sheet *to)
{
    char shape[MTI_SHAPE_TEXT];
    mti_table *table = mti_table_new("llll", NULL);
    for (int i = 0; i < e->n_leaves; i++) {
        const mti_named_leaf *leaf = &e->leaves[i];
        mti_table_cells(table, "%s|%s|%s", leaf->name,
                        mti_shape_text(shape, leaf->rank, leaf->shape),
                        mt_dtype_name(leaf->indices ? MT_I64 : e->options.dtype));
        mti_table_cell(table, "%s%s",
                       leaf->indices  ? "indices"
                       : leaf->weight ? "a weight, in memory anyway"
                                      : "an input",
                       leaf->wants     ? ", wants a gradient"
                       : leaf->indices ? ""
                                       : ", wants no gradient");
    }
    return mti_table_finish(table, to);
}

static bool print_peaks(const mti_expression_peaks *peaks, const mti_sheet *to)
{
    fputs("\nthe most bytes allocated at once\n\n", to->out);
    mti_table *table = mti_table_new("lr", NULL);
    mti_table_cells(table, "forward|%s", MTI_THOUSANDS(peaks->forward));
    mti_table_cells(table, "a later step, which adds to the gradients|%s",
                    MTI_THOUSANDS(peaks->step));
    mti_table_cells(table, "the same if it retains the graph|%s", MTI_THOUSANDS(peaks->retained));
    return mti_table_finish(table, to);
}

static bool print_expression(const mti_expression *e, const mti_tape *t, const mti_options *o,
                             mt_device *device)
{
    mti_expression_peaks peaks;
    mti_sheet sheet = mti_sheet_of(stdout);
    if (o->output.quiet) return mti_print_tape(t, "expression", false, &sheet);
    mti_inked(&sheet, MTI_BOLD, "%s", e->options.text);
    mti_print(stdout, "  on %s\n", mt_device_kind(device));
    if (!print_leaves(e, &sheet)) return false;
    if (!t->nodes.n) {
        puts("\nnothing is recorded: no op has an operand that wants a gradient");
        return true;
    }
    fputs("\nthe tape, in the order in which ops were recorded\n\n", stdout);
    if (!mti_print_tape(t, "expression", false, &sheet)) return false;
    mti_print_reasons(t, &sheet);
    return !o->output.verbose ||
           (mti_expression_measure(&peaks, device, e) && print_peaks(&peaks, &sheet));
}

static bool rehearse_expression(void *user, mt_device *meta)
{
    mti_tape t;
    bool ok = mti_expression_record(&t, meta, user);
    mti_tape_free(&t);
    return ok;
}

static bool write_json(const mti_expression *e, const mti_options *o, mt_device *device)
{
    if (!o->output.json) return true;
    mti_expression_walk walk;
    bool ok = mti_expression_walk_of(&walk, device, e) &&
              mti_json_write_of(mti_describe_explained, &walk, o->output.json);
    mti_expression_walk_free(&walk);
    return ok;
}

/* What is wrong with the expression or its shapes is found on meta, before the device is opened. */
static int explain_expression(const mti_options *o)
{
    mti_expression e;
    mti_tape t = {0};
    mt_device *device = NULL;
    mti_expression_options options = o->expression;
    options.dtype = o->workload.config.dtype;
    mti_device_options unbounded = o->workload.device;
    unbounded.capacity = 0;
    size_t peak;
    bool ok = mti_expression_read(&e, &options) &&
              mti_rehearse(&unbounded, rehearse_expression, &e, &peak, NULL);
    if (!ok && mt_last_status() == MT_ERR_ARGUMENT) {
        mti_report_failure(o);
        mti_expression_free(&e);
        return MTI_EXIT_USAGE;
    }
    if (ok) device = mti_open_device(&o->workload);
    ok = ok && device && mti_check_fits(device, "the expression", peak, MTI_ON_META) &&
         write_json(&e, o, device) &&
         (mti_wants_json(o) ||
          (mti_expression_record(&t, device, &e) && print_expression(&e, &t, o, device)));
    int status = ok ? MTI_EXIT_OK : mti_report_failure(o);
    mti_tape_free(&t);
    mti_expression_free(&e);
    mt_device_release(device);
    return status;
}

int mti_explain(const mti_options *o)
{
    if (o->expression.text) return explain_expression(o);
    if (o->generate.prompts.n) return mti_explain_prompts(o);
    mti_tape t = {0};
    mti_workload w = o->workload;
    mt_device *device = mti_device_make(&w.device);
    bool ok = device && mti_check_room(device, &w, rehearse, &w, MTI_ON_META) &&
              mti_tape_record(&t, device, &w) && print(&t, o, device);
    int status = ok ? MTI_EXIT_OK : mti_report_failure(o);
    mti_tape_free(&t);
    mt_device_release(device);
    return status;
}

/* With --expr: whether nothing is given that is for a MODEL. */
static bool check_words(mti_options *o)
{
    if (!o->expression.text) return !o->generate.prompts.n || mti_explain_prompts_check(o);
    if (o->workload.name)
        return mti_options_refuse(o, "--expr: MODEL is \"%.80s\" already; give one of them",
                                  o->workload.name);
    return mti_check_beside(o, MTI_BESIDE_AN_EXPR, "is for a MODEL, and --expr has none");
}

const mti_verb_rules mti_explain_rules = {.verb = MTI_EXPLAIN, .check_words = check_words};
