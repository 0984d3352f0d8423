/* model.h: models of published architectures, whole or in parts, from one description. */
#ifndef MEMTAPE_MODEL_H
#define MEMTAPE_MODEL_H

#include "memtape/models/module.h"
#include "memtape/models/stacks.h"
#include "memtape/quantize.h"
#include "memtape/ops.h"

MT_C_BEGIN

/* Where a block's norms stand. */
typedef enum mt_norm_place {
    MT_NORM_PRE,      /* x + f(norm(x)) */
    MT_NORM_POST,     /* norm(x + f(x)) */
    MT_NORM_AFTER,    /* x + norm(f(x)); OLMo 2 */
    MT_NORM_AROUND,   /* x + norm(f(norm(x))); Gemma 2 */
    MT_NORM_PARALLEL, /* x + attention(norm(x)) + mlp(norm(x)), two norms; GPT-NeoX */
    MT_NORM_PLACE_COUNT
} mt_norm_place;
/* Norms of queries and keys, before they are turned (Henry et al. 2020). */
typedef enum mt_qk_norm {
    MT_QK_NORM_NONE,
    MT_QK_NORM_HEAD,  /* of each head, with one weight of head_dim for all; Qwen3 */
    MT_QK_NORM_WIDTH, /* over all heads together; OLMo 2 */
    MT_QK_NORM_COUNT
} mt_qk_norm;
/* Attention in blocks, which never holds [s,t], or with every intermediate tensor. */
typedef enum mt_attention_form {
    MT_ATTENTION_FLASH,
    MT_ATTENTION_MATH,
    MT_ATTENTION_FORM_COUNT
} mt_attention_form;
/* Which of a head's elements are turned together, and from which tables. */
typedef enum mt_rope_order {
    MT_ROPE_HALVES,  /* i and h/2 + i; Llama */
    MT_ROPE_PAIRS,   /* 2 i and 2 i + 1, which come out as halves; DeepSeek V3 */
    MT_ROPE_COMPLEX, /* the same, with an unfused rope's table in f32, one number a pair; V2 */
    MT_ROPE_ORDER_COUNT
} mt_rope_order;
/* What makes a router's logits the experts' scores. */
typedef enum mt_router {
    MT_ROUTER_SOFTMAX,
    MT_ROUTER_SIGMOID, /* chosen by score + bias, weighted by score; DeepSeek V3 */
    MT_ROUTER_CHOSEN,  /* softmax of the chosen logits, which have biases; gpt-oss */
    MT_ROUTER_COUNT
} mt_router;
/* Where between yarn_fast and yarn_slow turns the factor of scaled angles changes. */
typedef enum mt_yarn_ramp {
    MT_RAMP_PAIRS, /* by the number of the pair: YaRN */
    MT_RAMP_TURNS, /* by its turns: Llama 3.1 */
    MT_RAMP_FLAT,  /* nowhere: all pairs turn yarn_factor times slower */
    MT_RAMP_COUNT
} mt_yarn_ramp;
/* What is built: a whole model, or a part of one. */
typedef enum mt_model_kind {
    MT_MODEL_GPT,
    MT_MODEL_BLOCK,
    MT_MODEL_ATTENTION,
    MT_MODEL_MLP,
    MT_MODEL_BERT,
    MT_MODEL_LLAMA,
    MT_MODEL_LINEAR, /* one product: d -> ffn */
    MT_MODEL_KIND_COUNT
} mt_model_kind;
/* What the norms are. */
typedef enum mt_norm_kind {
    MT_NORM_LAYER,
    MT_NORM_RMS,
    MT_NORM_RMS_ONE, /* RMS, multiplied by 1 + weight; Gemma */
    MT_NORM_KIND_COUNT
} mt_norm_kind;
/* What the MLPs are. */
typedef enum mt_mlp_kind {
    MT_MLP_PLAIN,   /* proj(act(fc x)) */
    MT_MLP_SWIGLU,  /* down(silu(gate x) * up x); Shazeer 2020 */
    MT_MLP_GATED,   /* down(act(gate x) * up x), an op each */
    MT_MLP_CLAMPED, /* experts: (up + 1) gate sigmoid(1.702 gate), clamped at 7, with biases;
                       gpt-oss */
    MT_MLP_KIND_COUNT
} mt_mlp_kind;

/* Names as the program takes them: "pre", "flash", "gpt", "rmsnorm", "swiglu". Parsing fails with a
 * text that lists the good names. */
MT_API const char *mt_norm_place_name(mt_norm_place place);
MT_API const char *mt_attention_form_name(mt_attention_form form);
MT_API const char *mt_model_kind_name(mt_model_kind kind);
MT_API const char *mt_norm_kind_name(mt_norm_kind kind);
MT_API const char *mt_mlp_kind_name(mt_mlp_kind kind);
MT_API const char *mt_qk_norm_name(mt_qk_norm norm);
MT_API mt_status mt_model_kind_parse(const char *name, mt_model_kind *out);

/* Zero is the common choice everywhere: {.hidden = 64, .vocab = 256, .context = 128} is a GPT of
 * one layer and one head. What a kind always has need not be said: a gpt is causal; a bert is
 * post-norm and sees both sides; a llama is causal and not post-norm, with rmsnorm, swiglu and
 * rope, an untied head and no bias anywhere. */
typedef struct mt_model_config {
    mt_model_kind kind;
    int64_t hidden; /* d */
    int64_t heads;  /* a; 0: 1 */
    /* Heads of keys and values, a divisor of heads; 0: heads. Fewer: grouped-query attention
     * (Ainslie et al. 2023); 1: multi-query (Shazeer 2019). */
    int64_t kv_heads;
    int64_t head_dim; /* width of a head; 0: hidden / heads, which must come out even */
    int64_t layers;   /* of whole models; 0: 1 */
    /* gpt and llama: in training so many modules after the layers predict tokens further ahead, one
     * more place each (DeepSeek-AI 2024): norms of the rows before and of the tokens' embedding, a
     * product 2 d -> d, a block as the last layer, a norm, and the model's head. Their mean loss is
     * added mtp_loss times (0: 0.1) by mt_model_forward_loss. */
    int64_t mtp_layers;
    double mtp_loss;
    int64_t vocab;   /* v; whole models need it */
    int64_t context; /* longest sequence; whole models need it */
    int64_t ffn;     /* width of the MLP, or of a linear's output; 0: 4 hidden; swiglu: 8/3 hidden
                        rounded up to a multiple of 256, as LLaMA's */
    /* llama: so many MLPs of that width in each MLP's place, and a router that chooses so many of
     * them for each token; 0: one MLP for all. norm_topk: the weights of the chosen add up to 1. */
    int64_t experts, experts_per_token;
    bool norm_topk;
    /* llama with experts: mt_model_forward_loss adds so many times the loss that keeps experts
     * evenly used (Transformers' router_aux_loss_coef); 0: not. Not of sigmoid routers.
     * balance_by_layer: that of each layer for itself, divided by experts_per_token, summed, as
     * Megatron-Core has it, not of all layers' tokens together. */
    double balance_loss;
    bool balance_by_layer;
    /* llama with experts, of expert_form megatron: an expert has at most so many times the rows of
     * an even share, those with the largest weights, and with expert_padding exactly so many; 0: no
     * row is dropped. */
    double expert_capacity;
    bool expert_padding;
    int64_t shared_experts; /* of the same width, which every token meets besides */
    /* The first layers, so many, have one MLP of dense_ffn each instead; 0: of ffn. */
    int64_t dense_layers, dense_ffn;
    /* Experts in so many groups, one after the other, of which a token meets those of the best
     * expert_topk_groups alone; 0: they are one group. */
    int64_t expert_groups, expert_topk_groups;
    mt_router router;
    bool wide_router;    /* the router's product is made in f32, and its weights stay so */
    double expert_scale; /* of the experts' weights; 0: 1 */
    /* sigmoid: after each step of training the bias of an expert that had fewer rows than the mean
     * rises by so much, and that of one that had more falls; 0: it stays */
    double balance_rate;
    int64_t expert_ranks; /* of a rank's part (mt_rank_new): it has an nth of the experts; 0: all */
    int64_t shared_ranks; /* the same: shared experts are cut among so many, experts are not; 0: all
                             are */
    mt_mlp_kind mlp;
    mt_act act;       /* of a plain or a gated MLP */
    bool inplace;     /* the activation; relu and leaky_relu only */
    bool has_out_act; /* mlp: its output goes through an activation, too: */
    mt_act out_act;
    mt_norm_place norm;
    mt_norm_kind norm_kind;
    double norm_eps;   /* 0: 1e-5; bert 1e-12, llama 1e-6 */
    double rope_theta; /* rotary positions (Su et al. 2021) on q and k; llama: 0 is 10000; block and
                          attention: 0 is none; gpt: 0 is learned positions instead (with kv_rank
                          it has both), which a bert always has */
    /* Scaled angles, as YaRN (Peng et al. 2023): pairs that turn less than yarn_slow times (0: 1)
     * in a context of yarn_context turn yarn_factor times slower, those that turn more than
     * yarn_fast times (0: 32) as ever; 0: all do. Layers that turn by local_theta do in any case.
     */
    double yarn_factor, yarn_fast, yarn_slow;
    int64_t yarn_context;
    mt_yarn_ramp yarn_ramp;
    double yarn_scale;  /* of what is turned; 0: 1 */
    bool yarn_exact;    /* bounds between pairs, not at whole ones */
    mt_qk_norm qk_norm; /* only with rotary positions */
    /* Latent attention (DeepSeek-AI 2024): keys and values are products of a latent of kv_rank
     * elements, values value_dim wide; the last rope_dim elements of a head are turned, and of keys
     * all heads share them. Queries are products of a latent of q_rank; 0: of x. kv_rank 0: none of
     * it; then rope_dim is how many first elements of a head are turned (GLM-4.5); 0: all. */
    int64_t kv_rank, q_rank, rope_dim, value_dim;
    mt_rope_order rope_order;
    double attention_scale; /* of q k^T; 0: 1/sqrt(head_dim) */
    bool sinks; /* a learned logit for each head takes part in the softmax, without a value; an
                   unfused rope's tables are h/2 wide then (gpt-oss) */
    double attention_cap;  /* scores become cap tanh(scores / cap); math attention only; 0: none */
    double logit_cap;      /* gpt and llama: the same of the logits */
    bool scaled_embedding; /* llama: times sqrt(hidden), rounded to dtype */
    /* llama: of each local_period layers, at most 62, those of which local_layers has a bit are
     * local, from the lowest on; local_layers 0: all but the last. Local layers alone have the
     * window, and turn by local_theta. local_period 0: each has the window; local_theta 0: each
     * turns by rope_theta. */
    double local_theta;
    int64_t local_period, local_layers;
    /* llama: of each so many layers the last has no rotary positions (SmolLM3); 1: none has them;
     * 0: all do. */
    int64_t unturned_period;
    double dropout;      /* on attention weights, after each projection, on embeddings; in [0,1) */
    bool branch_dropout; /* after each projection alone (OPT) */
    mt_attention_form attention;
    bool joint_products; /* one product for q, k and v with rotary positions, too; one for a
                            swiglu's gate and up (Phi-3) */
    bool qkv_by_head;    /* it makes q, k and v of a head side by side, then the next head's
                            (GPT-NeoX) */
    bool causal;         /* block and attention */
    int64_t window;      /* causal: a position of a local layer sees so many up to itself; 0: all */
    bool untied;         /* gpt: an untied head instead of the token embedding */
    bool tied;           /* llama: the token embedding instead of an untied head */
    bool no_bias;        /* in linears and layer norms */
    bool proj_bias;      /* where no_bias is: that of attention's projection */
    bool qkv_bias;       /* where no_bias is: only those of queries, keys and values (Qwen2) */
    int64_t token_types; /* bert; 0: 2 */
    int64_t position_offset; /* gpt and bert: rows of the table of positions before the first one's
                                (OPT; RoBERTa has its padding there) */
    bool pooled; /* bert: instead of the head the pooler of BertModel, tanh(dense(first row)) */
    /* gpt, bert and llama: pad_token fills short sequences up, and its row of the embedding gets no
     * gradient where it is looked up. */
    bool padded;
    int64_t pad_token;
    bool fused_gelu; /* act gelu_tanh is one op in the model's own code: recipe hf leaves it so */
    int64_t mask_token; /* bert: stands for a token that is to be guessed; 0: the last, v - 1 */
    mt_dtype dtype;
    mt_op_choices ops;
    const mt_forms *forms; /* instead of what ops chooses; NULL: none. Borrowed as long as there are
                              models of it, and not in JSON */
} mt_model_config;

/* MT_OK, or an error that names the field, what it is and what it may be. */
MT_API mt_status mt_model_config_check(const mt_model_config *config);
/* The same model with every "0: ..." filled in and what its kind always has; checked. */
MT_API mt_status mt_model_config_resolve(const mt_model_config *config, mt_model_config *out);
/* "tiny", "small", "medium" (byte vocabularies), "gpt2", "bert-base", "llama-7b", ... Unknown: an
 * error that lists them. */
MT_API mt_status mt_model_preset(const char *name, mt_model_config *out);
MT_API const char *mt_model_preset_name(size_t i); /* NULL past the last */
/* Elements of the parameters that the model would have, without making it. */
MT_API mt_status mt_model_config_params(const mt_model_config *config, uint64_t *n_elements);
/* The same of those that one token meets: of a layer's experts those that it is sent to. */
MT_API mt_status mt_model_config_active_params(const mt_model_config *config, uint64_t *n_elements);
/* One JSON object with every field, for metadata; n_bytes MT_MODEL_CONFIG_TEXT always suffice. */
#define MT_MODEL_CONFIG_TEXT 2048
MT_API mt_status mt_model_config_to_json(const mt_model_config *config, char *buf, size_t n_bytes);
/* Checked; fields left out are zero, unknown ones are refused. */
MT_API mt_status mt_model_config_from_json(const char *json, mt_model_config *out);
/* The model that a Hugging Face config.json describes, with the head of GPT2LMHeadModel,
 * LlamaForCausalLM, BertForMaskedLM, ... MT_ERR_UNSUPPORTED for other architectures, by name;
 * MT_ERR_FORMAT for text that is not such a file, and for keys that may change shapes or values and
 * are not understood, all in one text. path: a file, or a folder with a config.json. notes (may be
 * NULL with n_bytes 0) tells line by line what is not modelled and which keys were ignored;
 * MT_HF_NOTES bytes suffice, fewer cut it. */
#define MT_HF_NOTES 2048
MT_API mt_status mt_model_config_from_hf(const char *json, mt_model_config *out, char *notes,
                                         size_t n_bytes);
MT_API mt_status mt_model_config_from_hf_file(const char *path, mt_model_config *out, char *notes,
                                              size_t n_bytes);

/* The model of config->kind, initialised from the device's generator as GPT-2 is: weights
 * normal(0, 0.02), the projections into the residual stream by a further 1/sqrt(2 layers),
 * biases 0. docs/models.md gives the parameters' names beside Hugging Face's. */
MT_API mt_module *mt_model_new(mt_device *device, const mt_model_config *config);
/* A gpt, bert or llama with the weights of mt_model_new, but that the linears of its layers, and
 * experts' products, keep theirs as mt_quantize makes them, and widen them for each use. Embedding,
 * positions, norms and head stay in the model's dtype. All of it is frozen. A layer's weights are
 * quantised as soon as it is made (in mxfp4 those of experts alone): at no time is more than one
 * layer there as it was. */
MT_API mt_module *mt_model_new_quantized(mt_device *device, const mt_model_config *config,
                                         const mt_quant *format);
/* The same of a model that has its weights, without adapters. After a failure some are quantised.
 * Neither with experts of expert_form loop, each of which takes its own matrix. */
MT_API mt_status mt_model_quantize(mt_module *model, const mt_quant *format);
/* Which parts of a model, or of a block, attention or mlp, run as checkpoints from now on, and
 * nothing else of what this call, mt_model_recompute or mt_module_set_checkpoint chose before:
 *   none       nothing
 *   full       each block: a layer keeps its input, 2bsh bytes of 2-byte floats (Chen et al. 2016)
 *   selective  the core of each attention, softmax(q k^T) v: with separate softmax and dropout a
 *              layer keeps 34bsh and its statistics (Korthikanti et al. 2022)
 *   ops        each block, which keeps results of some ops, too: mt_policy_ops
 *   every=K    K consecutive layers as one
 *   sqrt       every=round(sqrt(layers))
 * Another preset is an error that lists these. options: of each checkpoint; NULL for all zero. */
MT_API mt_status mt_model_checkpoint(mt_module *model, const char *preset);
MT_API mt_status mt_model_checkpoint_with(mt_module *model, const char *preset,
                                          const mt_checkpoint_options *options);
/* Layers from .. from + n - 1 of a gpt, bert or llama, as one checkpoint (n 1: a layer alone), in
 * place of what these layers were told before; NULL: they run plainly. Groups do not overlap. */
MT_API mt_status mt_model_checkpoint_layers(mt_module *model, int64_t from, int64_t n,
                                            const mt_checkpoint_options *options);
/* Modules of layers that backward runs again from now on, and nothing else of what this call,
 * mt_model_checkpoint or mt_module_set_checkpoint chose before (0: nothing), of m or below it, as
 * Megatron-Core's recompute_modules has them: core_attn, mlp (of layers without experts), moe and
 * shared_experts keep their inputs; of moe_act (the experts' activation), layernorm (before
 * attention and MLP) and mla_up_proj (from latents to queries, keys and values) what follows keeps
 * no output, either. Modules that m lacks are passed over, and norms that come after attention and
 * MLP; moe_act is refused where the activation is in place. Gradients have the bits that they have
 * without. options: of those that keep their inputs; NULL for all zero. */
typedef enum mt_recompute {
    MT_RECOMPUTE_CORE_ATTN = 1,
    MT_RECOMPUTE_MOE_ACT = 2,
    MT_RECOMPUTE_LAYERNORM = 4,
    MT_RECOMPUTE_MLA_UP_PROJ = 8,
    MT_RECOMPUTE_MLP = 16,
    MT_RECOMPUTE_MOE = 32,
    MT_RECOMPUTE_SHARED_EXPERTS = 64
} mt_recompute;
MT_API mt_status mt_model_recompute(mt_module *m, unsigned modules,
                                    const mt_checkpoint_options *options);
/* What the model was made from, resolved; borrowed. NULL if m is not a gpt, bert or llama of ours.
 */
MT_API const mt_model_config *mt_model_config_of(const mt_module *m);
/* mt_cross_entropy(logits, target, MT_IGNORE) of a whole model of this config, in f32 if its
 * ops.loss asks for that. */
MT_API mt_tensor *mt_model_loss(const mt_model_config *config, mt_tensor *logits,
                                mt_tensor *target);
/* mt_model_loss of mt_forward(model, tokens); with MT_LOSS_FUSED the logits are never all there.
 * Fused, the head must be a plain product: no adapter, no 4-bit weight. */
MT_API mt_tensor *mt_model_forward_loss(mt_module *model, mt_tensor *tokens, mt_tensor *target);
/* [..,d] -> [..,d]: fc, act, proj, drop; gated: gate, up (or gate_up), act (not swiglu), down,
 * drop; with out_act: and out */
MT_API mt_module *mt_mlp_new(mt_device *device, const mt_model_config *config);
/* [b,s,d] -> [b,s,d]: qkv (one product: queries, keys and values side by side), heads, proj, drop;
 * with rope, unless joint_products: q, k, v, (q_norm, k_norm,) heads, proj, drop */
MT_API mt_module *mt_attention_new(mt_device *device, const mt_model_config *config);
/* [b,s,d] -> [b,s,d]. pre: h = x + attn(ln_1(x)), y = h + mlp(ln_2(h));
 * post: h = ln_1(x + attn(x)), y = ln_2(h + mlp(h));
 * after: h = x + ln_1(attn(x)), y = h + ln_2(mlp(h));
 * around: h = x + ln_1_out(attn(ln_1(x))), y = h + ln_2_out(mlp(ln_2(h))) */
MT_API mt_module *mt_block_new(mt_device *device, const mt_model_config *config);
/* Whole models, which mt_model_new makes:
 * gpt: i64 tokens [b,s] -> logits [b,s,v]: wte, wpe, drop, h.0 .. h.N, ln_f (not if post), lm_head
 * (a module only if untied), mtp.0 ..   (Radford et al. 2019) bert: i64 tokens [b,s], all of type
 * 0, or [2,b,s], tokens and types -> logits [b,s,v]: wte, wpe, tte, ln, drop, h.0 .. h.N, head
 * (dense, act, ln, and the bias of the product with the token embedding), the whole of
 * BertForMaskedLM; pooled: -> [b,d], with pooler (dense, act) in the head's place, the whole of
 * BertModel (Devlin et al. 2018) llama: i64 tokens [b,s] -> logits [b,s,v]: wte, drop, h.0 .. h.N,
 * ln_f, lm_head (Touvron et al. 2023; grouped-query attention as in LLaMA 2) */

/* The rows [b,s,d] that the last layer of a bert makes of its input, with a head or a pooler:
 * BertModel's last_hidden_state. Then what mt_forward makes of them: a pooled bert's output [b,d],
 * a bert's logits. */
MT_API mt_tensor *mt_bert_hidden(mt_module *bert, mt_tensor *tokens);
MT_API mt_tensor *mt_bert_output(mt_module *bert, mt_tensor *hidden);

/* Tokens to guess for masked training, drawn from `seed` alone. Each of n tokens is chosen with
 * probability 0.15; a chosen one becomes config->mask_token in 80 of 100 cases, any token in 10,
 * and stays in 10. input[n]: the tokens so changed; target[n]: the token where it was chosen,
 * elsewhere MT_IGNORE, for mt_cross_entropy. input may be tokens.   (Devlin et al. 2018, 3.1) */
MT_API mt_status mt_mask_tokens(const mt_model_config *config, uint64_t seed, size_t n,
                                const int64_t *tokens, int64_t *input, int64_t *target);

MT_C_END
#endif
