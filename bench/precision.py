"""precision.py: training steps in f32, in bf16 throughout and in f32 with autocast, beside PyTorch as it is and
compiled."""

from measure import check_losses, started
from scaling import taking_turns
from show import number, ratio, table

PRECISIONS = ("f32", "bf16", "autocast")
COMPILED_IF_BRIEF = "d384"  # of a run with little effort, where compiling would take most of the time
COMPILED_FROM = 384  # the least width whose 16-bit forms are compiled, too: PyTorch's compiler takes 20 s and more for each


def forms(sides, gpt, precision, s):
    """(the form's name, its side): memtape, and PyTorch as it is and compiled."""
    out = [(sides[0].name, sides[0])]
    is_compiled = s.smoke or not s.brief or gpt.name == COMPILED_IF_BRIEF
    for side in sides[1:]:
        out.append(("eager", side.with_words()))
        if is_compiled and (precision == "f32" or gpt.d >= COMPILED_FROM):
            out.append(("compiled", side.with_words("compile")))
    return out


def measure(sides, gpt, precision, s):
    """{"name", "precision", form: {"least", "median"} in ms}"""
    named = forms(sides, gpt, precision, s)
    row = {"name": gpt.name, "precision": precision}
    losses = [[] for _ in named]
    with started([side for _, side in named], "gpt", *gpt.arguments, s.threads, precision) as workers:
        series = taking_turns(workers, 2 * len(named) * s.effort, s.rounds(3), losses)
        for worker in workers:
            worker.end()
    for (name, _), times, of in zip(named, series, losses):
        check_losses(f"{gpt.name}, {precision}, {name}", of)
        times = sorted(times)
        row[name] = {"least": times[0] / 1e6, "median": times[len(times) // 2] / 1e6, "n": len(times)}
    return row


def rows(sides, gpts, s):
    return [measure(sides, gpt, precision, s) for gpt in gpts for precision in PRECISIONS]


def show(measured):
    out = []
    for row in measured:
        mine, eager, compiled = row["memtape"], row.get("eager"), row.get("compiled")
        out.append([row["name"], row["precision"], number(mine["least"]), number(mine["median"])])
        for theirs in (eager, compiled):
            out[-1] += [number(theirs and theirs["least"]), number(theirs and theirs["median"]),
                        ratio(mine["least"], theirs and theirs["least"])]
    return "\n".join([
        "One training step of a GPT in three precisions, ms, beside PyTorch as it is and compiled by torch.compile",
        table(["", "", "least", "median", "torch", "median", "ratio", "compiled", "median", "ratio"], out, 2)])
