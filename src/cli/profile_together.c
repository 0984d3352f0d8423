/* profile_together.c: `mpirun -n 4 memtape profile MODEL --tp 2 --dp 2`: every rank under its own
 * ledger, gathered on rank 0. */
#include <string.h>
#include "cli/together.h"
#include "cli/verbs.h"
#include "comm/comm.h"
#include "measure/room.h"
#include "report/results.h"

#define NAME "memtape profile"

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

/* ---- gathering ---- */

static bool report(const mti_options *o, const mti_rank_run *r, const mti_rank_figures *all)
{
    json_t *object = NULL;
    mt_group group = mt_comm_group(o->world);
    if (o->json && !mti_together_gather(o->world, mti_rank_run_json(r, o->timeline), &object))
        return false;
    if (group.rank > 0) return true;
    return (!mti_wants_text(o) || mti_print_together(&o->workload, all, group.ranks, stdout)) &&
           (!object || mti_json_write(object, o->json) == MT_OK);
}

/* Whether what was measured is what was predicted. */
static bool is_predicted(const mti_rank_run *r)
{
    size_t bytes = mti_rank_run_difference(&r->figures);
    return !r->measured.device || !bytes ||
           mti_fail_bool(MT_ERR_INTERNAL,
                         "the books differ from what meta predicted by %zu bytes in all", bytes);
}

/* ---- the run ---- */

static bool share_room(const mti_options *o, const mti_rank_run *r)
{
    return mti_check_room_together(o->world, o->workload.device.kind, o->workload.name,
                                   r->figures.predicted[MTI_PEAK], MTI_ON_META);
}

/* Once all are placed. An error while others may wait in a collective ends all of them. */
static int run(const mti_options *o, const mti_workload *w, mti_rank_run *r, mti_rank_figures *all)
{
    bool data = strcmp(w->device.kind, "meta") != 0;
    int status = agree(o, mti_rank_run_predict(r, w, MTI_ON_META));
    if (status == MTI_EXIT_OK && data) status = agree(o, share_room(o, r));
    if (status != MTI_EXIT_OK) return status;
    if ((data && !mti_rank_run_measure(r, w, MTI_ON_META)) ||
        !mti_comm_share(o->world, &r->figures, sizeof r->figures, all) || !report(o, r, all)) {
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
    if (status == MTI_EXIT_OK) status = run(o, &w, &r, all);
    mti_rank_run_free(&r);
    mt_parallel_close(&w.parallel);
    mti_free(all);
    return status;
}
