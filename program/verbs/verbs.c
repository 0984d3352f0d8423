/* verbs.c: what the verbs have of their own in their options. */
#include "verbs/verbs.h"

const mti_verb_rules *mti_verb_rules_of(mti_verb verb)
{
    static const mti_verb_rules demo = {MTI_DEMO}, profile = {MTI_PROFILE}, audit = {MTI_AUDIT};
    static const mti_verb_rules *const all[MTI_VERB_COUNT] = {
        [MTI_DEMO] = &demo,
        [MTI_TRAIN] = &mti_train_rules,
        [MTI_GENERATE] = &mti_generate_rules,
        [MTI_PROFILE] = &profile,
        [MTI_EXPLAIN] = &mti_explain_rules,
        [MTI_AUDIT] = &audit,
        [MTI_SWEEP] = &mti_sweep_rules,
        [MTI_PLAN] = &mti_plan_rules,
        [MTI_FIT] = &mti_fit_rules,
        [MTI_SERVE] = &mti_serve_rules,
        [MTI_COMPARE] = &mti_compare_rules,
    };
    return all[verb];
}
