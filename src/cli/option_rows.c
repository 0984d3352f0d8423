/* option_rows.c: the verbs, and the one table of their options. */
#include <string.h>
#include "cli/option_rows.h"
#include "nn/model.h"
#include "parallel/parallel.h"

/* ---- verbs ---- */

static const mti_verb_info verbs[MTI_VERB_COUNT] = {
    [MTI_DEMO] = {"demo", "",
                  "train a tiny transformer on real text, then show where its memory went",
                  "Trains a small byte-level GPT on the given text (memtape's own sources and docs "
                  "if none is given) for about a minute, compares it with three baselines on text "
                  "it has not seen, and measures what its memory would be with other choices."},
    [MTI_TRAIN] =
        {"train", "", "train a byte-level GPT on any file",
         "Trains a byte-level GPT on files. Ctrl-C saves and stops; --resume goes on from "
         "there, bit for bit."},
    [MTI_GENERATE] =
        {"generate", "", "write text with a trained model",
         "Continues a prompt with a model that `memtape train --save` wrote. A file or a "
         "pipe gets every byte; a terminal gets ? for those that it would obey."},
    [MTI_PROFILE] =
        {"profile", "MODEL", "two training steps under the ledger: every saved byte",
         "Runs two training steps of MODEL (linear, mlp, attention, block, gpt, bert, llama, a "
         "preset or the path of a Hugging Face config.json or its folder) on random data and lists "
         "the tensors "
         "that the tape keeps for backward, who keeps them, and how they add up to what the "
         "allocator holds."},
    [MTI_EXPLAIN] =
        {"explain", "[MODEL]", "the tape op by op: what is saved and why",
         "Runs the forward pass of MODEL (linear, mlp, attention, block, gpt or a preset), or an "
         "expression, and walks through its tape, op by op."},
    [MTI_AUDIT] = {"audit", "[OP]", "what every op keeps, and whether it has to",
                   "Runs each op of the table (or one) with every set of wanted gradients, changes "
                   "every kept tensor in turn, and compares the gradients: if none changes, the "
                   "tensor need not be kept. Names cheaper ways."},
    [MTI_SWEEP] = {"sweep", "MODEL",
                   "any option over any list: bytes, time, gradients side by side",
                   "Runs a training step of MODEL for each combination of the lists given with "
                   "--over, and compares what is kept, the peak, the time of a step, and the "
                   "gradients, which are measured against the first row's."},
    [MTI_RANKS] =
        {"ranks", "", "one rank of a trillion parameters, technique by technique",
         "Measures on the meta device what a rank keeps of four models of 22 billion to a "
         "trillion parameters under tensor, sequence and pipeline parallelism and "
         "recomputation (Korthikanti et al. 2022, table 2). For another model, or "
         "other numbers of ranks: memtape profile MODEL --tp N --sp --pp N --device meta."},
    [MTI_PLAN] =
        {"plan", "MODEL", "what training costs: formulas beside measurements on meta; what fits",
         "Works out parameters, training state, activations, operations, time and KV cache of "
         "MODEL by the closed formulas of the literature, measures each on the meta device, "
         "and explains the difference row by row. Unless told otherwise: bf16, AdamW, one "
         "sequence as long as the model's context. With --capacity it runs larger and larger "
         "batches and sequences until one is refused memory."},
    [MTI_FIT] =
        {"fit", "MODEL", "whether MODEL trains on N GPUs, and the fastest ways to divide it",
         "Measures, on the meta device, the ways to divide MODEL (a gpt, bert, llama, a preset or "
         "the path of a config.json) and a batch among GPUs: tensor, pipeline and data "
         "parallelism, ZeRO, recomputation, offload, microbatches; orders those that fit by the "
         "time of a step, which is a stated model and no measurement. An option that a set-up is "
         "made of, such as --tp, leaves only set-ups with that value. Unless told otherwise: bf16, "
         "AdamW with f32 masters, a sequence a GPU, the model's context, at most 8192."},
    [MTI_SERVE] = {"serve", "MODEL", "how many sequences MODEL generates at once on a GPU",
                   "Generates with MODEL, a gpt or a llama, on the meta device: weights in 16, 8 "
                   "and 4 bits, KV caches in 16 and 8, texts of several lengths. Each number of "
                   "sequences was measured to fit, and one more not to."},
};

const mti_verb_info *mti_verb_get(mti_verb verb) { return &verbs[verb]; }

mti_verb mti_verb_find(const char *name)
{
    int v = 0;
    while (v < MTI_VERB_COUNT && strcmp(name, verbs[v].name)) v++;
    return (mti_verb)v;
}

/* ---- what the columns of the table say ---- */

#define V(verb)  (1u << MTI_##verb)
#define LOOKS    (V(PROFILE) | V(EXPLAIN) | V(SWEEP) | V(PLAN) | V(FIT))
#define STEPS    (V(PROFILE) | V(SWEEP))
#define PLANNED  (STEPS | V(PLAN))
#define BUILDS   (V(TRAIN) | LOOKS)
#define RUNS     (V(DEMO) | V(TRAIN))
#define EVERY    ((1u << MTI_VERB_COUNT) - 1)
#define SEARCHED (PLANNED | V(FIT))
#define META     (V(PLAN) | V(RANKS) | V(FIT) | V(SERVE)) /* run on meta only */
#define SHAPED   (BUILDS | V(SERVE))                      /* what a forward alone depends on */
#define ON_GPUS  (V(FIT) | V(SERVE))

#define M(model) (1u << MT_MODEL_##model)
#define WHOLE    (M(GPT) | M(BERT) | M(LLAMA))
#define LAYERED  (WHOLE | M(BLOCK) | M(ATTENTION) | M(MLP))
#define ANY      (LAYERED | M(LINEAR))
#define ATTENDS  (WHOLE | M(BLOCK) | M(ATTENTION))
#define FEEDS    (WHOLE | M(BLOCK) | M(MLP))
#define RANKED   (WHOLE | M(BLOCK))
#define ACTS     (FEEDS & ~M(LLAMA)) /* a llama's MLP is gated */

#define W(condition) (UINT64_C(1) << MTI_IF_##condition)

#define AT(field) offsetof(mti_options, field)
#define EXTENT    1, MTI_MAX_EXTENT /* of a model; products are checked separately */
#define AMOUNT    1, 1e12           /* of the batch */

/* ---- choices ---- */

static const mti_choice kv_caches = {"kv-cache",
                                     MTI_NAMES("preallocated", "growing", "8bit", "paged", "none")};
static const mti_choice weight_forms = {"weights", MTI_NAMES("plain", "int8", "nf4", "nf4-double")};
static const mti_choice dtypes = {"dtype", MTI_NAMES("f32", "bf16", "f16", "f64")};
static const mti_choice offloads = {"offload", MTI_NAMES("none", "cpu", "disk")};
static const mti_choice amps = {"amp", MTI_NAMES("none", "bf16", "f16")};
static const mti_choice recipes = {"recipe", MTI_NAMES("none", "hf", "liger", "ddp", "zero1",
                                                       "zero2", "zero3", "fsdp2", "megatron")};
static const mti_choice scratches = {"scratch", MTI_NAMES("none", "cpu")};

/* ---- the table ---- */

const mti_option_row mti_option_rows[] = {
    {MTI_O_MODEL_FILE, 'm', "model", "FILE", MTI_TEXT, AT(model_file), V(GENERATE), ANY, 0, 0,
     "the trained model, a .safetensors file of `memtape train`"},
    {MTI_O_PROMPT, 'p', "prompt", "TEXT", MTI_TEXT, AT(prompt), V(GENERATE), ANY, 0, 0,
     "the text to continue; without it, a new line"},
    {MTI_O_TOKENS, 'n', "tokens", "N", MTI_INT, AT(tokens), V(GENERATE), ANY, 0, 1e9,
     "bytes to write"},
    {MTI_O_TEMPERATURE, 't', "temperature", "T", MTI_REAL, AT(temperature), V(GENERATE), ANY, 0,
     100, "0 always takes the likeliest byte", W(CHOICE)},
    {MTI_O_TOP_K, 'k', "top-k", "K", MTI_INT, AT(top_k), V(GENERATE), ANY, 0, 256,
     "choose among the K likeliest bytes; 0, the default, among all", W(WARM)},
    {MTI_O_KV_CACHE, 0, "kv-cache", "FORM", MTI_CHOICE, AT(kv_cache), V(GENERATE) | V(SERVE), ANY,
     0, 0, "form of the KV cache", .choice = &kv_caches},
    {MTI_O_ADAPTER, 0, "adapter", "FILE", MTI_TEXT, AT(adapter), V(GENERATE), ANY, 0, 0,
     "adapters to put beside the model's weights, a file of `memtape train --save-adapter`"},
    {MTI_O_MERGE, 0, "merge", NULL, MTI_FLAG, AT(merge), V(GENERATE), ANY, 0, 0,
     "add the adapters to the weights before the first byte"},

    {MTI_O_DATA, 0, "data", "PATH", MTI_LIST, AT(data), RUNS, ANY, 0, 0,
     "a file (demo: or a folder of text files); may be given several times"},
    {MTI_O_PRESET, 0, "preset", "NAME", MTI_TEXT, AT(workload.preset), V(TRAIN), ANY, 0, 0,
     "the model to start from: tiny (the default), small, ..., gpt2", W(NO_FILE)},
    {MTI_O_STEPS, 0, "steps", "N", MTI_INT, AT(train.steps), RUNS | V(SWEEP), ANY, 1, 1e12,
     "optimizer steps (demo: as many as fit the time); sweep: steps to time for each row",
     W(COMPARED)},
    {MTI_O_SECONDS, 0, "seconds", "T", MTI_REAL, AT(seconds), V(DEMO), ANY, 1, 1e6,
     "time to spend, from start to end", W(NO_STEPS)},
    {MTI_O_LR, 0, "lr", "R", MTI_REAL, AT(train.lr), V(TRAIN), ANY, 0, 1e3,
     "learning rate (default: the optimizer's own, adamw's 1e-3; adafactor's is the largest share "
     "of a parameter's size)",
     W(LEARNS)},
    {MTI_O_MIN_LR, 0, "min-lr", "R", MTI_REAL, AT(train.min_lr), V(TRAIN), ANY, 0, 1e3,
     "where the cosine ends (default: a tenth of --lr)", W(LEARNS)},
    {MTI_O_WARMUP, 0, "warmup", "N", MTI_INT, AT(train.warmup), V(TRAIN), ANY, 0, 1e12,
     "steps of rising learning rate (default: a twentieth of --steps)", W(LEARNS)},
    {MTI_O_WEIGHT_DECAY, 0, "weight-decay", "R", MTI_REAL, AT(train.weight_decay), V(TRAIN), ANY, 0,
     1e3, "of matrices", W(LEARNS)},
    {MTI_O_CLIP, 0, "clip", "R", MTI_REAL, AT(train.clip), V(TRAIN), ANY, 0, 1e9,
     "bound on the gradient's norm (0: none)", W(LEARNS)},
    {MTI_O_ACCUMULATE, 0, "accumulate", "N", MTI_INT, AT(train.accumulate), V(TRAIN), ANY, 1, 1e6,
     "batches whose gradients a step sums"},
    {MTI_O_VAL_FRACTION, 0, "val-fraction", "R", MTI_REAL, AT(val_fraction), V(TRAIN), ANY, 0, 0.9,
     "share of each file held out, at its end"},
    {MTI_O_EVAL_EVERY, 0, "eval-every", "N", MTI_INT, AT(eval_every), V(TRAIN), ANY, 0, 1e12,
     "steps between evaluations on held-out text (0: only at the end)", W(LEARNS) | W(HELD_OUT)},
    {MTI_O_SAVE, 0, "save", "PATH", MTI_TEXT, AT(save), RUNS, ANY, 0, 0,
     "a file, or an existing folder for one file per save", W(LEARNS)},
    {MTI_O_SAVE_EVERY, 0, "save-every", "N", MTI_INT, AT(save_every), V(TRAIN), ANY, 0, 1e12,
     "steps between saves (0: only at the end)", W(LEARNS) | W(SAVES)},
    {MTI_O_RESUME, 0, "resume", "FILE", MTI_TEXT, AT(resume), V(TRAIN), ANY, 0, 0,
     "continue the run of a file that --save wrote; its options hold unless given again"},
    {MTI_O_FROM, 0, "from", "FILE", MTI_TEXT, AT(train.from), V(TRAIN), ANY, 0, 0,
     "begin with the weights of a file that --save wrote, instead of random ones"},
    {MTI_O_SAVE_ADAPTER, 0, "save-adapter", "FILE", MTI_TEXT, AT(save_adapter), V(TRAIN), ANY, 0, 0,
     "also write the adapters alone, whenever --save would write (needs --lora-rank)",
     W(LEARNS) | W(ADAPTERS)},
    {MTI_O_GRAPH, 0, "graph", NULL, MTI_FLAG, AT(train.graph), V(TRAIN), ANY, 0, 0,
     "capture a batch's launches once and replay them as one (cuda)", W(CUDA)},
    {MTI_O_LIVE, 0, "live", NULL, MTI_FLAG, AT(live), V(TRAIN), ANY, 0, 0,
     "draw memory over the events of a step, again and again while it trains", W(TEXT)},

    {MTI_O_EXPR, 0, "expr", "TEXT", MTI_TEXT, AT(expression.text), V(EXPLAIN), ANY, 0, 0,
     "an expression of names, numbers, + - * / @ and ops by their names: \"relu(x*2)@w\""},
    {MTI_O_SHAPES, 0, "shapes", "SHAPES", MTI_TEXT, AT(expression.shapes), V(EXPLAIN), ANY, 0, 0,
     "of the names: x=10x100,w=100x10", W(EXPR)},
    {MTI_O_NO_GRAD, 0, "no-grad", "NAMES", MTI_TEXT, AT(expression.no_grad), V(EXPLAIN), ANY, 0, 0,
     "that want no gradient, joined by commas (default: all want one)", W(EXPR)},
    {MTI_O_WEIGHTS, 0, "weights", "NAMES", MTI_TEXT, AT(expression.weights), V(EXPLAIN), ANY, 0, 0,
     "that are parameters, there anyway and not counted; or none (default: those that begin with "
     "w)",
     W(EXPR)},

    {MTI_O_BATCH, 'b', "batch", "N", MTI_EXTENT, AT(workload.batch), BUILDS, ANY, AMOUNT,
     "sequences"},
    {MTI_O_SEQ, 's', "seq", "N", MTI_EXTENT, AT(workload.seq), SHAPED, ANY, AMOUNT,
     "length of a sequence; 4k is 4096 (a linear: 1)"},
    {MTI_O_HIDDEN, 'd', "hidden", "N", MTI_EXTENT, AT(given_config.hidden), SHAPED, ANY, EXTENT,
     "width of the model"},
    {MTI_O_HEADS, 'a', "heads", "N", MTI_EXTENT, AT(given_config.heads), SHAPED, ATTENDS, EXTENT,
     "attention heads; they divide --hidden"},
    {MTI_O_LAYERS, 'l', "layers", "N", MTI_INT, AT(given_config.layers), SHAPED, WHOLE, 1,
     MTI_MAX_LAYERS, "blocks"},
    {MTI_O_VOCAB, 0, "vocab", "N", MTI_EXTENT, AT(given_config.vocab), LOOKS | V(SERVE), WHOLE,
     EXTENT, "number of tokens"},
    {MTI_O_FFN, 0, "ffn", "N", MTI_EXTENT, AT(given_config.ffn), SHAPED, FEEDS | M(LINEAR), EXTENT,
     "width inside the MLP, or of a linear's output (default: four times --hidden)"},
    {MTI_O_ACT, 0, "act", "NAME", MTI_CHOICE, AT(given_config.act), SHAPED, ACTS, 0, 0,
     "activation of the MLP", .choice = &mti_acts},
    {MTI_O_INPLACE, 0, "inplace", NULL, MTI_FLAG, AT(given_config.inplace), SHAPED, ACTS, 0, 0,
     "let relu or leaky_relu overwrite their input"},
    {MTI_O_OUT_ACT, 0, "out-act", "NAME", MTI_OTHER, AT(given_config.out_act), LOOKS & ~V(FIT),
     M(MLP), 0, 0, "activation of an mlp's output", .choice = &mti_out_acts,
     .read = mti_read_out_act},
    {MTI_O_NORM, 0, "norm", "PLACE", MTI_CHOICE, AT(given_config.norm), SHAPED, M(GPT) | M(BLOCK),
     0, 0, "before attention and MLP, after the sums with them, after them, or around them",
     .choice = &mti_norm_places},
    {MTI_O_NORM_KIND, 0, "norm-kind", "KIND", MTI_CHOICE, AT(given_config.norm_kind), SHAPED,
     M(GPT) | M(BLOCK), 0, 0, "what the norms are (a llama's: always rmsnorm)",
     .choice = &mti_norm_kinds},
    {MTI_O_KV_HEADS, 0, "kv-heads", "N", MTI_EXTENT, AT(given_config.kv_heads), SHAPED, ATTENDS,
     EXTENT, "heads of keys and values; they divide --heads (default: as many)"},
    {MTI_O_DROPOUT, 0, "dropout", "P", MTI_REAL, AT(given_config.dropout), BUILDS, LAYERED, 0, 1,
     "probability, below 1"},
    {MTI_O_ATTENTION, 0, "attention", "FORM", MTI_CHOICE, AT(given_config.attention), SHAPED,
     ATTENDS, 0, 0, "in blocks, or with every intermediate tensor", .choice = &mti_attention_forms},
    {MTI_O_CAUSAL, 0, "causal", NULL, MTI_FLAG, AT(given_config.causal), LOOKS & ~V(FIT),
     M(ATTENTION) | M(BLOCK), 0, 0,
     "no position sees a later one (a gpt or llama is always causal, a bert never)"},
    {MTI_O_DTYPE, 0, "dtype", "TYPE", MTI_OTHER, AT(given_config.dtype), SHAPED, ANY, 0, 0,
     "of the parameters", .choice = &dtypes, .read = mti_read_dtype},
    {MTI_O_RECIPE, 0, "recipe", "NAME", MTI_CHOICE, AT(recipe), BUILDS, WHOLE, 0, 0,
     "options as a known stack has them, but for those given; hf: the eager code of Hugging Face's "
     "Transformers; liger: with Liger's kernels; ddp, fsdp2: PyTorch; zero1 to zero3: DeepSpeed; "
     "megatron: Megatron Core",
     .choice = &recipes},
    {MTI_O_SWIGLU, 0, "swiglu", "FORM", MTI_CHOICE, AT(given_config.ops.swiglu), SHAPED, M(LLAMA),
     0, 0, "unfused: silu, then a product, which also keep silu(gate)", .choice = &mti_op_forms},
    {MTI_O_RMS_NORM, 0, "rms-norm", "FORM", MTI_CHOICE, AT(given_config.ops.rms_norm), SHAPED,
     M(GPT) | M(BLOCK) | M(LLAMA), 0, 0,
     "unfused: cast to f32, mean of squares, quotient, cast, product, which also keep the "
     "normalised rows",
     W(RMS), .choice = &mti_op_forms},
    {MTI_O_GELU_TANH, 0, "gelu-tanh", "FORM", MTI_CHOICE, AT(given_config.ops.gelu_tanh), SHAPED,
     FEEDS, 0, 0, "unfused: power, tanh, sums and products, which keep four tensors, not one",
     W(TANH), .choice = &mti_op_forms},
    {MTI_O_ROPE, 0, "rope", "FORM", MTI_CHOICE, AT(given_config.ops.rope), SHAPED, M(LLAMA), 0, 0,
     "rotary positions; unfused: products with tables of cosines and sines, which are kept",
     .choice = &mti_op_forms},
    {MTI_O_SOFTMAX, 0, "softmax", "TYPE", MTI_CHOICE, AT(given_config.ops.softmax), SHAPED, ATTENDS,
     0, 0, "of math attention: in the model's type, or in f32 and cast back", W(MATH) | W(NARROW),
     .choice = &mti_op_precisions},
    {MTI_O_KV_GROUPS, 0, "kv-groups", "HOW", MTI_CHOICE, AT(given_config.ops.kv_groups), SHAPED,
     ATTENDS, 0, 0,
     "of attention with --kv-heads: read keys and values in place, or copy them for each head",
     W(GROUPED), .choice = &mti_kv_groupings},
    {MTI_O_LOSS, 0, "loss", "TYPE", MTI_CHOICE, AT(given_config.ops.loss), BUILDS, WHOLE, 0, 0,
     "the cross-entropy: of the logits as they are, or cast to f32, or fused with the head's "
     "product, some rows of logits at a time, or keeping logits instead of log-probabilities, of "
     "all "
     "(lse) or of 8 chunks of the sequence, or cast to f32 and by two ops, as PyTorch does",
     .choice = &mti_loss_forms},
    {MTI_O_OPTIMIZER, 0, "optimizer", "NAME", MTI_CHOICE, AT(workload.optimizer),
     SEARCHED | V(TRAIN), ANY, 0, 0,
     "train: what steps, adamw unless given; else: whose state and step are included",
     .choice = &mti_optimizers},
    {MTI_O_CHECKPOINT, 0, "checkpoint", "PRESET", MTI_OTHER, 0, SEARCHED | V(TRAIN), ANY, 0, 0,
     "recompute in backward: none, full (each block), selective (the attention core), ops (each "
     "block but attention and every second product), every=K blocks, sqrt",
     W(NO_BUDGET), .read = mti_read_checkpoint},
    {MTI_O_BUDGET, 0, "budget", "BYTES", MTI_BYTES, AT(workload.budget),
     V(TRAIN) | V(PROFILE) | V(PLAN), WHOLE, 1, 9e18,
     "find the checkpoints that recompute least with a peak of at most this", W(ONE_FORWARD)},
    {MTI_O_OFFLOAD, 0, "offload", "WHERE", MTI_CHOICE, AT(workload.memory.offload),
     STEPS | V(FIT) | V(TRAIN), ANY, 0, 0, "keep saved tensors in host memory or on disk (TMPDIR)",
     W(NO_BUDGET), .choice = &offloads},
    {MTI_O_COMPRESS, 0, "compress", "HOW", MTI_OTHER, 0, STEPS | V(TRAIN), ANY, 0, 0,
     "keep saved tensors in fewer bits: none, or some of bf16, 8bit, bits, seed (dropout masks), "
     "signs (of relu), joined by +",
     W(NO_BUDGET), .read = mti_read_compress},
    {MTI_O_AMP, 0, "amp", "TYPE", MTI_OTHER, 0, BUILDS & ~V(PLAN), ANY, 0, 0,
     "run products in a 16-bit type over f32 parameters", .choice = &amps, .read = mti_read_amp},
    {MTI_O_LOSS_SCALE, 0, "loss-scale", "S", MTI_OTHER, 0, STEPS | V(TRAIN), WHOLE, 0, 0,
     "multiply the loss, for f16: none, dynamic, or a number", W(STEPS) | W(SCALED),
     .read = mti_read_loss_scale},
    {MTI_O_MASTER, 0, "master-weights", NULL, MTI_FLAG, AT(workload.memory.master),
     SEARCHED | V(TRAIN), ANY, 0, 0,
     "step 16-bit parameters in f32 copies (profile and sweep: needs --optimizer)", W(STEPS)},
    {MTI_O_F32_GRADIENTS, 0, "f32-gradients", NULL, MTI_FLAG, AT(workload.memory.f32_gradients),
     SEARCHED | V(TRAIN), ANY, 0, 0, "sum the gradients of 16-bit parameters in f32"},
    {MTI_O_STEP_IN_BACKWARD, 0, "step-in-backward", NULL, MTI_FLAG,
     AT(workload.memory.step_in_backward), STEPS, ANY, 0, 0,
     "step each parameter as soon as its gradient is there, and drop that",
     W(STEPS) | W(ONE_BACKWARD)},
    {MTI_O_LORA_RANK, 0, "lora-rank", "R", MTI_INT, AT(workload.memory.lora_rank),
     BUILDS & ~V(PLAN), LAYERED, 1, 1e6,
     "freeze the model and train adapters of rank R beside every linear (train: of --from)"},
    {MTI_O_LORA_TARGETS, 0, "lora-targets", "NAMES", MTI_OTHER, 0, BUILDS & ~V(PLAN), LAYERED, 0, 0,
     "adapters only beside linears of these names, joined by commas (or +): q,v,mlp.down; with "
     "--qlora, only those in 4 bits",
     W(ADAPTERS), .read = mti_read_lora_targets},
    {MTI_O_QLORA, 0, "qlora", NULL, MTI_FLAG, AT(workload.memory.qlora), BUILDS & ~V(PLAN), LAYERED,
     0, 0, "keep the frozen weights in 4 bits (needs --lora-rank)", W(FLOATS) | W(ADAPTERS)},
    {MTI_O_QLORA_DOUBLE, 0, "qlora-double", NULL, MTI_FLAG, AT(workload.memory.qlora_double),
     BUILDS & ~V(PLAN) & ~V(EXPLAIN), LAYERED, 0, 0,
     "keep their scales in 8 bits (double quantisation)", W(CODES)},

    {MTI_O_TP, 0, "tp", "N", MTI_INT, AT(workload.parallel.tensor), SEARCHED | V(TRAIN), RANKED, 1,
     1e6, "one rank of N that share each layer (Megatron-LM); on meta, or all under mpirun"},
    {MTI_O_SP, 0, "sp", NULL, MTI_FLAG, AT(workload.parallel.sequence), PLANNED | V(TRAIN), RANKED,
     0, 0, "the ranks of --tp also split the sequence between the products", W(SHARED_LAYERS)},
    {MTI_O_PP, 0, "pp", "N", MTI_INT, AT(workload.parallel.pipeline), SEARCHED | V(TRAIN), RANKED,
     1, 1e6,
     "one stage of N of a 1F1B pipeline, its microbatches in flight included; on meta, or all "
     "under mpirun"},
    {MTI_O_INTERLEAVE, 0, "interleave", "M", MTI_INT, AT(workload.parallel.interleave),
     SEARCHED | V(TRAIN), RANKED, 1, 1e6, "parts of the model in each stage (default 1)",
     W(STAGED)},
    {MTI_O_RANK, 0, "rank", "I", MTI_INT, AT(rank), PLANNED, RANKED, 0, 1e9,
     "which rank; --tp's come first, then --cp's, --dp's, the stages (default: the last of --cp's, "
     "which needs most, of the first of the others)",
     W(RANKED)},
    {MTI_O_STAGE, 0, "stage", "I", MTI_INT, AT(workload.parallel.stage), PLANNED, RANKED, 0, 1e6,
     "which stage (default 0, which keeps most)", W(STAGED)},
    {MTI_O_MICROBATCHES, 0, "microbatches", "N", MTI_INT, AT(workload.parallel.microbatches),
     PLANNED | V(TRAIN), RANKED, 1, 1e6,
     "of --batch sequences each, in a step (default: as many as stages; train: --accumulate)"},
    {MTI_O_CP, 0, "cp", "N", MTI_INT, AT(workload.parallel.context), SEARCHED | V(TRAIN), RANKED, 1,
     1e6,
     "one rank of N with a piece of every sequence each, which gather keys and values (Llama 3)"},
    {MTI_O_DP, 0, "dp", "N", MTI_INT, AT(workload.parallel.data), PLANNED | V(TRAIN), RANKED, 1,
     1e6,
     "data-parallel ranks, among which, with --cp's, --zero splits states; on meta, or under "
     "mpirun"},
    {MTI_O_ZERO, 0, "zero", "STAGE", MTI_INT, AT(zero), SEARCHED | V(TRAIN), RANKED, 0, 3,
     "split 1: optimizer state, 2: also gradients, 3: also parameters", W(OTHER_DATA)},
    {MTI_O_F32_SHARDS, 0, "f32-shards", NULL, MTI_FLAG, AT(workload.parallel.f32_shards),
     STEPS | V(FIT), RANKED, 0, 0,
     "with --zero 3 and --dtype bf16: pieces of parameters and gradients are f32; parameters are "
     "cast before they are gathered (FSDP2)",
     W(PIECES) | W(NARROW)},
    {MTI_O_F32_REDUCE, 0, "f32-reduce", NULL, MTI_FLAG, AT(workload.parallel.f32_reduce),
     STEPS | V(FIT), RANKED, 0, 0, "gradients are cast to f32 before the ranks sum them, not after",
     W(SHARDS)},
    {MTI_O_KEEP_ROOT, 0, "keep-root", NULL, MTI_FLAG, AT(workload.parallel.keep_root),
     STEPS | V(FIT), WHOLE, 0, 0,
     "with --zero 3: embedding, last norm and head stay gathered from forward to backward (FSDP2)",
     W(PIECES) | W(KEEPS_ROOT)},
    {MTI_O_GATHER, 0, "gather", "WHAT", MTI_CHOICE, AT(workload.parallel.gather),
     STEPS | V(FIT) | V(TRAIN), RANKED, 0, 0,
     "with --zero 3: parameters module by module, all of a block, or the next block's while one "
     "computes (FSDP2)",
     W(PIECES), .choice = &mti_gather_units},
    {MTI_O_KEEP_LAST, 0, "keep-last", NULL, MTI_FLAG, AT(workload.parallel.keep_last),
     STEPS | V(FIT) | V(TRAIN), RANKED, 0, 0,
     "with --gather block or ahead: the last block stays gathered from forward to backward",
     W(PIECES) | W(BLOCKS)},
    {MTI_O_REDUCE, 0, "reduce", "WHEN", MTI_CHOICE, AT(workload.parallel.reduce), V(TRAIN), RANKED,
     0, 0,
     "sum gradients over --dp's and --cp's ranks while backward goes on (backward, as DDP does), "
     "or "
     "after it",
     W(OTHER_DATA) | W(SUMS), .choice = &mti_reduce_times},

    {MTI_O_DEVICE, 0, "device", "KIND", MTI_OTHER, 0, EVERY & ~META, ANY, 0, 0,
     "cpu, cuda, or meta: no data, but every byte is counted", .read = mti_read_device},
    {MTI_O_CAPACITY, 0, "capacity", "BYTES", MTI_BYTES, AT(workload.device.capacity),
     LOOKS | V(SERVE), ANY, 1, 9e18,
     "the device's memory, such as 80GiB (or 80G) or 80GB; more is out of memory"},
    {MTI_O_EXPANDABLE, 0, "expandable-segments", NULL, MTI_FLAG, AT(workload.device.expandable),
     PLANNED | V(FIT) | V(TRAIN), ANY, 0, 0,
     "the allocator's segments grow by granules of 2 and 20 MiB, as PyTorch's with "
     "expandable_segments:True",
     W(PEAK)},
    {MTI_O_GRANULE, 0, "granule", "BYTES", MTI_BYTES, AT(workload.device.granule),
     PLANNED | V(FIT) | V(TRAIN), ANY, 4096, 1.1e12,
     "of --expandable-segments: what a segment grows by, a multiple of the system's page (4096)",
     W(PEAK) | W(EXPANDS)},
    {MTI_O_RECLAIM, 0, "reclaim", NULL, MTI_FLAG, AT(workload.device.reclaim),
     PLANNED | V(FIT) | V(TRAIN), ANY, 0, 0,
     "with --expandable-segments: before a segment grows, as many free granules go back",
     W(PEAK) | W(EXPANDS)},
    {MTI_O_GEMM_WORKSPACE, 0, "gemm-workspace", "BYTES", MTI_BYTES,
     AT(workload.device.gemm_workspace), PLANNED, ANY, 1, 9e18,
     "on meta: workspace of the matrix product library for each pass (cuBLAS: 8519680)",
     W(PRETENDS) | W(PEAK)},
    {MTI_O_SCRATCH, 0, "scratch", "KIND", MTI_OTHER, 0, PLANNED, ANY, 0, 0,
     "on meta: the device whose kernels' scratch memory is counted", W(PRETENDS) | W(PEAK),
     .choice = &scratches, .read = mti_read_scratch},
    {MTI_O_SEED, 0, "seed", "N", MTI_INT, AT(workload.seed), EVERY & ~META & ~V(EXPLAIN), ANY, 0,
     9e18, "of weights, data order and sampling", W(DRAWS) | W(WARM) | W(CHOICE)},
    {MTI_O_THREADS, 0, "threads", "N", MTI_INT, AT(workload.device.threads), EVERY & ~META, ANY, 1,
     1024, "for the kernels (default: one per core)", W(THREADS)},
    {MTI_O_RECOMPUTE, 0, "recompute", NULL, MTI_FLAG, AT(plan.recompute), V(PLAN), ANY, 0, 0,
     "recompute every layer's activations in backward, as --checkpoint full"},
    {MTI_O_PARAMS, 0, "params", "N", MTI_SCALED, AT(plan.parameters), V(PLAN), ANY, 1, 1e15,
     "parameters that the formulas for states and work take, as a paper rounds them: 65B (default: "
     "counted)",
     W(ALONE)},
    {MTI_O_TRAIN_TOKENS, 0, "tokens", "N", MTI_SCALED, AT(plan.tokens), V(PLAN) | V(FIT), WHOLE, 1,
     1e18, "to train on, such as 300B: the FLOP of all of it, and with --flops-rate the time",
     W(ALONE)},
    {MTI_O_FLOPS_RATE, 0, "flops-rate", "R", MTI_SCALED, AT(plan.flops_rate), V(PLAN), WHOLE, 1,
     1e21, "of one device in FLOP/s, such as 312T", W(TOKENS)},
    {MTI_O_UTILISATION, 0, "utilisation", "U", MTI_REAL, AT(plan.utilisation), V(PLAN) | V(FIT),
     WHOLE, 0, 1, "share of that rate which is reached", W(TOKENS) | W(RATE)},
    {MTI_O_DEVICES, 0, "devices", "N", MTI_INT, AT(plan.devices), V(PLAN), WHOLE, 1, 1e9,
     "that share the work", W(TOKENS) | W(RATE)},
    {MTI_O_KV, 0, "kv", "N", MTI_INT, AT(plan.kv), V(PLAN), M(GPT) | M(LLAMA), 0, 1e9,
     "fill a KV cache: --seq tokens and N more", W(ALONE)},
    {MTI_O_GPUS, 0, "gpus", "N", MTI_INT, AT(fit.gpus), V(FIT), WHOLE, 1, 1e6,
     "how many train the model together"},
    {MTI_O_GPU, 0, "gpu", "NAME", MTI_TEXT, AT(fit.gpu), ON_GPUS, WHOLE, 0, 0,
     "their kind: a100-40, a100-80, h100, h200, b200, mi300x, l40s, rtx4090, rtx5090, or one of "
     "--gpus-file"},
    {MTI_O_GPUS_FILE, 0, "gpus-file", "FILE", MTI_TEXT, AT(fit.file), ON_GPUS, WHOLE, 0, 0,
     "other kinds, or other figures of these: {\"h100\": {\"memory\": \"94GiB\"}}"},
    {MTI_O_PRICE, 0, "price", "DOLLARS", MTI_REAL, AT(fit.price), V(FIT), WHOLE, 0, 1e6,
     "of an hour of one GPU: shows what a billion tokens cost"},
    {MTI_O_SERVE_WEIGHTS, 0, "weights", "FORM", MTI_CHOICE, AT(weights), V(SERVE), WHOLE, 0, 0,
     "of the layers' linears, widened for each use; plain: in --dtype (default: a row for each)",
     .choice = &weight_forms},
    {MTI_O_AT_ONCE, 0, "at-once", "N", MTI_INT, AT(at_once), V(SERVE), WHOLE, 1, 1e9,
     "tokens that one forward reads, of all prompts together"},
    {MTI_O_OVER, 0, "over", "OPTION=A,B", MTI_LIST, AT(over), V(SWEEP), ANY, 0, 0,
     "a row for each value; several --over multiply; flags take yes and no, and `model` is an "
     "option here"},
    {MTI_O_ROW, 0, "row", "NAME: OPTIONS", MTI_LIST, AT(rows), V(SWEEP), ANY, 0, 0,
     "a row by name with options of its own: \"small: --hidden 32 --act relu\""},
    {MTI_O_INFERENCE, 0, "inference", NULL, MTI_FLAG, AT(inference), V(PROFILE), ANY, 0, 0,
     "show the memory of a forward pass without a tape beside training's"},
    {MTI_O_TIMELINE, 0, "timeline", NULL, MTI_FLAG, AT(timeline), V(PROFILE), ANY, 0, 0,
     "show who held memory over the step; with --json, every event"},
    {MTI_O_TRACE, 0, "trace", "FILE", MTI_TEXT, AT(trace), V(PROFILE), ANY, 0, 0,
     "write the timeline for Perfetto or chrome://tracing"},
    {MTI_O_SNAPSHOT, 0, "snapshot", "FILE", MTI_TEXT, AT(snapshot), V(PROFILE) | V(TRAIN), ANY, 0,
     0, "write a memory snapshot for PyTorch's viewer, pytorch.org/memory_viz"},
    {MTI_O_SVG, 0, "svg", "FILE", MTI_TEXT, AT(svg), PLANNED, ANY, 0, 0,
     "draw a picture: profile, memory over the step; sweep, saved bytes and peak of each row; "
     "plan, "
     "what budgets cost",
     W(BUDGETED)},
    {MTI_O_HTML, 0, "html", "FILE", MTI_TEXT, AT(html), PLANNED | V(RANKS), ANY, 0, 0,
     "write a report to look at: one file, for any browser"},
    {MTI_O_JSON, 0, "json", "FILE", MTI_TEXT, AT(json),
     SEARCHED | V(TRAIN) | V(SERVE) | V(AUDIT) | V(RANKS), ANY, 0, 0,
     "write the result as one JSON object; - is standard output, and then no text (train: the "
     "memory of the ranks that mpirun starts)",
     W(RANKS_TRAIN)},
    {MTI_O_VERBOSE, 'v', "verbose", NULL, MTI_FLAG, AT(verbose), V(PROFILE) | V(EXPLAIN) | V(PLAN),
     ANY, 0, 0, "all details after the answer", W(TEXT)},
    {MTI_O_QUIET, 'q', "quiet", NULL, MTI_FLAG, AT(quiet), EVERY, ANY, 0, 0,
     "only results and errors"},
    {MTI_O_HELP, 'h', "help", NULL, MTI_FLAG, AT(help), EVERY, ANY, 0, 0, "this text"},
};

const size_t mti_n_option_rows = sizeof mti_option_rows / sizeof *mti_option_rows;

const mti_option_alias mti_option_aliases[] = {
    {MTI_O_UTILISATION, "utilization"}, {MTI_O_BATCH, "batch-size"}, {MTI_O_SEQ, "seq-len"}};
const size_t mti_n_option_aliases = sizeof mti_option_aliases / sizeof *mti_option_aliases;

const mti_option_group mti_option_groups[] = {{MTI_O_MODEL_FILE, "Writing:"},
                                              {MTI_O_DATA, "Training:"},
                                              {MTI_O_EXPR, "Expression (instead of a MODEL):"},
                                              {MTI_O_BATCH, "Model (a preset brings its own):"},
                                              {MTI_O_RECIPE, "Choice of ops:"},
                                              {MTI_O_OPTIMIZER, "Memory:"},
                                              {MTI_O_TP, "One rank of several:"},
                                              {MTI_O_DEVICE, "Device:"},
                                              {MTI_O_RECOMPUTE, "Plan and fit:"},
                                              {MTI_O_OVER, "Rows:"},
                                              {MTI_O_INFERENCE, "Output:"}};
const size_t mti_n_option_groups = sizeof mti_option_groups / sizeof *mti_option_groups;

const char *mti_weights_name(mti_weights_choice weights)
{
    return mti_choice_name(&weight_forms, (int)weights);
}

bool mti_verb_builds(mti_verb verb) { return SHAPED >> verb & 1; }

const mti_option_row *mti_option_row_of(mti_option id)
{
    size_t i = 0;
    while (mti_option_rows[i].id != id) i++;
    return &mti_option_rows[i];
}

bool mti_option_in_range(mti_option id, double value)
{
    const mti_option_row *r = mti_option_row_of(id);
    return value >= r->min && value <= r->max; /* false for NaN */
}
