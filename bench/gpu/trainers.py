"""trainers.py: the training runs that step_trainers.py measures: Hugging Face's models as one fine-tunes them, each
with the options that docs/recipes.md and `memtape help` have for it. These were written before anything was
measured; where no option says what a run does, `lacks` does."""

from dataclasses import dataclass, replace

# As the models' config.json on the Hub have them, what changes no memory left out.
CONFIGS = {
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
             "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
             "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1},
    "llama-3.2-1b": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                     "num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
                     "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072,
                     "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "rope_theta": 500000.0,
                     "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                                      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
    "qwen2.5-0.5b": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
                     "num_hidden_layers": 24, "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
                     "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
                     "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "rope_theta": 1000000.0},
    "qwen2.5-1.5b": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
                     "num_hidden_layers": 28, "hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12,
                     "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 131072,
                     "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "rope_theta": 1000000.0},
    "bert-base": {"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_act": "gelu",
                  "num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
                  "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0,
                  "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
}

# For a dry run; a key that a model lacks does not apply.
TOY = {"n_layer": 2, "n_embd": 64, "n_head": 4, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
       "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256}
TOY_BATCH, TOY_SEQ = 2, 32


@dataclass(frozen=True)
class Run:
    """loop: "trainer"; or by hand, where `outputs` is "held" until the next forward, or "dropped" for the loss; or
    "inference", a forward without autograd."""
    name: str
    model: str
    b: int
    s: int
    options: str  # memtape's
    loop: str = "held"
    dtype: str = "float32"  # of the weights
    autocast: bool = False  # to bf16
    fused: bool = False  # AdamW, of a loop by hand; otherwise as PyTorch chooses
    checkpoint: bool = False
    lora: int = 0  # rank, on all linears but the head
    attention: str = "sdpa"
    padded: bool = False  # sequences of half the length and more, with a mask
    accumulate: int = 1
    use_cache: bool = False
    lacks: str = ""  # what the options cannot say

    def command(self, folder=""):
        return f"profile {folder}{self.model}/config.json -b {self.b} -s {self.s} {self.options}"


ADAPTERS = "--lora-rank 16 --lora-targets q,k,v,proj,gate,up,down"
AMP = "--recipe hf --dtype f32 --amp bf16"
TRAINER = f"{AMP} --optimizer adamw"
BF16 = "bfloat16"

# What matters most comes first: time may end before the list does.
RUNS = (
    Run("Trainer, bf16=True", "llama-3.2-1b", 4, 1024, TRAINER, "trainer", autocast=True),
    Run("Trainer, bf16=True, checkpoints", "llama-3.2-1b", 4, 1024, f"{TRAINER} --checkpoint full", "trainer",
        autocast=True, checkpoint=True),
    Run("PEFT, bf16, padded", "llama-3.2-1b", 4, 1024, f"--recipe peft {ADAPTERS}", dtype=BF16, lora=16, padded=True,
        lacks="the padded batch's mask"),
    Run("PEFT, bf16, padded, checkpoints", "llama-3.2-1b", 4, 1024, f"--recipe peft {ADAPTERS} --checkpoint full",
        dtype=BF16, lora=16, padded=True, checkpoint=True, lacks="the padded batch's mask"),
    Run("loop, f32", "gpt2", 8, 1024, "--recipe hf --dtype f32 --optimizer adamw-foreach --loss held"),
    Run("loop, f32", "llama-3.2-1b", 1, 512, "--recipe hf --dtype f32 --optimizer adamw-foreach --loss held"),
    Run("loop, f32, fused AdamW", "llama-3.2-1b", 1, 512, "--recipe hf --dtype f32 --optimizer adamw --loss held",
        fused=True),
    Run("loop, autocast", "gpt2", 8, 1024, f"{AMP} --optimizer adamw-foreach --loss held", autocast=True),
    Run("loop, bf16", "qwen2.5-0.5b", 4, 1024, "--recipe hf --optimizer adamw-16bit-foreach --loss held", dtype=BF16),
    Run("loop, bf16, short", "qwen2.5-1.5b", 1, 512, "--recipe hf --optimizer adamw-16bit-foreach --loss held", dtype=BF16),
    Run("loop, bf16, fused AdamW, short", "qwen2.5-1.5b", 1, 512, "--recipe hf --optimizer adamw-16bit --loss held",
        dtype=BF16, fused=True),
    Run("loop, bf16, checkpoints", "qwen2.5-1.5b", 4, 1024,
        "--recipe hf --optimizer adamw-16bit-foreach --loss held --checkpoint full", dtype=BF16, checkpoint=True),
    Run("Trainer, bf16=True, LoRA on f32", "qwen2.5-1.5b", 4, 1024, f"{TRAINER} {ADAPTERS}", "trainer", autocast=True,
        lora=16),
    Run("Trainer, bf16=True, LoRA on bf16", "llama-3.2-1b", 4, 1024,
        f"--recipe hf:f32-adapters --optimizer adamw {ADAPTERS}", "trainer", dtype=BF16, autocast=True, lora=16,
        lacks="autocast beside 16-bit weights"),
    Run("Trainer, bf16=True", "bert-base", 16, 512, TRAINER, "trainer", autocast=True),
    Run("loop, bf16, eager attention", "qwen2.5-0.5b", 4, 1024,
        "--recipe hf --optimizer adamw-16bit-foreach --loss held --attention math", dtype=BF16, attention="eager"),
    Run("loop, bf16, padded", "qwen2.5-0.5b", 4, 1024,
        "--recipe hf:kv-groups=repeated --optimizer adamw-16bit-foreach --loss held", dtype=BF16, padded=True,
        lacks="the padded batch's mask"),
    Run("loop, autocast, 2 batches a step", "qwen2.5-0.5b", 4, 1024,
        f"{AMP} --optimizer adamw-foreach --loss held --microbatches 2", autocast=True, accumulate=2),
    Run("forward alone", "llama-3.2-1b", 4, 1024, "--recipe hf --inference", "inference", dtype=BF16),
    Run("Trainer, f32", "gpt2", 8, 1024, "--recipe hf --dtype f32 --optimizer adamw", "trainer"),
    Run("Trainer, bf16=True, 2 batches a step", "gpt2", 8, 1024, f"{TRAINER} --microbatches 2", "trainer", autocast=True,
        accumulate=2),
    Run("loop, bf16, loss alone", "qwen2.5-0.5b", 4, 1024, "--recipe hf --optimizer adamw-16bit-foreach", "dropped",
        dtype=BF16),
    Run("loop, f32, loss alone", "bert-base", 16, 512, "--recipe hf --dtype f32 --optimizer adamw-foreach", "dropped"),
    Run("loop, f32, eager attention", "gpt2", 8, 1024,
        "--recipe hf --dtype f32 --optimizer adamw-foreach --loss held --attention math", attention="eager"),
    Run("loop, f32, use_cache left on", "gpt2", 8, 1024, "--recipe hf --dtype f32 --optimizer adamw-foreach --loss held",
        use_cache=True, lacks="the KV cache that such a forward fills"),
    Run("Trainer, bf16=True, checkpoints, s=4096", "qwen2.5-1.5b", 2, 4096, f"{TRAINER} --checkpoint full", "trainer",
        autocast=True, checkpoint=True),
)


def config_of(model, toy):
    config = CONFIGS[model]
    return config | {key: value for key, value in TOY.items() if toy and key in config}


def runs(toy):
    return [replace(run, b=TOY_BATCH, s=TOY_SEQ) for run in RUNS] if toy else list(RUNS)
