/* attention_f64.c: flash attention in f64, for gradient checks. */
#include <string.h>
#define REAL                      double
#define REAL_DTYPE                MT_F64
#define EXP                       exp
#define LOG                       log
#define GEMM                      mti_dgemm
#define LOAD(dtype, src, dst, n)  memcpy(dst, src, (size_t)(n) * sizeof(double))
#define STORE(dtype, src, dst, n) memcpy(dst, src, (size_t)(n) * sizeof(double))
#define FORWARD                   mti_attn_forward_f64
#define FORWARD_SCRATCH           mti_attn_forward_scratch_f64
#define BACKWARD                  mti_attn_backward_f64
#define BACKWARD_SCRATCH          mti_attn_backward_scratch_f64
#include "backends/cpu/attention/attention_block.inc"
