/* together.c: the ranks of one run, side by side. */
#include <string.h>
#include "report/figures.h"
#include "report/together.h"

bool mti_print_together(const mti_workload *w, const mti_rank_figures *ranks, int64_t n, FILE *out)
{
    mti_style style = mti_style_of(out);
    bool measured = strcmp(w->device.kind, "meta") != 0;
    const mt_parallel *h = &w->parallel;
    mti_inked(out, &style, MTI_BOLD, "%s", w->name);
    mti_print(out, "  %lld ranks on %s: %lld share each layer%s, %lld have other data, %lld stages",
              (long long)n, w->device.kind, (long long)(h->tensor ? h->tensor : 1),
              h->sequence ? " and the sequence" : "", (long long)(h->data ? h->data : 1),
              (long long)(h->pipeline ? h->pipeline : 1));
    if (h->context > 1) fprintf(out, ", %lld pieces of each sequence", (long long)h->context);
    fputc('\n', out);
    mti_heading(out, &style,
                measured ? "Each rank's bytes, and what meta predicted for it"
                         : "Each rank's bytes, as predicted: meta runs nothing");
    static const char *const both[] = {"rank",     "stage",     "parameters", "",
                                       "measured", "predicted", "difference"};
    static const char *const predicted[] = {"rank", "stage", "parameters", "", "predicted"};
    mti_table *t = mti_table_new(measured ? "rrrlrrr" : "rrrlr", measured ? both : predicted);
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < MTI_FIGURES; i++) {
            const mti_rank_figures *f = &ranks[r];
            int64_t difference = (int64_t)f->measured[i] - (int64_t)f->predicted[i];
            bool compared = measured && !f->skipped && !f->stopped;
            if (compared && difference) mti_table_ink(t, MTI_BAD);
            if (i == 0) {
                mti_table_bytes(t, f->rank);
                mti_table_bytes(t, f->stage);
                mti_table_bytes(t, (int64_t)f->n_params);
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
    return mti_table_finish(t, out, &style);
}

json_t *mti_rank_run_json(const mti_rank_run *r, bool whole)
{
    bool measured = r->measured.device;
    json_t *j = mti_profile_json(measured ? &r->measured : &r->predicted, whole);
    json_t *predicted = json_object();
    for (int i = 0; i < MTI_FIGURES; i++)
        mti_json_put_int(predicted, mti_figure_names[i], r->figures.predicted[i]);
    mti_json_put(j, "predicted", predicted);
    if (measured) mti_json_put_int(j, "sent", r->figures.sent);
    return j;
}
