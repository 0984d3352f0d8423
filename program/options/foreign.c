/* foreign.c: options as other programs name them, and as they were named here. */
#include <string.h>
#include "options/option_table.h"

/* Words that mean an option of ours: with its value as given, or with this one. Dashes stand for
 * underscores, too. */
static const struct {
    const char *word, *option, *value;
} meanings[] = {
    {"activation", "act", NULL},
    {"activation-function", "act", NULL},
    {"hidden-act", "act", NULL},
    {"hidden-size", "hidden", NULL},
    {"d-model", "hidden", NULL},
    {"n-embd", "hidden", NULL},
    {"num-layers", "layers", NULL},
    {"num-hidden-layers", "layers", NULL},
    {"n-layer", "layers", NULL},
    {"n-layers", "layers", NULL},
    {"num-heads", "heads", NULL},
    {"num-attention-heads", "heads", NULL},
    {"n-head", "heads", NULL},
    {"n-heads", "heads", NULL},
    {"num-key-value-heads", "kv-heads", NULL},
    {"num-kv-heads", "kv-heads", NULL},
    {"intermediate-size", "ffn", NULL},
    {"ffn-hidden-size", "ffn", NULL},
    {"vocab-size", "vocab", NULL},
    {"learning-rate", "lr", NULL},
    {"max-steps", "steps", NULL},
    {"micro-batch-size", "batch", NULL},
    {"bs", "batch", NULL},
    {"per-device-train-batch-size", "batch", NULL},
    {"seq-length", "seq", NULL},
    {"seqlen", "seq", NULL},
    {"ctx", "seq", NULL},
    {"sequence-length", "seq", NULL},
    {"max-seq-length", "seq", NULL},
    {"max-seq-len", "seq", NULL},
    {"max-length", "seq", NULL},
    {"context-length", "seq", NULL},
    {"cutoff-len", "seq", NULL},
    {"block-size", "seq", NULL},
    {"max-model-len", "seq", NULL},
    {"optim", "optimizer", NULL},
    {"gradient-accumulation-steps", "accumulate", NULL},
    {"vram", "capacity", NULL},
    {"gpu-memory", "capacity", NULL},
    {"first-step", "until", "first-step"},
    {"forward", "until", "forward"},
    {"gpu-type", "gpu", NULL},
    {"num-gpus", "gpus", NULL},
    {"n-gpus", "gpus", NULL},
    {"devices", "gpus", NULL},
    {"lora", "lora-rank", NULL},
    {"lora-r", "lora-rank", NULL},
    {"load-in-4bit", "qlora", NULL},
    {"gradient-checkpointing", "checkpoint", "full"},
    {"activation-checkpointing", "checkpoint", "full"},
    {"recompute", "checkpoint", "full"},
    {"flash-attention", "attention", "flash"},
    {"flash-attn", "attention", "flash"},
    {"zero-stage", "zero", NULL},
    {"tensor-parallel-size", "tp", NULL},
    {"tensor-model-parallel-size", "tp", NULL},
    {"pipeline-parallel-size", "pp", NULL},
    {"pipeline-model-parallel-size", "pp", NULL},
    {"data-parallel-size", "dp", NULL},
    {"context-parallel-size", "cp", NULL},
    {"expert-parallel-size", "ep", NULL},
    {"expert-model-parallel-size", "ep", NULL},
};

/* Words that may mean several things, or nothing here, and what to type instead. */
static const struct {
    const char *word, *option, *instead; /* option: which the verb has to take */
} choices[] = {
    {"fp16", "dtype",
     "give --dtype f16, or --amp f16 with --dtype f32, which is what Trainer's fp16=True is"},
    {"bf16", "dtype",
     "give --dtype bf16, or --amp bf16 with --dtype f32, which is what Trainer's bf16=True is"},
    {"fp32", "dtype", "give --dtype f32"},
    {"mixed-precision", "amp", "give --amp bf16 or --amp f16"},
    {"precision", "dtype", "give --dtype bf16, or --amp bf16 with --dtype f32"},
    {"deepspeed", "recipe", "give its stage: --recipe zero1, zero2 or zero3"},
    {"offload-optimizer", "optimizer", "give --optimizer adamw-cpu"},
    {"cpu-offload", "zero",
     "of FSDP: give --recipe fsdp2:offload-param --optimizer adamw-cpu; of DeepSpeed: --recipe "
     "zero2 or "
     "zero3 --optimizer adamw-cpu"},
    {"load-in-8bit", "qlora", "give --qlora --recipe plain:codes=int8"},
    {"lora-alpha", "lora-rank", "it changes no byte of memory; leave it out"},
    {"epochs", "steps", "give --steps; an epoch is the text's tokens / (--batch x --seq)"},
    {"num-train-epochs", "steps",
     "give --steps; an epoch is the text's tokens / (--batch x --seq)"},
    {"f32-shards", "fsdp", "give --recipe plain:fsdp=f32-shards"},
    {"f32-reduce", "fsdp", "give --recipe plain:fsdp=f32-shards+f32-reduce"},
    {"keep-root", "fsdp", "give --recipe plain:fsdp=keep-root"},
    {"keep-last", "fsdp", "give --recipe plain:fsdp=keep-last"},
    {"gather", "fsdp", "give --recipe plain:fsdp=block or plain:fsdp=ahead"},
    {"live", "save",
     "it is gone; `memtape profile gpt --vocab 256 --timeline` and the model's options draw memory "
     "over a step, "
     "and docs/memtape.html draws it beside the loss"},
};

#define A_PAIR "a pair is two sequences: give --recipe trl with --batch twice as large"
#define A_REFERENCE                                                                                \
    "another copy of the weights is there, 4 bytes a parameter (2 with --dtype bf16), for "        \
    "--gpu NAME:keep-aside=BYTES or less --capacity"
#define ONE_ROW                                                                                    \
    "give --recipe trl --loss fused, which holds no logits; the head is one row there, and here "  \
    "v x h weights"

/* What people ask for that is no recipe. */
static const struct {
    const char *word, *instead;
} stacks[] = {
    {"dpo",
     A_PAIR ". With --lora-rank the model without adapters is the reference; else " A_REFERENCE},
    {"kto", "give --recipe trl; without --lora-rank " A_REFERENCE},
    {"orpo", A_PAIR "; it has no reference"},
    {"grpo",
     "what learns is --recipe trl with --batch completions of --seq tokens, prompts included; "
     "`memtape serve` has what writes them. With beta above 0, and no --lora-rank, " A_REFERENCE},
    {"ppo", "measure its models one by one: policy and value as --recipe trl; of reference and "
            "reward " A_REFERENCE},
    {"reward", A_PAIR "; " ONE_ROW},
    {"classification", ONE_ROW},
    {"axolotl", "it trains with Transformers' Trainer: give trl, peft or llamafactory"},
    {"unsloth", "give hf with --checkpoint full and --loss fused: its kernels hold no logits"},
    {"accelerate",
     "it runs another stack: give zero1, zero2 or zero3 for DeepSpeed, fsdp2, or ddp"},
    {"deepspeed", "give its stage: zero1, zero2 or zero3"},
    {"fsdp", "give fsdp2; litgpt has FSDP1"},
    {"dp", "give dataparallel; ddp, where torchrun starts the script"},
    {"trainer", "give hf, or a program on it: trl, peft or llamafactory"},
    {"transformers", "give hf"},
};

const mti_option_row *mti_foreign_option(mti_verb verb, const char *word, const char **value)
{
    *value = NULL;
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++) {
        if (strcmp(word, meanings[i].word) != 0) continue;
        *value = meanings[i].value;
        return mti_option_find(verb, meanings[i].option);
    }
    return NULL;
}

bool mti_foreign_model(const char *word)
{
    static const char *const words[] = {"model",    "preset",    "model-name", "model-name-or-path",
                                        "model-id", "base-model"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(word, words[i])) return true;
    return false;
}

const char *mti_foreign_recipe(const char *names, char word[24])
{
    for (size_t n; *names; names += n + (names[n] == '+')) {
        n = strcspn(names, "+");
        snprintf(word, 24, "%.*s", (int)n, names);
        for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
            if (mti_same_word(word, stacks[i].word)) return stacks[i].instead;
    }
    return NULL;
}

const char *mti_foreign_advice(mti_verb verb, const char *word)
{
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (!strcmp(word, choices[i].word) && mti_option_find(verb, choices[i].option))
            return choices[i].instead;
    return NULL;
}
