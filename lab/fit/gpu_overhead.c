/* gpu_overhead.c: what a GPU holds beside the allocator's tensors, with the source of every figure;
 * issues and pulls are those of github.com. */
#include "base/base.h"
#include "fit/search.h"

#define MIB ((size_t)1 << 20)
/* With modules loaded when they are needed; a card that was measured has its own (mt_gpu). */
#define CONTEXT        (300 * MIB)
#define CONTEXT_SOURCE "pytorch/pytorch issue 107667"
/* What a group takes after its first sum. */
#define COMMUNICATOR(ranks) (((ranks) > 2 ? 688 : 544) * MIB)
#define COMMUNICATOR_SOURCE "NVIDIA/nccl issue 964, A100s"
/* :4096:2:16:8, before Hopper. */
#define WORKSPACE ((4096 * 2 + 16 * 8) * (size_t)1024)

void mti_outside_begin(mti_outside *o, const mt_gpu *gpu, const mt_parallel *ranks)
{
    const struct {
        const char *name;
        int64_t n;
    } groups[] = {{"tp", ranks->tensor},
                  {"cp", ranks->context},
                  {"dp", ranks->data},
                  {"ep", ranks->expert},
                  {"pp", ranks->pipeline}};
    *o = (mti_outside){.gpu = gpu->name};
    mti_outside_add(o, (mti_outside_row){"CUDA context", gpu->context ? gpu->context : CONTEXT,
                                         .source = *gpu->context_source ? gpu->context_source
                                                                        : CONTEXT_SOURCE});
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        mti_outside_row row = {.bytes = COMMUNICATOR(groups[i].n), .source = COMMUNICATOR_SOURCE};
        mti_format(row.name, sizeof row.name, "NCCL, %s's %lld ranks", groups[i].name,
                   (long long)groups[i].n);
        if (groups[i].n > 1) mti_outside_add(o, row);
    }
}

size_t mti_outside_workspace(const mt_gpu *gpu)
{
    return gpu->gemm_workspace ? gpu->gemm_workspace : WORKSPACE;
}

/* From Hopper on as much as cuBLAS, and 1 KiB for scales and alignment. */
size_t mti_outside_te_workspace(const mt_gpu *gpu)
{
    return gpu->gemm_workspace ? gpu->gemm_workspace + 1024 : 4 * MIB;
}

void mti_gpu_outside(mti_outside *out, const mt_gpu *g, int64_t gpus)
{
    mti_outside_begin(out, g, &(mt_parallel){.data = gpus});
    if (gpus > 1) snprintf(out->rows[1].name, sizeof out->rows[1].name, "NCCL, one group");
    mti_outside_add(out, (mti_outside_row){"workspaces, other groups", 1024 * MIB, .formula = true,
                                           .source = "docs/fit.md"});
}

size_t mti_gpu_kept_aside(const mt_gpu *g, int64_t gpus)
{
    mti_outside rows;
    mti_gpu_outside(&rows, g, gpus);
    return mti_outside_sum(&rows, MTI_SIDE_BEYOND);
}
