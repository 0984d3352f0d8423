/* train_options.c: what only `memtape train` has in its options. */
#include "verbs/verbs.h"

#define TRAINED "tiny" /* the preset that is trained unless told otherwise */

static void set_defaults(mti_options *o)
{
    o->workload.batch = 16, o->workload.seq = 128, o->train.settings.steps = 1000;
    o->workload.optimizer = MTI_OPT_DEFAULT;
    mt_model_preset(TRAINED, &o->workload.config);
}

static bool check_words(mti_options *o)
{
    if (o->train.data.n == 0 && !o->train.resume)
        return mti_options_refuse(o, "--data is missing; give a file to learn from");
    if (!o->train.resume && !o->train.settings.from && !o->workload.preset)
        o->workload.preset = TRAINED;
    return true;
}

static bool complete(mti_options *o, mt_model_config *base)
{
    if (base->kind == MT_MODEL_BERT)
        return mti_options_refuse(
            o, "--preset: \"%.80s\" predicts masked tokens, not the next; give a gpt or a llama",
            o->workload.preset);
    base->vocab = 256; /* bytes */
    if (!mti_is_given(o, MTI_O_SEQ)) o->workload.seq = base->context;
    base->context = o->workload.seq;
    return true;
}

const mti_verb_rules mti_train_rules = {
    .verb = MTI_TRAIN, .defaults = set_defaults, .check_words = check_words, .complete = complete};
