/* verbs.h: the verbs, each in its own file; they return the exit status. */
#ifndef MTI_CLI_VERBS_H
#define MTI_CLI_VERBS_H

#include "memtape/lab/fit.h"
#include "options/options.h"
#include "report/json.h"

#define VERB(id, name, args, run, ...) int run(const mti_options *o);
#include "options/verbs.def"
#undef VERB
int mti_profile_together(const mti_options *o); /* each of several ranks */

extern const mti_verb_rules mti_train_rules, mti_generate_rules, mti_explain_rules, mti_sweep_rules,
    mti_profile_rules, mti_plan_rules, mti_fit_rules, mti_serve_rules, mti_compare_rules;
const mti_verb_rules *mti_verb_rules_of(mti_verb verb);
/* Verbs, options and their defaults, recipes, presets and GPUs as one JSON object, for programs
 * that read it. False: no memory. */
bool mti_help_json(FILE *out);

/* The kind that --gpu names; what of its memory is not the allocator's. */
bool mti_find_gpu(const mti_options *o, mt_gpu *gpu);
/* Takes f16 for bf16 that was not asked for, on a GPU that multiplies none, and notes it. */
bool mti_complete_for_gpu(mti_options *o, mt_model_config *base);
/* And takes its memory, less what is kept aside, as the capacity, unless that is given. */
bool mti_complete_within_gpu(mti_options *o, mt_model_config *base);
size_t mti_kept_aside(const mti_options *o, const mt_gpu *gpu, int64_t gpus);
/* Restarts the program if OpenBLAS has better kernels for this CPU than it chose. False, with a
 * message, if there was no memory for it. */
#define MTI_CORETYPE "OPENBLAS_CORETYPE"
bool mti_start_with_fast_kernels(char **argv);
/* Calls fn(argc, argv) on a stack that is large enough, whatever the limit on the main stack is. */
typedef int mti_main_fn(int argc, char **argv);
int mti_on_enough_stack(mti_main_fn *fn, int argc, char **argv);
/* Prints this thread's last error; returns MTI_EXIT_FAILED, or MTI_EXIT_USAGE for a word that no
 * reader of options could know. */
int mti_report_failure(const mti_options *o);
/* The workload's device, seeded. */
mt_device *mti_open_device(const mti_workload *w);

/* Advice where a device has no room: for a verb that takes --device meta, and for the others. */
#define MTI_ON_META         "--device meta measures it without the memory"
#define MTI_PROFILE_ON_META "profile --device meta measures a model without the memory"

#endif
