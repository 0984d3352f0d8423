/* one_rank.c: options of one rank of several. */
#include <string.h>
#include "options/option_table.h"
#include "nn/model.h"
#include "parallel/parallel.h"

/* In train a microbatch is one of the batches whose gradients a step sums. */
static bool name_accumulated(mti_options *o)
{
    if (o->verb != MTI_TRAIN || !mti_is_given(o, MTI_O_MICROBATCHES)) return true;
    const int64_t n = o->workload.parallel.microbatches;
    if (mti_is_given(o, MTI_O_ACCUMULATE))
        return mti_options_refuse(o,
                                  "--microbatches %lld and --accumulate %lld: in train they are "
                                  "the same number; give one of the two",
                                  (long long)n, (long long)o->train.settings.accumulate);
    o->train.settings.accumulate = n;
    o->chosen[MTI_O_ACCUMULATE] = MTI_BY_WORD;
    return true;
}

bool mti_rank_defaults(mti_options *o)
{
    o->workload.ranked = mti_is_rank(o);
    if (o->workload.ranked && !mti_is_given(o, MTI_O_OPTIMIZER))
        o->workload.optimizer = MTI_OPT_DEFAULT;
    return name_accumulated(o);
}

static bool count_ranks(mti_options *o, int64_t *of_a_stage, int64_t *all)
{
    const mt_parallel h = mti_filled_in(&o->workload.parallel);
    return (!__builtin_mul_overflow(h.tensor, h.context, of_a_stage) &&
            !__builtin_mul_overflow(*of_a_stage, h.data, of_a_stage) &&
            !__builtin_mul_overflow(*of_a_stage, h.pipeline, all)) ||
           mti_options_refuse(o, "--tp, --cp, --dp, --pp: more ranks than can be counted");
}

/* --rank says which stage and which shard of a sequence, too, and which experts; other ranks differ
 * in nothing that is measured. The rank with the last shard needs most: its queries see all keys.
 */
static bool place_rank(mti_options *o)
{
    mt_parallel *h = &o->workload.parallel;
    const mt_parallel n = mti_filled_in(h);
    int64_t of_a_stage = 0, all = 0, *rank = &o->workload.rank;
    const bool given = mti_is_given(o, MTI_O_RANK);
    if (!count_ranks(o, &of_a_stage, &all)) return false;
    if (!given) *rank = h->stage * of_a_stage + (n.context - 1) * n.tensor;
    if (given && *rank >= all)
        return mti_options_refuse(o, "--rank %lld: there are %lld ranks; need 0 to %lld",
                                  (long long)*rank, (long long)all, (long long)all - 1);
    if (given) h->stage = *rank / of_a_stage;
    h->context_rank = *rank / n.tensor % n.context;
    if (h->expert > 1) h->data_rank = *rank / n.tensor / n.context % n.data;
    if (h->expert > 1 && h->expert_tensor == 1) h->tensor_rank = *rank % n.tensor;
    return true;
}

/* One process cannot be several ranks, but tells how to start them. */
static bool refuse_one_process(mti_options *o)
{
    static const mti_option counts[] = {MTI_O_TP, MTI_O_PP, MTI_O_CP, MTI_O_DP};
    char words[96] = "", value[MTI_VALUE_TEXT];
    int64_t of_a_stage = 0, all = 0;
    if (!count_ranks(o, &of_a_stage, &all)) return false;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const mti_option_row *r = &mti_option_rows[counts[i]];
        if (mti_is_given(o, r->id))
            mti_append(words, sizeof words, " --%s %s", r->name, mti_option_text(o, r, value));
    }
    if (all == 1)
        return mti_options_refuse(o, "--tp, --pp, --cp, --dp: they divide training among 2 ranks "
                                     "or more, and ask for 1; leave them out, and --microbatches "
                                     "is --accumulate");
    return mti_options_refuse(o,
                              "--tp, --pp, --cp, --dp: training takes all ranks at once; start "
                              "them with: mpirun -n %lld memtape train%s ...",
                              (long long)all, words);
}

bool mti_check_rank(mti_options *o)
{
    mti_workload *w = &o->workload;
    mt_parallel *h = &w->parallel;
    const bool trains = o->verb == MTI_TRAIN;
    const mt_parallel n = mti_filled_in(h);
    const int64_t shard = w->seq / n.context;
    if (!w->ranked) return true;
    if (trains && !o->world) return refuse_one_process(o);
    if (!trains && strcmp(w->device.kind, "meta") != 0 && !(o->verb == MTI_PROFILE && o->world))
        return mti_options_refuse(
            o,
            "--tp, --sp, --pp, --microbatches, --cp, --dp and --zero show one rank of several; "
            "give --device meta, which needs no other rank, or to profile start all of them with "
            "mpirun");
    if (trains) h->microbatches = o->train.settings.accumulate;
    if (h->sequence && shard % n.tensor)
        return mti_options_refuse(o, "--sp: --seq %lld is cut among --tp %lld; need a multiple",
                                  (long long)shard, (long long)h->tensor);
    if (!trains && !place_rank(o)) return false;
    return mt_parallel_check(h, &w->config) == MT_OK || mti_options_refuse_as(o, "");
}
