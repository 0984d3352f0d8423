/* model.h: what the files of the models share. Letters: b batch, s sequence, d hidden,
 * a heads, k heads of keys and values, h the width of a head, f ffn, v vocabulary. */
#ifndef MTI_MODEL_H
#define MTI_MODEL_H

#include "autograd/autograd.h"
#include "memtape/models/group.h"
#include "nn/nn.h"
#include "stacks/expert_forms.h"
#include "stacks/forms.h"
#include "stacks/linear_low.h"

#define MTI_INIT_STD 0.02

/* Limits of options and of files alike: of widths and counts, so that products of two cannot
 * overflow; of layers, each of which takes about a millisecond and 80 KB of host memory to measure.
 */
#define MTI_MAX_EXTENT ((int64_t)1 << 31)
#define MTI_MAX_LAYERS ((int64_t)1 << 14)

extern const mti_choice mti_acts, mti_norm_places, mti_norm_kinds, mti_attention_forms,
    mti_model_kinds;
extern const mti_choice mti_op_forms, mti_op_precisions, mti_kv_groupings, mti_loss_forms,
    mti_linear_forms, mti_routers, mti_window_masks, mti_expert_forms;
extern const mti_choice mti_out_acts; /* "none", and those of mti_acts */
/* Whether it is a gpt, bert or llama: tokens in, logits out. */
bool mti_is_whole(mt_model_kind kind);
/* Whether it makes logits of what the last layer makes: it is whole, and not pooled. */
bool mti_has_head(const mt_model_config *c);
/* Whether that has the embedding's matrix. */
bool mti_ties_head(const mt_model_config *c);
/* The length of a sequence unless one is given: the model's context, at most 8192; 0 if it is not
 * known. */
int64_t mti_usual_seq(const mt_model_config *c);
/* Whether kv_groups has an effect: heads share keys and values, or their products are views. */
bool mti_repeats_heads(const mt_model_config *c);
/* Whether it is a whole model with a table of positions. */
bool mti_learns_positions(const mt_model_config *c);
/* Whether it has an attention; an MLP. */
bool mti_attends(mt_model_kind kind);
bool mti_feeds(mt_model_kind kind);
/* *c: `config` as one of `kind`, checked, with every "0: ..." filled in. */
bool mti_config_resolve(const mt_model_config *config, mt_model_kind kind, mt_model_config *c);

/* ---- count.c: the products of a layer, and the number of parameters; c is resolved ---- */

/* The products of one layer, or of a part of one, in the order in which they run; those that
 * `ops` keeps are the first, the third and so on. */
typedef enum mti_product {
    MTI_PRODUCT_QKV, /* d -> all three */
    MTI_PRODUCT_Q,
    MTI_PRODUCT_KV,           /* keys, or values */
    MTI_PRODUCT_Q_A,          /* d -> q_rank */
    MTI_PRODUCT_Q_B,          /* q_rank -> heads */
    MTI_PRODUCT_KV_A,         /* d -> kv_rank + rope_dim */
    MTI_PRODUCT_KV_B,         /* kv_rank -> keys, without their turned part, and values */
    MTI_PRODUCT_PROJ,         /* heads -> d */
    MTI_PRODUCT_WIDEN,        /* d -> f */
    MTI_PRODUCT_GATE_UP,      /* d -> 2 f */
    MTI_PRODUCT_DOWN,         /* f -> d */
    MTI_PRODUCT_ROUTER,       /* d -> experts */
    MTI_PRODUCT_EXPERT_FIRST, /* GATE_UP and DOWN of one expert */
    MTI_PRODUCT_EXPERT_DOWN,
    MTI_PRODUCT_SHARED, /* WIDEN and DOWN of the shared experts */
    MTI_PRODUCT_SHARED_DOWN
} mti_product;
#define MTI_PRODUCTS 12
/* Returns how many. */
int mti_layer_products(const mt_model_config *c, mti_product products[MTI_PRODUCTS]);
/* Whether `ops` keeps the ith: those of experts, but of a loop, are made again. */
bool mti_product_is_kept(const mt_model_config *c, const mti_product *products, int i);
/* How many matrices it has here; of all of them a token takes so many: *taken. */
int64_t mti_product_copies(const mt_model_config *c, mti_product product, int64_t *taken);
/* How wide shared experts are here. */
int64_t mti_shared_width(const mt_model_config *c);
/* What KV_B makes for a token. */
int64_t mti_latent_width(const mt_model_config *c);
/* Elements of its matrix. q, k: joint widths of the heads of queries, of keys. */
uint64_t mti_product_size(const mt_model_config *c, int64_t q, int64_t k, mti_product product);
/* Elements of the parameters of one layer, or of a part of a model. */
uint64_t mti_layer_size(const mt_model_config *c, int64_t q, int64_t k);
/* The same of what a whole model has outside of its layers, or of what a part of it has, with the
 * first layer, with the last; the embedding is the first. */
enum { MTI_ENDS = 8 };
typedef struct mti_end_size {
    const char *what;
    uint64_t n;
} mti_end_size;
void mti_end_sizes(mti_end_size ends[MTI_ENDS], const mt_model_config *c, bool first, bool last);

/* ---- which parts of a model run as checkpoints, by name ---- */

typedef enum mti_preset_form {
    MTI_PRESET_NONE,
    MTI_PRESET_FULL,
    MTI_PRESET_SELECTIVE,
    MTI_PRESET_OPS,
    MTI_PRESET_GROUPS
} mti_preset_form;
typedef struct mti_preset {
    mti_preset_form form;
    int64_t every; /* GROUPS: "every=K"; 0: "sqrt" */
} mti_preset;
/* Parses "none", "full", "selective", "ops", "every=K" or "sqrt"; false, without an error, for
 * others. */
bool mti_preset_parse(const char *text, mti_preset *out);
/* How many of `layers` layers are one checkpoint; 1 unless the preset groups them. */
int64_t mti_preset_group(const mti_preset *preset, int64_t layers);

/* "none" and the modules of mt_recompute, in the order of its bits */
extern const mti_choice mti_recomputed;
/* The same of mti_offload_module, modules whose saved tensors alone are offloaded. */
extern const mti_choice mti_offloaded;
typedef enum mti_offload_module {
    MTI_OFFLOAD_CORE_ATTN = 1,
    MTI_OFFLOAD_MOE_ACT = 2,
    MTI_OFFLOAD_ATTN_NORM = 4,
    MTI_OFFLOAD_MLP_NORM = 8,
    MTI_OFFLOAD_QKV_LINEAR = 16,
    MTI_OFFLOAD_ATTN_PROJ = 32,
    MTI_OFFLOAD_EXPERT_FC1 = 64
} mti_offload_module;
/* mt_offload_options.wants; modules: of mti_offload_module, an unsigned */
bool mti_offload_wants(void *modules, const mt_save_info *info);
#define MTI_MODULES_TEXT 96
/* Those of the choice, joined by + */
const char *mti_modules_text(const mti_choice *choice, unsigned modules,
                             char buf[MTI_MODULES_TEXT]);

/* ---- children, named; NULL on failure. c is resolved ---- */

mt_module *mti_add_linear(mt_module *m, const char *name, mt_device *device,
                          const mt_model_config *c, int64_t in, int64_t out, double std);
/* A linear as c->ops.linear has it, by itself. */
mt_module *mti_linear_new(mt_device *device, const mt_model_config *c, int64_t in, int64_t out,
                          double std);
bool mti_is_linear_low(const mt_module *m);
mt_module *mti_add_norm(mt_module *m, const char *name, mt_device *device,
                        const mt_model_config *c);
/* The same over n instead of d. */
mt_module *mti_add_norm_of(mt_module *m, const char *name, mt_device *device,
                           const mt_model_config *c, int64_t n);
mt_module *mti_add_embedding(mt_module *m, const char *name, mt_device *device,
                             const mt_model_config *c, int64_t rows);
/* Child "wte", of the tokens: a row for each, and none's gradient for that of padding. */
mt_module *mti_add_tokens(mt_module *m, mt_device *device, const mt_model_config *c);
mt_module *mti_add_dropout(mt_module *m, const mt_model_config *c);
/* The probability of the dropouts before the first layer and of attention weights. */
double mti_inner_dropout(const mt_model_config *c);
mt_module *mti_add_embedding_dropout(mt_module *m, const mt_model_config *c);
mt_module *mti_add_activation(mt_module *m, const char *name, const mt_model_config *c,
                              bool inplace);
bool mti_acts_in_place(const mt_module *m); /* whether m is an activation that does */
/* An MLP without experts; c is resolved. */
mt_module *mti_mlp_new(mt_device *device, const mt_model_config *c);
/* ---- experts.c, expert_rows.c: a mixture, and how many rows each expert has ---- */

typedef enum mti_routing_kind {
    MTI_ROUTING_BALANCED,
    MTI_ROUTING_WORST,  /* all tokens take the same experts */
    MTI_ROUTING_RANDOM, /* each takes any */
    MTI_ROUTING_RECORDED,
    MTI_ROUTING_COUNT
} mti_routing_kind;
/* Where there is no data: how many rows each expert of each layer has. */
typedef struct mti_routing {
    mti_routing_kind kind;
    uint64_t seed;           /* of RANDOM */
    int64_t layers, experts; /* of RECORDED: */
    int64_t *rows;           /* [layers,experts] */
} mti_routing;
/* counts [n] of a layer in which each of t tokens takes k of n experts; r NULL: balanced. */
bool mti_routing_counts(const mti_routing *r, int64_t layer, int64_t t, int64_t k, int64_t n,
                        int64_t *counts);
/* User data of a mixture. */
typedef struct mti_experts {
    int64_t n; /* of all ranks */
    mti_swiglu_fn *swiglu;
    bool clamped; /* their gate; then they have biases */
    mti_expert_call call;
    int64_t tokens;             /* of the forward that runs */
    const mti_routing *routing; /* borrowed; NULL: balanced */
    int64_t layer;              /* in it */
    int64_t *record;            /* [n]: what each forward of training counts; NULL: none */
    /* Ranks that have an nth of the experts each; that share the layer. ranks 0: this is the only
     * one. */
    mt_group ranks, sharing;
    bool sequence;  /* the latter split the sequence, too */
    bool act_again; /* their activation is made again, and its output not kept */
} mti_experts;
/* Gives every mixture of experts in m the row counts to assume on a device without data. *layer is
 * the index of m's first mixture, and advances past its last. They count rows in record
 * [layers,experts]. routing and record are borrowed and may be NULL. */
void mti_set_routing(mt_module *m, const mti_routing *routing, int64_t *layer, int64_t *record);
/* *rows: how many of the rows that `group` sends come to this rank, which has no data. */
bool mti_rows_routed(const mti_experts *e, const mt_group *group, int64_t *rows);
/* Tells the products of this rank's experts `counts`, i32, the rows of each, on a device without
 * data that counts scratch memory. */
bool mti_tell_rows(const mti_experts *e, const mt_group *group, mt_tensor *counts);
/* How many rows t tokens have in all experts, as many in each except for the bound. */
int64_t mti_rows_of_experts(const mt_model_config *c, int64_t t);
/* i64 [n]: the expert of each row, sorted, of experts with so many rows */
mt_tensor *mti_experts_of_rows(mt_tensor *counts, int64_t n);
/* The rows of t tokens of such a mixture, as its routing says: counts [n]. */
bool mti_count_routed(const mti_experts *e, int64_t t, int64_t *counts);
/* Counts in e->record the rows that index [t,k] gives each expert. */
bool mti_count_rows(const mti_experts *e, mt_tensor *index);
/* NULL if m is no mixture. */
mti_experts *mti_experts_of(const mt_module *m);
/* Whether m, if it is a mixture, takes weights that are made whole for each use. */
bool mti_takes_whole_experts(const char *caller, const mt_module *m);
/* How many this rank has. */
int64_t mti_experts_here(const mt_model_config *c);
/* router.c: its child "router", and what it makes of x [t,d]: *index [t,k], i64, the experts that
 * each row meets, and *weights [t,k]. Scores are made in f32. */
mt_module *mti_router_new(mt_device *device, const mt_model_config *c);
bool mti_choose_experts(mt_module *experts, mt_tensor *x, mt_tensor **weights, mt_tensor **index);
/* After a step: what the biases of m's routers learn from the loads that they counted. sum adds
 * those of other ranks to `loads`. */
typedef bool mti_sum_loads_fn(const void *user, mt_tensor *loads);
bool mti_balance_experts(mt_module *m, mti_sum_loads_fn *sum, const void *user);
/* load_balance.c: what routers made, [t,n] each, while a forward collects it, and the loss of it.
 */
typedef MTI_VEC(mt_tensor *) mti_router_logits;
/* All routers in m collect from now on; NULL: none does. */
void mti_share_router_logits(mt_module *m, mti_router_logits *logits);
/* Ranks with other tokens, n of them: `sum` adds up their counts; and those that have the same:
 * share() makes of the loss a sum over them. */
typedef struct mti_balance_ranks {
    int64_t n;
    mti_sum_loads_fn *sum;
    mt_tensor *(*share)(const void *user, mt_tensor *balance);
    const void *user;
} mti_balance_ranks;
/* The loss y, taken over, and c->balance_loss times that of the logits, which are freed. r NULL:
 * there is one rank. */
mt_tensor *mti_add_balance(const mt_model_config *c, mt_tensor *y, mti_router_logits *logits,
                           const mti_balance_ranks *r);
/* For projections into the residual stream, to which each layer adds two. */
double mti_residual_std(const mt_model_config *c);

/* ---- model_loss.c: the cross-entropy ---- */

/* mti_fused_loss with the matrix of m's child `head`, which is run, so that what gathers its
 * parameters does. */
mt_tensor *mti_fused_head(mt_module *m, const char *head, mt_loss_form form, mt_tensor *x,
                          mt_tensor *target);
/* The loss of what head(m, x) makes of h [b,s,d], MTI_LOSS_CHUNKS parts of the sequence by
 * themselves: the logits of all are made first, then their losses, summed over rows by loss(). h
 * and target are borrowed. */
#define MTI_LOSS_CHUNKS 8 /* torchtune's num_output_chunks */
typedef mt_tensor *mti_sum_of_losses_fn(const mt_module *m, mt_tensor *logits, mt_tensor *target);
mt_tensor *mti_chunked_loss(mt_module *m, mt_tensor *h, mt_tensor *target, mt_forward_fn *head,
                            mti_sum_of_losses_fn *loss);

/* All attentions in m share these tables from now on; NULL: each makes its own. */
void mti_share_rope_tables(mt_module *m, mti_rope_tables *tables);

/* ---- whole models ---- */

/* User data of a gpt, bert or llama. `last`: only the scores after the last token are wanted. */
typedef struct mti_model {
    mt_model_config config;
    bool last;
    /* Borrowed while a forward makes its loss itself, and predicts ahead; else NULL. */
    mt_tensor *target, *tokens;
} mti_model;

/* A module whose user data holds a copy of c. */
mt_module *mti_model_new(const char *kind, mt_forward_fn *forward, const mt_model_config *c);
/* NULL if m was not made by mti_model_new. */
mti_model *mti_model_of(const mt_module *m);
bool mti_check_tokens(const char *caller, const mt_tensor *tokens);
/* Learned positions see to it themselves. */
bool mti_check_context(const char *caller, const mt_model_config *c, const mt_tensor *tokens);
/* Called with each layer as soon as it is made; false: making the model fails. */
typedef struct mti_each_layer {
    bool (*fn)(void *user, mt_module *layer);
    void *user;
} mti_each_layer;
/* Adds the blocks h.0 .. h.(layers - 1); each may be NULL. */
bool mti_add_layers(mt_module *m, mt_device *device, const mt_model_config *c,
                    const mti_each_layer *each);
/* Adds the modules mtp.0 .. mtp.(mtp_layers - 1). */
bool mti_add_mtp(mt_module *m, mt_device *device, const mt_model_config *c,
                 const mti_each_layer *each);
/* mt_model_new, with each->fn called for every layer. */
mt_module *mti_model_make(mt_device *device, const mt_model_config *config,
                          const mti_each_layer *each);
mt_module *mti_gpt_make(mt_device *device, const mt_model_config *config,
                        const mti_each_layer *each);
mt_module *mti_bert_make(mt_device *device, const mt_model_config *config,
                         const mti_each_layer *each);
mt_module *mti_llama_make(mt_device *device, const mt_model_config *config,
                          const mti_each_layer *each);
/* Whether layer i is local; of layers from .. to - 1, how many are. */
bool mti_is_local(const mt_model_config *c, int64_t i);
int64_t mti_local_layers(const mt_model_config *c, int64_t from, int64_t to);
/* Whether layer i has rotary positions, of a model that has them. */
bool mti_is_turned(const mt_model_config *c, int64_t i);
/* The configuration of a layer without experts. */
void mti_make_dense(mt_model_config *c);
/* The configuration of layer i: layers differ in their angles and windows, and the first may have
 * no experts. Those from `layers` on, which predict ahead, are as the last one. */
mt_model_config mti_layer_config(const mt_model_config *c, int64_t i);
/* Embeds the tokens `ahead` places further on, with the learned positions of those places. */
mt_tensor *mti_embed(mt_module *m, mt_tensor *tokens, int64_t ahead);
/* The embedded tokens h, taken over, scaled if the model asks for it. */
mt_tensor *mti_scale_embedding(const mt_model_config *c, mt_tensor *h);

/* ---- mtp.c: predictions further ahead ---- */

enum { MTI_LAYER_NAME = 32 };
/* "mtp.k" */
const char *mti_mtp_name(char name[MTI_LAYER_NAME], int64_t k);
/* Adds mtp.k, to which its "block" is to be added. */
mt_module *mti_add_mtp_module(mt_module *m, int64_t k, mt_device *device, const mt_model_config *c);
/* x without its first n places of `dim`, with n of `fill` after it. */
mt_tensor *mti_shift(mt_tensor *x, int dim, int64_t n, double fill);
typedef struct mti_ahead {
    mt_tensor *tokens, *target; /* [b,s], borrowed */
    mt_tensor *(*embed)(mt_module *m, mt_tensor *tokens, int64_t ahead);
    mt_tensor *(*loss)(mt_module *m, mt_tensor *h, mt_tensor *target); /* both are borrowed */
    mt_group shards; /* ranks that have a shard of each sequence; ranks 0: one has all */
} mti_ahead;
/* The loss of h, which the last norm made, taken over, and of the predictions further ahead. */
mt_tensor *mti_loss_ahead(mt_module *m, const mt_model_config *c, mt_tensor *h, const mti_ahead *a);
/* Whether so many tokens in a row, of a rank its own, are enough for that loss. All ranks ask
 * before they begin, as only those of the last stage have it. */
bool mti_check_ahead(const mt_model_config *c, int64_t tokens);
/* Whether the loss of m, a model or a rank's part of one, has them now: in training alone. */
bool mti_looks_ahead(const mt_module *m, const mt_model_config *c);
/* The logits y, taken over, capped if the model asks for it. */
mt_tensor *mti_cap_logits(const mt_model_config *c, mt_tensor *y);
/* h.i */
mt_module *mti_layer(const mt_module *m, int64_t i);
/* Whether m is a block whose ln_1 and ln_2 come before attention and MLP, and only these read them.
 */
bool mti_norms_before(const mt_module *m);
/* Runs layers h.from .. h.(to - 1); x is taken over. */
mt_tensor *mti_run_each(mt_module *m, mt_tensor *x, int64_t from, int64_t to);
/* The same, in groups if mt_model_checkpoint made groups of layers. */
mt_tensor *mti_run_layers(mt_module *m, mt_tensor *x, int64_t from, int64_t to);
/* The same, with tables of rotary positions for all of them. */
mt_tensor *mti_run_turned(mt_module *m, mt_tensor *h, int64_t from, int64_t to);
/* From the layers' output h [b,s,d], taken over, to the logits of a gpt or llama: "ln_f", if there
 * is one, and "lm_head" or the token embedding; of the last position alone if the model's `last` is
 * set. */
mt_tensor *mti_logits(mt_module *m, mt_tensor *h);
/* A pooled bert's pooler: [b,s,d] -> [b,d]. */
mt_module *mti_pooler_new(mt_device *device, const mt_model_config *c);
/* A bert's head before the product with the embedding: [..,d] -> [..,d], without its bias. */
mt_module *mti_bert_head_new(mt_device *device, const mt_model_config *c);
/* x w^T (+ bias) with the token embedding `wte` as w, in the scope of `name`. */
mt_tensor *mti_tied_head(mt_module *m, const char *name, mt_tensor *x, mt_tensor *bias);

/* ---- texts.c: texts of different lengths ---- */

struct mti_heads;
struct mt_kv_cache;
/* Row i of an input [b,s] ends with the lengths[i] tokens of text i, of which the first is at
 * position starts[i]. What stands before them is padding, which nothing sees. */
typedef struct mti_texts {
    const int64_t *lengths, *starts;
    struct mt_kv_cache *const *caches; /* of each; NULL: there are none */
    /* Connects an attention with that of text i; NULL: there are none. */
    void (*turn_to)(const struct mti_texts *texts, int64_t i, struct mti_heads *heads);
} mti_texts;
/* What text i, of n tokens, has of x [b,s,..]: a view [1,n,..]. */
mt_tensor *mti_text_at(mt_tensor *x, int64_t i, int64_t n);

/* Learned positions, rows [start, start + s) of a table: tokens [..,s] -> [s,d], a view; of texts
 * of different lengths [b,s,d]. */
mt_module *mti_positions_new(mt_device *device, const mt_model_config *c);
/* The position of the first token; NULL if m is not such a module. */
int64_t *mti_positions_start(const mt_module *m);
/* From now on the tokens are those of such texts; NULL: of texts of one length. */
void mti_positions_set_texts(const mt_module *m, const mti_texts *texts);

/* ---- attention with a KV cache ---- */

struct mti_kv_layer;
/* User data of the "heads" of an attention: the core, softmax(q k^T) v. */
/* What run(m, x) makes of x, which is replicated or, with `sequence`, gathered from the shards that
 * ranks have of it. */
typedef mt_tensor *mti_enter_fn(mt_module *m, mt_forward_fn *run, const mt_group *ranks,
                                bool sequence, mt_tensor *x);
typedef struct mti_heads {
    int64_t n, n_kv, dim;
    mt_attention_form form;
    bool causal, by_head; /* by_head: q, k and v of a head lie side by side */
    double dropout, scale, cap;
    int64_t window;
    mti_rotation rotation;
    mti_rotate_fn *rotate;
    mti_core_form core;
    int64_t kv_rank, rope_dim, value_dim; /* latent.c */
    unsigned again;                       /* of mt_recompute, what latent attention makes again */
    bool shares_input;                    /* others read what the attention reads, too */
    bool sinks;                           /* its child "sinks" has them */
    mti_rope_tables *tables; /* of all layers, set while a whole model's forward runs, else NULL */
    mti_draw_part part;      /* of a rank: its share of what dropout draws */
    /* latent.c: ranks that have some heads each, and whether each makes latents of a shard of the
     * sequence. enter NULL: one has all. */
    mti_enter_fn *enter;
    mt_group ranks;
    bool sequence;
    mt_group context; /* ranks that have a shard of every sequence each; ranks 0: one has all */
    /* Set while a cached forward runs: how many positions a layer's cache holds; appends k and v
     * [b,k,t,h] to them and puts all of them in their place. NULL: no cache. */
    const int64_t *cached;
    bool (*append)(struct mti_kv_layer *kv, mt_tensor **k, mt_tensor **v);
    struct mti_kv_layer *kv;
    const mti_texts *texts; /* NULL: all are of one length */
    int64_t layer;          /* in the caches of texts */
} mti_heads;
/* run() of each text of in[n_in], [b,s,..] each, by itself, as its cache and its positions have it;
 * 0 where there is padding. Not recorded. */
mt_tensor *mti_each_text(mt_module *self, mti_heads *heads, mti_run_fn *run, int n_in,
                         mt_tensor *const *in);
mti_heads *mti_heads_of(const mt_module *m); /* NULL if m is not such a module */
/* gpt_oss.c: math attention with its own logit for each head; part: q [b,a,s,h], k, v
 * [b,k,t,h]. And of h [n,2 f], gate and up by turns, what goes into the experts' last product. */
mt_module *mti_sinks_new(mt_device *device, const mt_model_config *c);
/* The same by flash attention, whose options have no sinks. */
mt_tensor *mti_sink_flash(const mt_module *heads, mt_tensor *const part[3], mt_tensor *mask,
                          const mt_attention_options *options);
mt_tensor *mti_sink_attention(const mt_module *self, mt_tensor *const part[3], double p);
mt_tensor *mti_clamped_gate(mt_tensor *h);
mt_module *mti_heads_new(const mt_model_config *c);
/* [b,s,n h] -> [b,n,s,h], a view */
mt_tensor *mti_split_heads(mt_tensor *x, int64_t n);
/* *x [b,n,s,h] turned by its positions. */
bool mti_turn_heads(const mti_heads *heads, mti_rope_tables *tables, mt_tensor **x);
/* part: q [b,a,s,h], k, v [b,k,t,h], turned, all taken over -> [b,s,a h] */
mt_tensor *mti_attend(const mt_module *heads, mt_tensor *part[3]);
/* Without latents; c is resolved. */
mt_module *mti_attention_new(mt_device *device, const mt_model_config *c);

#endif
