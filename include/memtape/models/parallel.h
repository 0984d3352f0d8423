/* parallel.h: one rank of a model that is split among many, with the others or without them.
 *
 * Tensor parallelism (Shoeybi et al. 2019) cuts each layer's matrices, sequence parallelism
 * (Korthikanti et al. 2022) what lies between them, pipeline parallelism (Narayanan et al. 2021)
 * gives each rank some layers, context parallelism (Llama 3, 2024, 3.3.2) cuts every sequence, ZeRO
 * (Rajbhandari et al. 2020) cuts what the optimizer needs. What a rank keeps depends on shapes
 * alone, so it is measured on `meta`, where collectives are ops that move no data. */
#ifndef MEMTAPE_PARALLEL_H
#define MEMTAPE_PARALLEL_H

#include "memtape/models/amp.h"
#include "memtape/models/group.h"
#include "memtape/models/io.h"
#include "memtape/models/lora.h"
#include "memtape/models/model.h"
#include "memtape/models/optimizer.h"

MT_C_BEGIN

/* How ZeRO 3 gathers and sums, as flags; 0: each module's parameters while it runs, and shards of
 * the config's dtype. */
typedef enum mt_fsdp {
    /* A block's parameters as one, before its forward and again before its backward. */
    MT_FSDP_BLOCK = 1,
    /* The same, while the block before it computes. */
    MT_FSDP_AHEAD = 2 | MT_FSDP_BLOCK,
    /* With these two: the last block stays gathered from forward to backward, which begins with it.
     * Of one stage. */
    MT_FSDP_KEEP_LAST = 4,
    /* Embedding, last norm and head, the root of PyTorch's fully_shard, are gathered before forward
     * and stay so until backward has all their gradients. Of a whole model in one stage. */
    MT_FSDP_KEEP_ROOT = 8,
    /* Shards of parameters that the config has in 16 bits are f32, and so are their gradients; a
     * shard is cast before it is gathered, as PyTorch's fully_shard does under a
     * MixedPrecisionPolicy. Also of one rank; on a device without data. */
    MT_FSDP_F32_SHARDS = 16,
    /* And gradients are cast before they are summed over the ranks, not after. */
    MT_FSDP_F32_REDUCE = 32 | MT_FSDP_F32_SHARDS,
    /* Embeddings are a unit, as a block is, and so are last norm and head, which stay gathered from
     * forward to backward. With blocks; the head has a weight of its own. */
    MT_FSDP_GROUP_ENDS = 64,
    /* Gradients are summed over the ranks with a step's last microbatch; until then they are added
     * up whole, in the type in which they are summed (set_requires_gradient_sync). With blocks. */
    MT_FSDP_REDUCE_LAST = 128,
    /* PyTorch's fully_shard under a MixedPrecisionPolicy with f32 sums, and as torchtitan calls it.
     */
    MT_FSDP_PYTORCH = MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT | MT_FSDP_F32_REDUCE,
    MT_FSDP_TORCHTITAN = MT_FSDP_PYTORCH | MT_FSDP_KEEP_LAST,
    /* As torchtitan calls it since July 2025. */
    MT_FSDP_TORCHTITAN_GROUPED = MT_FSDP_AHEAD | MT_FSDP_F32_REDUCE | MT_FSDP_GROUP_ENDS
} mt_fsdp;

/* When gradients are summed over ranks with other data or positions, without ZeRO and in its first
 * stage. From the second on each is summed, by a rank that waits for it, once it is complete. */
typedef enum mt_reduce_time {
    /* Each as soon as the step's last backward has completed it, while backward goes on, as in
     * PyTorch's DistributedDataParallel; on CUDA, after backward. */
    MT_REDUCE_IN_BACKWARD,
    MT_REDUCE_AFTER /* all by mt_stage_step */
} mt_reduce_time;

/* Where gradients are summed in backward without ZeRO: each in its own memory, or several in a
 * bucket, as in DistributedDataParallel: in the first step in one, then in buckets in the order in
 * which gradients come, of 1 MiB the first. Not on CUDA. */
typedef enum mt_buckets {
    MT_BUCKETS_NONE,
    MT_BUCKETS_COPIED, /* they are copied to it, and back */
    MT_BUCKETS_VIEWS   /* they become views of it (gradient_as_bucket_view) */
} mt_buckets;

/* mt_parallel's reshard: after its forward a block is let go, or stays gathered until its backward.
 * From 2 on: each rank keeps a shard, which so many neighbours gather again. */
enum {
    MT_RESHARD_DEFAULT = 0, /* let go, but for what keep-last and group-ends keep */
    MT_RESHARD_ALWAYS = -1,
    MT_RESHARD_NEVER = -2 /* among stages they stay for a whole step */
};

/* Which rank, among how many. Zero is the usual choice everywhere: one rank. */
typedef struct mt_parallel {
    int64_t tensor;     /* t: ranks that share each layer; a divisor of heads, kv_heads and ffn */
    bool sequence;      /* also splits the sequence between a layer's products */
    int64_t pipeline;   /* p: stages */
    int64_t interleave; /* parts of the model that each stage has. Where p times it does not divide
                           the layers, the first parts have one more. */
    /* Layers of the model's first part, and of its last, predictions ahead among them; 0: these are
     * as the others, and predictions ahead come besides. */
    int64_t first_layers, last_layers;
    int64_t stage;        /* this rank's, from 0 on */
    int64_t microbatches; /* of a step; 0: p. With interleave a multiple of p */
    int64_t context; /* c: ranks with the same shard of the model, for other positions: s/c of a
                        sequence */
    int64_t data;    /* d: ranks with the same shard of the model, for other microbatches */
    int64_t expert;  /* e: of those with other data or positions, neighbours that divide each
                      * layer's experts; a divisor of the experts and of d c, with replicas of
                      * one's ranks. Rows go to their experts and back (mt_all_to_all); the rest
                      * of the model is as without. ZeRO splits experts among d c/e. */
    /* How many of the t ranks share an expert; 0: t, as the rest of a layer. 1: an expert is whole,
     * and those that divide the experts are neighbours among all t d c ranks, each with its own
     * shard of the sequence (Megatron-LM's expert tensor parallelism). Needs `sequence`. */
    int64_t expert_tensor;
    int64_t zero;  /* ZeRO stage: splits 1 optimizer state, 2 also gradients, 3 also parameters */
    unsigned fsdp; /* flags of mt_fsdp, with ZeRO 3 */
    /* With ZeRO 3's blocks. replicas: the ranks with the same shard of the model are so many
     * groups, of which each has all shards, and which sum their sums (HSDP). reduce_inputs: so many
     * blocks' inputs of sums are there at once (reduce_scatter_max_input_buffers). 0 of both: 1. */
    int64_t reshard, replicas, reduce_inputs;
    mt_reduce_time reduce;
    mt_buckets buckets;
    size_t bucket_bytes; /* 0: 25 MiB */
    /* As DeepSpeed has ZeRO. reduce_bucket: gradients are copied to a buffer of so many elements,
     * and scattered when it is full (reduce_bucket_size): in stage 2 as they come, in stage 1 after
     * the last backward; the buffer is there in backward. In stage 3 it is always there, and each
     * gradient is scattered by itself. 0: there is none. sub_group: shards of so many elements are
     * stepped at a time (sub_group_size; in stages 1 and 2 DeepSpeed steps all at once), after
     * their gradients were copied side by side and cast to f32. In stages 1 and 2 these are then
     * dropped; in stage 3 they stay from step to step, as zeros. 0: all, with gradients as they
     * are. */
    int64_t reduce_bucket, sub_group;
    /* With ZeRO 3, on a device without data: shards of parameters are in host memory, as
     * DeepSpeed's offload_param and PyTorch's CPUOffloadPolicy have them. */
    bool host_shards;
    int64_t tensor_rank, context_rank, data_rank; /* this rank's, from 0 on */
    /* To the ranks of each group, borrowed; data_comm: to all with the same shard of the model,
     * whose data or positions are others; ends_comm: the first and the last stage, which share a
     * tied embedding; shard_comm, replica_comm: among replicas, to the other shards and to the same
     * one; reshard_comm: to the neighbours of `reshard`; expert_comm, expert_data_comm: to those
     * with the other experts, and to those with the same. NULL, the usual choice: a group of one,
     * or any on a device without data, where no data has to move. */
    mt_comm *tensor_comm, *context_comm, *data_comm, *pipeline_comm, *ends_comm;
    mt_comm *shard_comm, *replica_comm, *reshard_comm;
    mt_comm *expert_comm, *expert_data_comm;
} mt_parallel;

/* Sets tensor_rank, context_rank, data_rank and stage of rank `number` of all: ranks that share a
 * layer are neighbours, then come those with other positions, then those with other data, then
 * stages, as Megatron-LM numbers them. */
MT_API mt_status mt_parallel_locate(mt_parallel *parallel, int64_t number);
/* The same for this rank of `world`, which has just as many as there are, and makes the comms. All
 * ranks of world call it with the same division. */
MT_API mt_status mt_parallel_place(mt_parallel *parallel, mt_comm *world);
/* Frees the comms, after the modules and stages that have them and before world is freed. */
MT_API void mt_parallel_close(mt_parallel *parallel);

/* MT_OK, or an error that names the field, what it is and what it may be. Of block, gpt,
 * bert and llama; a block is one layer without embedding and head. */
MT_API mt_status mt_parallel_check(const mt_parallel *parallel, const mt_model_config *config);

/* Part `part` (0 .. interleave - 1) of this rank's shard of the model: named, shaped and kept as in
 * the whole model ("gpt.h.17.mlp.fc"), with fewer heads, a narrower MLP, its shard of the
 * vocabulary (which is padded to a multiple of t), and collectives where Megatron-LM has them.
 * Takes token ids [b,s] if it is the first part, else what mt_rank_wire makes; gives logits
 * [b,s,v/t] if it is the last, else what mt_send gives. Here s is the length of this rank's shard,
 * a cth of the sequences: positions from context_rank times that on. (A block: [b,s,d], or
 * [b,s/t,d] with sequence parallelism, in and out.) With more than one rank `device` has no data,
 * or parallel has comms. ZeRO 3's shards are made as shards: the whole of a parameter is there only
 * while its module runs, or as long as `fsdp` says. */
MT_API mt_module *mt_rank_new(mt_device *device, const mt_model_config *config,
                              const mt_parallel *parallel, int64_t part);
/* Stands for the output of the part before for sequences of `seq` tokens: [b,s,d], or [b,s/t,d]
 * with sequence parallelism, s being this rank's shard of seq; requires grad. */
MT_API mt_tensor *mt_rank_wire(const mt_module *rank, mt_device *device, int64_t batch,
                               int64_t seq);

/* ---- training ---- */

/* All that a rank trains: its parts, and what ZeRO leaves it of their gradients and of what the
 * optimizer steps. Every rank makes one, and all call its functions in the same order. On a device
 * with data `parallel` has comms where there is more than one rank (mt_parallel_place). The weights
 * are those that mt_model_new would draw from the same generator, cut. */
typedef struct mt_stage mt_stage;
MT_API mt_stage *mt_stage_new(mt_device *device, const mt_model_config *config,
                              const mt_parallel *parallel);
/* The same with the adapters that mt_lora_add would put into the whole model, cut as their linears
 * are: beside some rows of a linear a rank has these rows of B and all of A, beside some columns
 * these columns of A and all of B. On a device with data their dropout is 0, and tensor is 1 where
 * weights are in 4 bits: both follow from places in the whole matrix. lora is copied. */
MT_API mt_stage *mt_stage_new_lora(mt_device *device, const mt_model_config *config,
                                   const mt_parallel *parallel, const mt_lora_options *lora);
/* Before it, free the optimizer over mt_stage_stepped. */
MT_API void mt_stage_free(mt_stage *stage);
/* Part i, for mt_model_checkpoint and the like; borrowed. NULL past the last. */
MT_API mt_module *mt_stage_part(const mt_stage *stage, int64_t i);
/* The parameters to make the optimizer of: the parts' or, with ZeRO, this rank's shards, under the
 * same names; borrowed. */
MT_API mt_module *mt_stage_stepped(const mt_stage *stage);
/* Forward and backward of every microbatch, by the schedule 1F1B. tokens, targets: i64 [b,s] for
 * each of parallel's microbatches, s being this rank's shard of the sequences; the same for all
 * ranks that share layers or are stages.
 * Gradients are the sum over the microbatches; mt_stage_step divides. *loss (may be NULL): the mean
 * over all microbatches of all ranks; 0 without data. What dropout draws is a function of the
 * generator's state and of the place in the whole batch, which the data ranks' microbatches make up
 * in their order; afterwards all ranks' generators are where one process's would be.
 * With MT_REDUCE_IN_BACKWARD gradients are afterwards the sum over ranks with other data, too, and
 * mt_stage_step, or dropping them, comes before the next call. */
MT_API mt_status mt_stage_backward(mt_stage *stage, mt_tensor *const *tokens,
                                   mt_tensor *const *targets, double *loss);
/* Adds up the gradients of all ranks, steps with their mean, and drops them. optimizer: over
 * mt_stage_stepped. max_norm: as mt_clip_grad_norm, of all ranks together; 0: no limit. *norm (may
 * be NULL): that norm, found only if max_norm is not 0, before. */
MT_API mt_status mt_stage_step(mt_stage *stage, mt_optimizer *optimizer, double max_norm,
                               double *norm);
/* From now on backward scales each loss, and step divides the scale out again. A step of which any
 * rank has a gradient that is not finite is skipped by all ranks, so that their scalers, which
 * begin equal, stay equal. The mean over microbatches and ranks is taken in the loss, as one
 * process with mt_scaler_scale has it: gradients are no larger than there. scaler: borrowed; NULL:
 * no longer. */
MT_API mt_status mt_stage_set_scaler(mt_stage *stage, mt_scaler *scaler);

/* Forward alone of one batch of this data rank, of which it has its shard of the positions, without
 * a tape and without dropout: *loss is the shard's mean, on every stage; 0 without data. Every rank
 * calls it, and those that share layers or are stages give the same batch. */
MT_API mt_status mt_stage_evaluate(mt_stage *stage, mt_tensor *tokens, mt_tensor *targets,
                                   double *loss);

/* ---- checkpoints: one file, whatever the ranks ----
 *
 * The file is the one that mt_checkpoint_save would write of the whole model: the same names,
 * shapes and bytes, whoever wrote it. So it is read by ranks that divide the model in another way,
 * by one process (mt_checkpoint_load), and back. Each rank writes and reads its own elements; none
 * gathers the model. Linears of te-delayed are refused: what a rank keeps is of its part. */

/* All ranks of `world` call it together and write one file, in a folder that all of them
 * see: rank 0 makes it beside its target and renames it once every rank's bytes are on the disk. If
 * one fails, all have its error, and the target is what it was. optimizer: over mt_stage_stepped,
 * not with moments in 8 bits; may be NULL. world NULL: one process. */
MT_API mt_status mt_stage_save(const char *path, mt_stage *stage, mt_optimizer *optimizer,
                               mt_comm *world, int64_t step, size_t n_metadata,
                               const mt_key_value *metadata);
/* Puts this rank's shard of weights, optimizer state and generator back; waits for no other. As
 * mt_checkpoint_load: everything is compared first, and with optimizer NULL its state in the file
 * is passed over. */
MT_API mt_status mt_stage_load(mt_safetensors *file, mt_stage *stage, mt_optimizer *optimizer,
                               int64_t *step);
/* The adapters alone, the file that mt_lora_save would write of the whole model; as mt_stage_save.
 */
MT_API mt_status mt_stage_save_lora(const char *path, mt_stage *stage, mt_comm *world);
/* This rank's shard of the weights of any file with the whole model's, which has no adapters; those
 * of the stage stay as they are. */
MT_API mt_status mt_stage_load_weights(mt_safetensors *file, mt_stage *stage);

/* ---- one step of one rank, measured ---- */

/* One line of a report. */
typedef struct mt_rank_row {
    const char *what;
    int64_t bytes;
} mt_rank_row;
/* Limits of mt_rank_report: rows, and bytes of a text. */
#define MT_RANK_ROWS 48
#define MT_RANK_TEXT 640

/* One rank's step. */
typedef struct mt_rank_report {
    int64_t layers;    /* of this rank */
    uint64_t n_params; /* of this rank, before ZeRO cuts them */
    /* From step to step, as ZeRO cuts it, for the first of the data-parallel ranks: in the model's
     * dtype, and AdamW's two moments and master copy in f32. */
    size_t param_bytes, grad_bytes, optimizer_bytes;
    /* 1F1B: parts whose forward has run and whose backward has not, when there are most of them;
     * min(p - stage, microbatches) without interleaving (Narayanan et al. 2021, 2.2). */
    int64_t in_flight;
    size_t saved; /* kept for backward then, by the ledger */
    /* The second step, forwards, backwards and the optimizer's step: the optimizer's state is there
     * from its beginning, as in every step after it. What the rank needs. */
    size_t steady_peak;                           /* of allocated bytes: the sum of ... */
    size_t steady_by_category[MT_CATEGORY_COUNT]; /* ... these, at that instant */
    size_t steady_reserved;                       /* the most in segments */
    /* The first step's forwards and backwards, when there is no optimizer state yet. */
    size_t peak, reserved;
    /* The formula of a profile of this rank, with L layers, E embeddings and H heads in flight: for
     * the papers' models Korthikanti et al. 2022, table 2, and what lies beside the layers. saved =
     * formula + rows + unexplained, which is 0 unless the books are wrong. */
    int64_t formula;
    char text[MT_RANK_TEXT];
    int n_rows;
    mt_rank_row rows[MT_RANK_ROWS];
    int64_t unexplained;
} mt_rank_report;

/* Runs two steps of the rank's 1F1B schedule, microbatches of `batch` sequences of `seq` tokens, of
 * which the rank has its shard, and AdamW with f32
 * masters, on a device without data, and writes down what it keeps. Out of memory if the device's
 * capacity is less than that takes. checkpoint: none, full, selective or ops, as
 * mt_model_checkpoint's; NULL: none. Of many microbatches those are left out that would only repeat
 * others: before which every block of memory is where, and what, it was some microbatches ago. */
MT_API mt_status mt_rank_measure(mt_device *device, const mt_model_config *config,
                                 const mt_parallel *parallel, int64_t batch, int64_t seq,
                                 const char *checkpoint, mt_rank_report *out);

MT_C_END
#endif
