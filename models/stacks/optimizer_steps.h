/* optimizer_steps.h: what other libraries hold while an optimizer steps. */
#ifndef MTI_OPTIMIZER_STEPS_H
#define MTI_OPTIMIZER_STEPS_H

#include "backends/backend.h"
#include "memtape/tensor.h"

/* A step of AdamW, a parameter of codes at a time, beside what torchao's compiled one allocates. A
 * block's scale is known only once the whole block is. So both new moments are written in f32,
 * beside the parameter in f32, and then encoded one after the other. Ours needs none of this. */
bool mti_torchao_step(mt_device *d, const mti_opt_params *p, int n, const mti_opt_item *items);
/* Copies n gradients side by side in their type, if they have one, and casts them to f32; each
 * becomes a view of that. Those of f64 stay. DeepSpeed's stage_1_and_2.py, step, and stage3.py,
 * _prepare_fp32_grad_for_sub_group. */
bool mti_deepspeed_flatten(mt_device *d, size_t n, mt_tensor **const grads[]);

#endif
