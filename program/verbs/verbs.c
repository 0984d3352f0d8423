/* verbs.c: what the verbs have of their own in their options. */
#include "verbs/verbs.h"

const mti_verb_rules *mti_verb_rules_of(mti_verb verb)
{
    static const mti_verb_rules none[MTI_VERB_COUNT] = {
#define VERB(id, ...) [MTI_##id] = {MTI_##id},
#include "options/verbs.def"
#undef VERB
    };
    static const mti_verb_rules *const own[MTI_VERB_COUNT] = {
#define VERB(id, name, args, run, rules, ...) [MTI_##id] = rules,
#include "options/verbs.def"
#undef VERB
    };
    return own[verb] ? own[verb] : &none[verb];
}
