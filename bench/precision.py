"""precision.py: training steps in f32, in bf16 throughout and in f32 with autocast, beside PyTorch as it is and
compiled."""

from measure import check_losses, started
from scaling import MOST_ROUNDS, SETTLED, is_settled, turns_of
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
        series = turns_of(workers, 2 * len(named) * s.effort, s.rounds(3), losses, settle=not s.smoke)
        for worker in workers:
            worker.end()
    for (name, _), turns, of in zip(named, series, losses):
        check_losses(f"{gpt.name}, {precision}, {name}", of)
        times = sorted(sum(turns, []))
        row[name] = {"least": times[0] / 1e6, "median": times[len(times) // 2] / 1e6, "n": len(times),
                     "settled": is_settled(turns)}
    return row


def rows(sides, gpts, s):
    return [measure(sides, gpt, precision, s) for gpt in gpts for precision in PRECISIONS]


def least(times):
    return "" if times is None else number(times["least"]) + ("" if times["settled"] else "?")


def show(measured):
    out = []
    for row in measured:
        mine, eager, compiled = row["memtape"], row.get("eager"), row.get("compiled")
        out.append([row["name"], row["precision"], least(mine), number(mine["median"])])
        for theirs in (eager, compiled):
            out[-1] += [least(theirs), number(theirs and theirs["median"]),
                        ratio(mine["least"], theirs and theirs["least"])]
    return "\n".join([
        "One training step of a GPT in three precisions, ms, beside PyTorch as it is and compiled by torch.compile; "
        f"? after {MOST_ROUNDS} turns the two best still were more than {100 * SETTLED:.0f} % apart",
        table(["", "", "least", "median", "torch", "median", "ratio", "compiled", "median", "ratio"], out, 2)])
