/* verbs.c: what the verbs have of their own in their options, and `memtape ranks`: what a rank
 * keeps of four large models, technique by technique. */
#include "verbs/verbs.h"
#include "report/page.h"
#include "report/results.h"

const mti_verb_rules *mti_verb_rules_of(mti_verb verb)
{
    static const mti_verb_rules demo = {MTI_DEMO}, profile = {MTI_PROFILE}, audit = {MTI_AUDIT},
                                ranks = {MTI_RANKS};
    static const mti_verb_rules *const all[MTI_VERB_COUNT] = {
        [MTI_DEMO] = &demo,
        [MTI_TRAIN] = &mti_train_rules,
        [MTI_GENERATE] = &mti_generate_rules,
        [MTI_PROFILE] = &profile,
        [MTI_EXPLAIN] = &mti_explain_rules,
        [MTI_AUDIT] = &audit,
        [MTI_SWEEP] = &mti_sweep_rules,
        [MTI_PLAN] = &mti_plan_rules,
        [MTI_RANKS] = &ranks,
        [MTI_FIT] = &mti_fit_rules,
        [MTI_SERVE] = &mti_serve_rules,
        [MTI_COMPARE] = &mti_compare_rules,
    };
    return all[verb];
}

int mti_ranks(const mti_options *o)
{
    mti_ranks_result r;
    bool ok = mti_ranks_make(&r) && (!mti_wants_text(o) || mti_print_ranks(&r, stdout)) &&
              mti_write_object(mti_describe_ranks, &r, o->json, o->html, "one rank of",
                               "a trillion parameters");
    return ok ? MTI_EXIT_OK : mti_report_failure(o);
}
