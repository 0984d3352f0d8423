/* train_ranks.c: `mpirun -n 4 memtape train --tp 2 --dp 2`: what the ranks tell each other besides
 * their steps. */
#include "verbs/train_ranks.h"
#include <inttypes.h>
#include <string.h>
#include "verbs/run_file.h"
#include "verbs/together.h"
#include "verbs/verbs.h"
#include "comm/comm.h"
#include "measure/headroom.h"
#include "report/results.h"

bool mti_train_ranks_place(mti_options *o, mti_rank_figures *f)
{
    mti_workload *w = &o->workload;
    const mt_parallel *h = &w->parallel;
    if (mt_parallel_place(&w->parallel, o->world) != MT_OK) return false;
    w->rank = mt_comm_group(o->world).rank;
    *f = (mti_rank_figures){.rank = w->rank,
                            .tensor_rank = h->tensor_rank,
                            .data_rank = h->data_rank,
                            .stage = h->stage};
    return true;
}

/* ---- agreeing ---- */

static bool same_text(mt_comm *world, const mti_corpus *c)
{
    char text[128];
    snprintf(text, sizeof text, "%zu bytes to learn from, %zu held out, hash %016" PRIx64,
             c->n_train, c->n_held, c->fingerprint);
    return mt_comm_agree(world, "the text (--data)", text) == MT_OK;
}

static bool same_model(mt_comm *world, const mt_model_config *config)
{
    char text[MT_MODEL_CONFIG_TEXT];
    return mt_model_config_to_json(config, text, sizeof text) == MT_OK &&
           mt_comm_agree(world, "the model", text) == MT_OK;
}

/* The settings may come from a file, which may be another one on another machine. */
static bool same_settings(const mti_options *o, int64_t step)
{
    char *settings = mti_run_settings(o);
    size_t size = settings ? strlen(settings) + 64 : 0;
    char *text = settings ? mti_malloc(size) : NULL;
    if (text) snprintf(text, size, "step %" PRId64 " of %s", step, settings);
    bool ok = text && mt_comm_agree(o->world, "the run", text) == MT_OK;
    mti_free(settings);
    mti_free(text);
    return ok;
}

bool mti_train_ranks_agree(const mti_options *o, const mti_corpus *corpus, int64_t step)
{
    return same_text(o->world, corpus) && same_model(o->world, &o->workload.config) &&
           same_settings(o, step);
}

bool mti_train_ranks_share_room(const mti_options *o, mti_rank_figures *f, bool ok)
{
    const mti_workload *w = &o->workload;
    if (!o->world || f->room_asked) return ok;
    f->room_asked = true;
    return mti_check_room_together(o->world, w->device.kind, w->preset ? w->preset : "this model",
                                   ok ? f->predicted[MTI_PEAK] : 0, MTI_ON_META) &&
           ok;
}

typedef struct ending {
    int32_t signalled, ends;
} ending;

bool mti_train_ranks_end_early(mt_comm *world, int *signalled, bool *ends)
{
    int64_t ranks = mt_comm_group(world).ranks;
    ending own = {*signalled, *ends}, *all = mti_calloc((size_t)ranks, sizeof *all);
    bool ok = all && mti_comm_share(world, &own, sizeof own, all);
    for (int64_t r = 0; ok && r < ranks; r++) {
        if (!*signalled) *signalled = all[r].signalled;
        *ends = *ends || all[r].ends;
    }
    mti_free(all);
    return ok;
}

/* ---- reporting ---- */

void mti_train_ranks_introduce(const mti_workload *w)
{
    const mt_parallel h = mti_filled_in(&w->parallel);
    mti_print(stdout,
              "ranks  %lld: %lld share each layer%s, %lld have %lld of the %lld sequences each",
              (long long)(h.tensor * h.context * h.data * h.pipeline), (long long)h.tensor,
              h.sequence ? " and the sequence" : "", (long long)h.data,
              (long long)(w->batch / h.data), (long long)w->batch);
    if (h.context > 1)
        printf(", %lld have %lld of the %lld bytes of each", (long long)h.context,
               (long long)(w->seq / h.context), (long long)w->seq);
    if (h.pipeline > 1)
        mti_print(stdout, ", %lld have %lld%s of the %lld layers each", (long long)h.pipeline,
                  (long long)(w->config.layers / h.pipeline),
                  w->config.layers % h.pipeline ? " or more" : "", (long long)w->config.layers);
    if (h.interleave > 1) printf(" in %lld parts", (long long)h.interleave);
    if (h.expert > 1)
        printf(", %lld have %lld of the %lld experts each", (long long)h.expert,
               (long long)(w->config.experts / h.expert), (long long)w->config.experts);
    if (h.zero) printf("; ZeRO %lld", (long long)h.zero);
    printf("\n");
}

/* On rank 0, of all ranks. */
static bool print_all(const mti_options *o, const mti_rank_figures *all)
{
    mti_workload w = o->workload;
    if (!w.name) w.name = w.preset ? w.preset : mt_model_kind_name(w.config.kind);
    mti_print(stdout,
              "\nOn rank 0, %.2f s in communication and %.2f s more hidden behind compute\n",
              all->in_comms, all->hidden);
    printf("\nThe first steps' memory:\n");
    return mti_print_together(&w, all, mt_comm_group(o->world).ranks, stdout);
}

bool mti_train_ranks_report(const mti_options *o, mti_rank_figures *f, const mti_trainer *t)
{
    const mt_parallel *h = &o->workload.parallel;
    mt_group group = mt_comm_group(o->world);
    json_t *object = NULL;
    const mti_training own = {&t->workload, f, t->step, t->loss, t->memory_hooks.scaler};
    f->n_params = t->stage.n_params;
    f->sent = mti_parallel_sent(h);
    mti_parallel_times(h, &f->in_comms, &f->hidden);
    mti_rank_figures *all = mti_calloc((size_t)group.ranks, sizeof *all);
    bool ok = all && mti_comm_share(o->world, f, sizeof *f, all) &&
              (!o->output.json ||
               mti_together_gather(o->world, mti_json_of(mti_describe_training, &own), &object));
    if (ok && group.rank == 0)
        ok = (o->output.quiet || print_all(o, all)) &&
             (!object || mti_json_write(object, o->output.json) == MT_OK);
    mti_free(all);
    return ok;
}
