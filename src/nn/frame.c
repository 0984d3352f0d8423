/* frame.c: a checkpoint around a module, or around several of its layers. */
#include "nn/frame.h"

static mt_status run(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    const mti_module_frame *f = user;
    (void)n_in, (void)n_out;
    out[0] = f->run ? f->run(f->m, in) : f->layers(f->m, mt_retain(in[0]), f->from, f->to);
    return out[0] ? MT_OK : mt_last_status();
}

mt_tensor *mti_run_frame(mti_module_frame init, int n_in, mt_tensor *const *in,
                         const mt_checkpoint_options *options)
{
    mt_tensor *out;
    mti_module_frame *frame = mti_malloc(sizeof *frame);
    if (!frame) return NULL;
    *frame = init;
    mt_status status = mt_checkpoint(run, frame, mti_free, n_in, in, 1, &out, options);
    return status == MT_OK ? out : NULL;
}
