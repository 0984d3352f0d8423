/* ranks_report.c: the ranks of one run, side by side. */
#include <limits.h>
#include <math.h>
#include <string.h>
#include "report/sections.h"
#include "report/keys.h"
#include "report/results.h"

bool mti_print_together(const mti_workload *w, const mti_rank_figures *ranks, int64_t n, FILE *out)
{
    mti_sheet sheet = mti_sheet_of(out);
    bool measured = strcmp(w->device.kind, "meta") != 0;
    const mt_parallel *h = &w->parallel;
    mti_inked(&sheet, MTI_BOLD, "%s", w->name);
    mti_print(out,
              "  %lld ranks on %s: %lld share each layer%s, %lld have other data, %lld stage%s",
              (long long)n, w->device.kind, (long long)(h->tensor ? h->tensor : 1),
              h->sequence ? " and the sequence" : "", (long long)(h->data ? h->data : 1),
              (long long)(h->pipeline ? h->pipeline : 1), h->pipeline > 1 ? "s" : "");
    if (h->expert > 1) fprintf(out, ", %lld divide the experts", (long long)h->expert);
    if (h->context > 1) fprintf(out, ", %lld shards of each sequence", (long long)h->context);
    fputc('\n', out);
    mti_heading(&sheet, measured ? "Each rank's bytes, and what meta predicted for it"
                                 : "Each rank's bytes, as predicted: meta runs nothing");
    mti_table *t =
        measured ? mti_table_new("rrrlrrr", "rank|stage|parameters||measured|predicted|difference")
                 : mti_table_new("rrrlr", "rank|stage|parameters||predicted");
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < MTI_FIGURES; i++) {
            const mti_rank_figures *f = &ranks[r];
            int64_t difference = (int64_t)f->measured[i] - (int64_t)f->predicted[i];
            bool compared = measured && !f->skipped && !f->stopped;
            if (compared && difference) mti_table_ink(t, MTI_BAD);
            if (i == 0) {
                mti_table_cells(t, "%s|%s|%s", MTI_THOUSANDS(f->rank), MTI_THOUSANDS(f->stage),
                                MTI_THOUSANDS(f->n_params));
            } else {
                mti_table_skip(t, 3);
            }
            mti_table_cell(t, "%s", mti_figure_names[i]);
            if (measured) mti_table_bytes(t, (int64_t)f->measured[i]);
            mti_table_bytes(t, (int64_t)f->predicted[i]);
            if (compared)
                mti_table_bytes(t, difference);
            else if (measured)
                mti_table_cell(t, "%s", f->skipped ? "step skipped" : "stopped before");
        }
    if (!mti_table_finish(t, &sheet)) return false;
    if (measured && h->expert > 1)
        mti_print_wrapped(&sheet, 0,
                          "predicted with balanced routing: a rank takes more, or less, where its "
                          "experts are sent more rows, or fewer");
    return true;
}

/* ---- JSON ---- */

static void describe_figures(mti_fields *f, const void *bytes)
{
    for (int i = 0; i < MTI_FIGURES; i++)
        mti_field_size(f, mti_figure_names[i], ((const size_t *)bytes)[i]);
}

json_t *mti_rank_run_json(const mti_rank_run *r, bool whole)
{
    bool measured = r->measured.device;
    const mti_profile_object own = {measured ? &r->measured : &r->predicted, .whole = whole};
    json_t *j = mti_json_of(mti_describe_profile, &own);
    mti_json_put(j, "predicted", mti_json_of(describe_figures, r->figures.predicted));
    if (measured) mti_json_put_int(j, "sent", r->figures.sent);
    return j;
}

void mti_describe_training(mti_fields *f, const void *object)
{
    const mti_training *t = object;
    const mti_rank_figures *r = t->figures;
    mti_field_schema(f, "memtape.train/1");
    mti_field_object(f, "parallel", mti_describe_place, t->workload);
    mti_field_range(f, "steps", t->steps, 1, INT_MAX);
    mti_field_real(mti_null_unless(f, isfinite(t->loss)), "loss", t->loss);
    describe_figures(f, r->measured);
    mti_field_object(f, "predicted", describe_figures, r->predicted);
    mti_field_bool(f, "compared", !r->skipped && !r->stopped);
    int64_t skipped = t->scaler ? mt_scaler_get(t->scaler).skipped : 0;
    mti_field_range(mti_null_unless(f, t->scaler), "skipped", skipped, 0, INT_MAX);
    KEYS(f, mti_rank_figures, r, KEY(sent), KEY_AS("in_comms_s", in_comms),
         KEY_AS("hidden_s", hidden));
}

json_t *mti_gathered_json(json_t *ranks)
{
    return json_pack("{s:s,s:o}", "schema", "memtape.ranks/1", "ranks", ranks);
}
