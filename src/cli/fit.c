/* fit.c: `memtape fit MODEL`: whether a model trains on some GPUs, and the fastest ways to. */
#include <string.h>
#include "cli/verbs.h"
#include "fit/fit.h"
#include "report/results.h"

static void show(void *user, int64_t done, int64_t of, int64_t measured)
{
    char text[64];
    mti_progress *p = user;
    p->total = of;
    snprintf(text, sizeof text, "ways to divide the model, %lld set-ups measured",
             (long long)measured);
    mti_progress_step(p, done, text);
}

static bool find_gpu(const mti_options *o, mt_gpu *gpu)
{
    mt_status status =
        o->fit.file ? mt_gpu_find_in(o->fit.file, o->fit.gpu, gpu) : mt_gpu_find(o->fit.gpu, gpu);
    return status == MT_OK;
}

static mt_fit_options options_of(const mti_options *o, const mt_gpu *gpu, mti_progress *progress)
{
    const mti_workload *w = &o->workload;
    bool zero = o->given[MTI_O_ZERO] || o->by_recipe[MTI_O_ZERO];
    return (mt_fit_options){.gpu = gpu,
                            .gpus = o->fit.gpus,
                            .batch = w->batch,
                            .kept_aside = w->device.capacity ? gpu->memory - w->device.capacity : 0,
                            .utilisation = o->plan.utilisation,
                            .tensor = w->parallel.tensor,
                            .pipeline = w->parallel.pipeline,
                            .interleave = w->parallel.interleave,
                            .context = w->parallel.context,
                            .zero_plus_1 = zero ? (int)o->zero + 1 : 0,
                            .checkpoint = !o->given[MTI_O_CHECKPOINT] ? NULL
                                          : w->memory.checkpoint      ? w->memory.checkpoint
                                                                      : "none",
                            .offload = !o->given[MTI_O_OFFLOAD] ? NULL
                                       : w->memory.offload      ? "cpu"
                                                                : "none",
                            .progress = progress->style.live ? show : NULL,
                            .user = progress};
}

static bool write_reports(const mti_options *o, const mt_fit_result *r,
                          const mti_fit_remedies *remedies)
{
    char command[2048];
    mti_fit_report report = {.result = r,
                             .remedies = remedies,
                             .workload = &o->workload,
                             .command = command,
                             .utilisation = o->plan.utilisation,
                             .price = o->fit.price,
                             .tokens = o->plan.tokens};
    if (!mti_profile_command(o, r, &r->setups[0], command, sizeof command))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "the command that profiles the first set-up is "
                             "longer than %zu bytes",
                             sizeof command);
    return (!mti_wants_text(o) || mti_print_fit(&report, stdout)) &&
           (!o->json || mti_json_write(mti_fit_json(&report), o->json) == MT_OK);
}

int mti_fit(const mti_options *o)
{
    mt_gpu gpu;
    mt_fit_result r = {0};
    mti_fit_remedies remedies;
    mti_progress progress;
    mti_progress_begin(&progress, stderr, 0, 1, 1, o->quiet);
    bool ok = find_gpu(o, &gpu);
    if (ok && o->workload.device.capacity > gpu.memory)
        gpu.memory = o->workload.device.capacity; /* whoever gives more knows of more */
    const mt_fit_options options = options_of(o, &gpu, &progress);
    ok = ok && mti_fit_run(&o->workload, &options, false, 0, &r) &&
         mti_fit_remedies_make(&remedies, &r, &o->workload, &options);
    mti_progress_end(&progress);
    ok = ok && write_reports(o, &r, &remedies);
    int status = !ok ? mti_report_failure(o) : r.n_fitting ? MTI_EXIT_OK : MTI_EXIT_FAILED;
    mt_fit_free(&r);
    return status;
}
