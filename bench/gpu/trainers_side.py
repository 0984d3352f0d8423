"""trainers_side.py DEVICE: PyTorch's side of step_trainers.py. Obeys `run JSON`, the fields of a trainers.Run and
"folder", which has its config.json; answers `found JSON`: what PyTorch's allocator counted in each phase of each step.

The model is built on the device, of random weights. Before a run nothing is allocated but what cuBLAS
keeps, which is told as "workspace"."""

import contextlib
import gc
import json
import math
import os
import pickle
import sys
import tempfile
import time
import zipfile

import torch
import transformers
from torch_side import obey

STEPS = 3  # the first makes the optimizer's state; the last is a steady one
MOST_SNAPSHOTS = 12 << 20  # bytes of the archive from which on no further one is added
LEAK = 16 << 20  # bytes that no library keeps for later, but a run that was not freed does


class Books:
    """What the allocator counts, phase by phase; on the CPU it counts nothing."""

    def __init__(self, is_gpu):
        self.is_gpu, self.steps, self.start, self.ms, self.snapshot = is_gpu, [], 0, [], None

    def allocated(self):
        return torch.cuda.memory_allocated() if self.is_gpu else None

    def begin(self):
        if self.is_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self.steps.append([])
        self.record(True)
        self.start = time.perf_counter()

    def phase(self, name):
        """Ends a phase. Peaks begin anew, of what is reserved, too, at what is there now."""
        peak, reserved = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if self.is_gpu else (None, None)
        self.steps[-1].append({"name": name, "allocated": self.allocated(), "peak": peak, "reserved": reserved})
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats()

    def end(self, name="step"):
        self.phase(name)
        if self.is_gpu:
            torch.cuda.synchronize()
        self.ms.append(1e3 * (time.perf_counter() - self.start))
        self.record(False)

    def record(self, begins):
        """Has the allocator record the last step. A run is measured without it, too."""
        if not (self.is_gpu and len(self.steps) == STEPS):
            return
        try:
            if begins:
                torch.cuda.memory._record_memory_history(context="alloc", stacks="python", clear_history=True)
            else:
                self.snapshot = pickle.dumps(torch.cuda.memory._snapshot())
                torch.cuda.memory._record_memory_history(None)
        except (RuntimeError, TypeError) as failure:
            print(f"nothing recorded: {failure}", file=sys.stderr)


def build(run, device):
    config = transformers.AutoConfig.from_pretrained(run["folder"])
    config.use_cache = run["use_cache"]
    kind = transformers.AutoModelForMaskedLM if config.model_type == "bert" else transformers.AutoModelForCausalLM
    with torch.device(device):
        model = kind.from_config(config, dtype=getattr(torch, run["dtype"]), attn_implementation=run["attention"])
    if run["lora"]:
        import peft  # pylint: disable=import-outside-toplevel
        model = peft.get_peft_model(model, peft.LoraConfig(r=run["lora"], target_modules="all-linear", task_type="CAUSAL_LM"))
    return model.train()


def batch_of(run, vocab, device):
    """Random tokens, which are the labels, too. Of padded sequences the first has all, the last half of them."""
    b, s = run["b"], run["s"]
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, vocab, (b, s), generator=generator)
    batch = {"input_ids": tokens, "labels": tokens.clone()}
    if run["padded"]:
        lengths = torch.linspace(s, s // 2, b).long()
        batch["attention_mask"] = (torch.arange(s) < lengths[:, None]).long()
        batch["labels"][batch["attention_mask"] == 0] = -100
    return {key: value.to(device) for key, value in batch.items()}


def by_hand(run, model, batch, books):
    """The loop of tutorials: outputs = model(**batch), outputs.loss.backward(), step, zero_grad."""
    if run["checkpoint"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    learns = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learns, lr=1e-5, fused=True if run["fused"] else None)
    for _ in range(STEPS):
        books.begin()
        for _ in range(run["accumulate"]):
            autocast = torch.autocast("cuda" if books.is_gpu else "cpu", dtype=torch.bfloat16)
            with autocast if run["autocast"] else contextlib.nullcontext():
                outputs = model(**batch)
            loss = outputs.loss if run["accumulate"] == 1 else outputs.loss / run["accumulate"]
            if run["loop"] == "dropped":
                del outputs
            books.phase("forward")
            loss.backward()
            books.phase("backward")
        optimizer.step()
        optimizer.zero_grad()
        books.end()
    return loss.item()


def inference(run, model, batch, books):
    """Forward passes without autograd, of tokens alone: no loss."""
    model.eval()
    del batch["labels"]
    for _ in range(STEPS):
        outputs = None
        books.begin()
        with torch.no_grad():
            outputs = model(**batch)
        books.end("forward")
    return outputs.logits.float().mean().item()


class Phases(transformers.TrainerCallback):
    """Trainer's forward and backward are one phase here: it calls nothing between them."""

    def __init__(self, books):
        self.books = books

    def on_step_begin(self, args, state, control, **kwargs):
        self.books.begin()

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.books.phase("backward")

    def on_step_end(self, args, state, control, **kwargs):
        self.books.end()


def by_trainer(run, model, batch, books):
    samples = [{key: value[i] for key, value in batch.items()} for i in range(run["b"])]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=run["b"], gradient_accumulation_steps=run["accumulate"],
            bf16=run["autocast"], use_cpu=not books.is_gpu, remove_unused_columns=False, report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True, gradient_checkpointing=run["checkpoint"],
            gradient_checkpointing_kwargs={"use_reentrant": False} if run["checkpoint"] else None)
        trainer = transformers.Trainer(model, arguments, train_dataset=samples * (STEPS * run["accumulate"]),
                                       data_collator=transformers.default_data_collator, callbacks=[Phases(books)])
        loss = trainer.train().training_loss
    precision = trainer.accelerator.mixed_precision
    if precision != ("bf16" if run["autocast"] else "no"):
        raise RuntimeError(f"Trainer ran in mixed precision {precision}")
    return loss


class Side:
    def __init__(self, device):
        self.device, self.is_gpu = device, device == "cuda"
        self.first = self.base = self.use_products()

    def use_products(self):
        """Returns the bytes that stay once products have run in both types, forward and backward: what
        cuBLAS keeps and `rest` cannot free."""
        for dtype in (torch.float32, torch.bfloat16):
            linear = torch.nn.Linear(64, 64, device=self.device, dtype=dtype)
            linear(torch.ones(64, 64, device=self.device, dtype=dtype)).sum().backward()
        del linear
        return self.rest()

    def rest(self):
        """Frees what nothing refers to, cuBLAS's workspaces, and the allocator's cache; returns what is left."""
        gc.collect()
        if not self.is_gpu:
            return 0
        torch.cuda.memory._record_memory_history(None)  # of a run that failed
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    def workspace(self):
        """Bytes that libraries keep: cuBLAS's workspaces, one for each thread, and what was there before the run."""
        if not self.is_gpu:
            return None
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch._C._cuda_clearCublasWorkspaces()
        return self.base + before - torch.cuda.memory_allocated()

    def measure(self, run):
        torch.manual_seed(1)
        books = Books(self.is_gpu)
        model = build(run, self.device)
        if self.is_gpu:
            torch.cuda.empty_cache()  # of what drawing the weights took
        batch = batch_of(run, model.config.vocab_size, "cpu" if run["loop"] == "trainer" else self.device)
        loaded = books.allocated() - self.base if self.is_gpu else None
        loss = {"trainer": by_trainer, "inference": inference}.get(run["loop"], by_hand)(run, model, batch, books)
        self.keep(run, books.snapshot)
        ms = books.ms[-2]  # of the last, recording takes some
        return {"parameters": sum(parameter.numel() for parameter in model.parameters()), "loaded": loaded,
                "steps": books.steps, "workspace": self.workspace(), "ms": ms,
                **({} if math.isfinite(loss) else {"wrong": f"the loss is {loss}"})}

    def keep(self, run, snapshot):
        """Adds what the allocator recorded in the last step to an archive, which may be carried away whole."""
        path = run["snapshots"]
        if snapshot and not (os.path.exists(path) and os.path.getsize(path) > MOST_SNAPSHOTS):
            with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(run["snapshot"], snapshot)

    def run(self, text):
        """A run that fails loses itself only."""
        with contextlib.redirect_stdout(sys.stderr):  # Trainer prints
            try:
                self.base = self.rest()
                found = self.measure(json.loads(text))
                if self.base - self.first > LEAK:
                    found["wrong"] = f"{self.base - self.first} bytes of a run before were still there"
            except Exception as failure:  # pylint: disable=broad-exception-caught
                said = (str(failure).splitlines() or [""])[0]
                found = {"failed": f"{type(failure).__name__}: {said}"[:300]}
        print("found", json.dumps(found))


if __name__ == "__main__":
    obey(Side(sys.argv[1]))
