"""What eager PyTorch holds of a cross-entropy of f32 logits: the most bytes of storages that are alive at once, in forward
10 for each logit (bf16, f32, log-probabilities), in backward 12 (log-probabilities and two gradients); and that
--loss unfused holds as much."""
import json
import subprocess
import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import torch.nn.functional as F

from lifetimes import Lifetimes

ROWS, CLASSES = 64, 4096


def theirs():
    x = torch.randn(ROWS, CLASSES, dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(0, CLASSES, (ROWS,))
    with Lifetimes() as lifetimes:
        logits = x * 1
        loss = F.cross_entropy(logits.float(), target)
        del logits
        forward = lifetimes.peak
        lifetimes.peak = lifetimes.now
        loss.backward()
    return forward, lifetimes.peak


def ours():
    """Of a model so small that its logits are all that counts."""
    words = ["profile", "gpt", "-b", 1, "-s", ROWS, "-d", 4, "-a", 1, "-l", 1, "--ffn", 4, "--vocab", CLASSES, "--dtype",
             "bf16", "--loss", "unfused", "--device", "meta", "--json", "-"]
    p = subprocess.run([sys.argv[2], *map(str, words)], capture_output=True, text=True, check=True)
    report = json.loads(p.stdout)
    peaks = {phase["name"]: phase["peak"] for phase in report["phases"]}
    return [peaks[name] - report["params"]["bytes"] for name in ("forward", "backward")]


def equal(is_, wanted, what):
    if is_ != wanted:
        sys.exit(f"{what}: {is_}, wanted {wanted}")


logits = ROWS * CLASSES
TWO_SCALARS = 8  # the loss and the sum of its weights, in f32
equal(theirs(), (10 * logits + TWO_SCALARS, 12 * logits + TWO_SCALARS), "PyTorch's peaks in forward and backward")
for bytes, each in zip(ours(), (10, 12)):
    if not each <= bytes / logits < each + 0.3:
        sys.exit(f"--loss unfused: {bytes / logits} bytes for each logit at the peak, wanted {each} and a little")
print("10 and 12 bytes for each logit")
