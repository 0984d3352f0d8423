/* attention_f32.c: flash attention in f32, for f32, bf16 and f16. */
#define REAL             float
#define REAL_DTYPE       MT_F32
#define EXP              mti_exp_nonpositive_f32
#define LOG              mti_log_f32
#define GEMM             mti_sgemm
#define LOAD             mti_cpu_load_f32
#define STORE            mti_cpu_store_f32
#define FORWARD          mti_attn_forward_f32
#define FORWARD_SCRATCH  mti_attn_forward_scratch_f32
#define BACKWARD         mti_attn_backward_f32
#define BACKWARD_SCRATCH mti_attn_backward_scratch_f32
#include "backends/cpu/attention/attention_block.inc"
