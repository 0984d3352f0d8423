/* profile.c: `memtape profile MODEL`: two training steps, the first under the ledger; under mpirun
 * each rank's, gathered on rank 0. */
#include <string.h>
#include "verbs/together.h"
#include "verbs/verbs.h"
#include "comm/comm.h"
#include "measure/headroom.h"
#include "report/page.h"
#include "report/pictures.h"
#include "report/results.h"

#define NAME "memtape profile"

static void title_of(char buf[MTI_TITLE], const mti_profile_result *p)
{
    const mti_workload *w = &p->workload;
    char name[MTI_TITLE / 2];
    snprintf(name, sizeof name, "%s on %s", w->name, mt_device_kind(p->device));
    mti_title(buf, MTI_TITLE, name, &w, 1);
}

/* Also after a failed step, up to the failure, `event`. */
static bool write_files(const mti_profile_result *p, mti_describe *describe, size_t event,
                        const struct mti_output *out)
{
    char title[MTI_TITLE];
    const mti_timeline *t = &p->measured.timeline;
    const mti_profile_object shown = {p, out->timeline, event};
    json_t *object = out->json || out->html ? mti_json_of(describe, &shown) : NULL;
    title_of(title, p);
    bool ok =
        (!out->json || mti_json_write(json_incref(object), out->json) == MT_OK) &&
        (!out->html || mti_html_write_profile(p, title, json_incref(object), out->html) == MT_OK) &&
        (!out->svg || mti_timeline_draw(t, title, out->svg) == MT_OK) &&
        (!out->trace || mti_timeline_write_trace(t, out->trace) == MT_OK) &&
        (!out->snapshot ||
         mti_snapshot_write(t, mt_device_kind(p->device), out->snapshot) == MT_OK);
    json_decref(object);
    return ok;
}

static bool print_whole(const void *report, FILE *out)
{
    return mti_print_profile(report, false, true, out);
}

static bool print_text(const mti_profile_result *p, const mti_options *o)
{
    return o->output.show ? mti_show_sections(o->output.show, print_whole, p, stdout)
                          : mti_print_profile(p, o->output.timeline, o->output.verbose, stdout);
}

static bool write_reports(const mti_profile_result *p, const mti_options *o)
{
    return (!mti_wants_text(o) || print_text(p, o)) &&
           write_files(p, mti_describe_profile, 0, &o->output);
}

/* Reports the failure and, if memory ran out, what held it. */
static int report_failure(mti_profile_result *p, const mti_options *o)
{
    size_t event;
    bool full =
        mt_last_status() == MT_ERR_MEMORY && mti_timeline_refusal(&p->measured.timeline, &event);
    int status = mti_report_failure(o);
    if (!full) return status;
    char text[512];
    snprintf(text, sizeof text, "%s", mt_last_error());
    mt_clear_error(); /* reported; the reports may fail for other reasons */
    bool ok = mti_profile_find_requirement(p) &&
              (!mti_wants_text(o) || mti_print_refusal(p, event, o->output.verbose, stdout)) &&
              write_files(p, mti_describe_refused, event, &o->output);
    if (!ok) return mti_report_failure(o);
    mti_fail(MT_ERR_MEMORY, "%s", text);
    return status;
}

/* Whether the books balance and the peak is within the budget. */
static int conclude(const mti_profile_result *p, const mti_options *o)
{
    int status = MTI_EXIT_OK;
    if (p->measured.growth.residual || p->formula.unexplained) {
        fprintf(stderr,
                "memtape profile: the books do not balance: growth off by %lld bytes, "
                "formula by %lld\n",
                (long long)p->measured.growth.residual, (long long)p->formula.unexplained);
        status = MTI_EXIT_FAILED;
    }
    size_t highest = mti_highest_phase(&p->measured, NULL)->peak;
    if (o->workload.budget && highest > o->workload.budget) {
        mti_print(stderr,
                  "memtape profile: the peak, %zu bytes, is above the budget: kernels of %s "
                  "take scratch memory that the search did not count\n",
                  highest, o->workload.device.kind);
        status = MTI_EXIT_FAILED;
    }
    return status;
}

/* ---- --outside ---- */

/* cuBLAS's workspaces are measured as gemm-workspace where that may be. */
static void count_workspaces(mti_workload *w, const mt_gpu *gpu)
{
    if (!strcmp(w->device.kind, "meta") && !w->device.gemm_workspace)
        w->device.gemm_workspace = mti_outside_workspace(gpu);
}

static void add_outside(mti_profile_result *p, const mt_gpu *gpu)
{
    const mti_measurement *m = &p->measured;
    const mti_workload *w = &p->workload;
    size_t counted = w->device.gemm_workspace;
    size_t held = m->phases.at[m->phases.n - 1].allocated;
    mti_outside_begin(&p->outside, gpu, &w->parallel);
    p->outside.reserved = m->steady.reserved;
    mti_outside_add(&p->outside,
                    (mti_outside_row){"cuBLAS workspaces, 2",
                                      2 * (counted ? counted : mti_outside_workspace(gpu)),
                                      counted ? MTI_SIDE_RESERVED : MTI_SIDE_UNCOUNTED, true,
                                      "PyTorch, CublasHandlePool.cpp"});
    if (w->config.ops.linear >= MT_LINEAR_TE_DELAYED)
        mti_outside_add(&p->outside,
                        (mti_outside_row){"Transformer Engine's workspace",
                                          mti_outside_te_workspace(gpu), MTI_SIDE_UNCOUNTED, true,
                                          "TransformerEngine, cpp_extensions/gemm.py"});
    mti_outside_add(&p->outside,
                    (mti_outside_row){
                        "CUDA graph's own pool", m->steady.peak > held ? m->steady.peak - held : 0,
                        MTI_SIDE_CAPTURED, true, "PyTorch, CUDACachingAllocator.cpp"});
}

int mti_profile(const mti_options *o)
{
    mti_profile_result p = {0};
    mti_workload w = o->workload;
    mt_gpu gpu;
    if (o->output.outside && !mti_find_gpu(o, &gpu)) return mti_report_failure(o);
    if (o->output.outside) count_workspaces(&w, &gpu);
    bool ok = mti_profile_make(&p, &w, MTI_ON_META, o->output.inference);
    if (ok && o->output.outside) add_outside(&p, &gpu);
    ok = ok && write_reports(&p, o);
    int status = ok ? conclude(&p, o) : report_failure(&p, o);
    mti_profile_free(&p);
    return status;
}

const mti_verb_rules mti_profile_rules = {.verb = MTI_PROFILE, .complete = mti_complete_within_gpu};

/* ---- one of several ranks ---- */

/* Whether all ranks have made the same model of MODEL, which may be a file. */
static bool same_model(const mti_options *o)
{
    json_t *model = mti_json_of(mti_describe_model, &o->workload);
    char *text = mti_json_complete(model, 0);
    json_decref(model);
    bool ok = text && mt_comm_agree(o->world, "the model", text) == MT_OK;
    mti_free(text);
    return ok;
}

static int agree(const mti_options *o, bool ok)
{
    return mti_together_end(o->world, NAME, ok ? MTI_EXIT_OK : MTI_EXIT_FAILED, mt_last_error());
}

static bool report_together(const mti_options *o, const mti_rank_run *r,
                            const mti_rank_figures *all)
{
    json_t *object = NULL;
    mt_group group = mt_comm_group(o->world);
    if (o->output.json &&
        !mti_together_gather(o->world, mti_rank_run_json(r, o->output.timeline), &object))
        return false;
    if (group.rank > 0) return true;
    return (!mti_wants_text(o) || mti_print_together(&o->workload, all, group.ranks, stdout)) &&
           (!object || mti_json_write(object, o->output.json) == MT_OK);
}

/* Whether what was measured is what was predicted. */
static bool is_predicted(const mti_rank_run *r)
{
    size_t bytes = mti_rank_run_difference(&r->figures);
    return !r->measured.device || !bytes ||
           mti_fail_bool(MT_ERR_INTERNAL,
                         "the books differ from what meta predicted by %zu bytes in all", bytes);
}

static bool share_room(const mti_options *o, const mti_rank_run *r)
{
    return mti_check_room_together(o->world, o->workload.device.kind, o->workload.name,
                                   r->figures.predicted[MTI_PEAK], MTI_ON_META);
}

/* Once all are placed. An error while others may wait in a collective ends all of them. */
static int run_together(const mti_options *o, const mti_workload *w, mti_rank_run *r,
                        mti_rank_figures *all)
{
    bool data = strcmp(w->device.kind, "meta") != 0;
    int status = agree(o, mti_rank_run_predict(r, w, MTI_ON_META));
    if (status == MTI_EXIT_OK && data) status = agree(o, share_room(o, r));
    if (status != MTI_EXIT_OK) return status;
    if ((data && !mti_rank_run_measure(r, w, MTI_ON_META)) ||
        !mti_comm_share(o->world, &r->figures, sizeof r->figures, all) ||
        !report_together(o, r, all)) {
        mti_together_abort(o->world, NAME);
        return MTI_EXIT_FAILED;
    }
    return agree(o, is_predicted(r));
}

int mti_profile_together(const mti_options *o)
{
    mti_workload w = o->workload;
    mt_group group = mt_comm_group(o->world);
    mti_rank_figures *all = mti_calloc((size_t)group.ranks, sizeof *all);
    mti_rank_run r = {0};
    w.rank = group.rank;
    bool ok = all && mt_parallel_place(&w.parallel, o->world) == MT_OK && same_model(o);
    int status = agree(o, ok);
    if (status == MTI_EXIT_OK) status = run_together(o, &w, &r, all);
    mti_rank_run_free(&r);
    mt_parallel_close(&w.parallel);
    mti_free(all);
    return status;
}
