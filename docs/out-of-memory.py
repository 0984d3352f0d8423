# %% [markdown]
# # From a run that is out of memory to the change that fits
#
# A model does not fit into a GPU of 8 GiB. This notebook goes from the allocator's snapshot of the failure to the tensors that fill
# the memory, tries what would take less, and ends with a test that keeps the model below the limit. No GPU is needed. Install memtape
# with `pip install .` in its repository, beside PyTorch.

# %%
from pathlib import Path

import memtape
import memtape.torch
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.before, self.between = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    def __init__(self, layers=24, width=1024, heads=16, words=50304, context=1024):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


with torch.device("meta"):
    model, ids = GPT(), torch.empty(4, 1024, dtype=torch.int64)
optimizer = torch.optim.AdamW(model.parameters())
LIMIT = "8GiB"
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

# %% [markdown]
# ## The failing run
#
# On a GPU, put the loop into `with memtape.torch.watch(model, optimizer):`. Where a step runs out of memory, it writes
# `memtape-oom.pickle`, the allocator's snapshot of that instant, and `memtape-oom.json`, what the step should have taken. Here there is no
# GPU, so the same two files come from a profile. `write_snapshot` asks memtape's allocator, which has the rules of PyTorch's, for what
# the step asks for, and stops where a GPU of 8 GiB would.

# %%
report = memtape.torch.profile(model, ids, optimizer, autocast=torch.bfloat16, timeline=True)
Path("memtape-oom.json").write_text(report.json())
print("out of memory:", report.write_snapshot("memtape-oom.pickle", capacity=LIMIT))

# %% [markdown]
# ## What was there, and what was asked for
#
# `memtape compare` explains the snapshot: what was refused, to whom, which tensors were there, and which were still to come. PyTorch's own
# viewer, pytorch.org/memory_viz, opens the file, too.

# %%
print(memtape.run("compare", "memtape-oom.pickle", "memtape-oom.json"))

# %% [markdown]
# The report of the whole step says what holds its peak.

# %%
print(report)

# %% [markdown]
# ## What would take less
#
# Each change is run as a step of its own; nothing is estimated, and the model stays as it is.

# %%
advices = memtape.torch.advise(model, ids, optimizer, autocast=torch.bfloat16)
print(advices)

# %%
limit = 8 << 30
for one in advices:
    print("fits" if one.report["steady"]["peak"] < limit else "does not fit", "-", one.text)

# %% [markdown]
# ## The change
#
# Checkpoints are written into the model as one would write them. The same capacity now refuses nothing: what the step reserves beyond it
# are cached segments, which the allocator gives back before it fails.

# %%
class Checkpointed(GPT):
    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


with torch.device("meta"):
    smaller = Checkpointed()
optimizer = torch.optim.AdamW(smaller.parameters())
after = memtape.torch.profile(smaller, ids, optimizer, autocast=torch.bfloat16, timeline=True)
print(after - report)
print("out of memory:", after.write_snapshot("memtape-after.pickle", capacity=LIMIT))

# %% [markdown]
# ## So that it stays below
#
# One line in a test. It fails, with the report, once the model takes more; `memtape_baseline` of the pytest plugin compares with a file instead.

# %%
memtape.torch.assert_peak_below(LIMIT, after)
print("below", LIMIT)
