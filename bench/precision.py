"""precision.py: training steps in f32, in bf16 throughout and in f32 with autocast, beside PyTorch as it is and
compiled."""

from measure import check_losses, started, steps_of
from scaling import MOST_ROUNDS, SETTLED, is_settled, turns_of
from show import number, ratio, table

PRECISIONS = ("f32", "bf16", "autocast")
COMPILED_IF_BRIEF = "d384"  # of a run with little effort, where compiling would take most of the time
BRIEF_SECONDS = 5  # a step of a peer with slow products is not made where it would take longer
BRIEF_STEPS = 2
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


def step_seconds(gpt, gflops):
    """About how long a step takes at this rate: six flop for each parameter and token."""
    return 6e-9 * gpt.n_parameters * gpt.b * gpt.s / gflops


def summary(turns, is_brief=False):
    times = sorted(sum(turns, []))
    return {"least": times[0] / 1e6, "median": times[len(times) // 2] / 1e6, "n": len(times),
            "settled": is_brief or is_settled(turns), "brief": is_brief}


def brief(side, gpt, precision, s):
    """The steps of a side whose products are far slower than memtape's (measure.is_slow): two, or none."""
    with started([side], "gpt", *gpt.arguments, s.threads, precision) as (worker,):
        lines = worker.ask("plain", BRIEF_STEPS)
        worker.end()
    return summary([[sum(step) for step in steps_of(lines, "plain")]], is_brief=True)


def measure(sides, gpt, precision, s, limits):
    """{"name", "precision", form: {"least", "median"} in ms, "left_out": [form]}"""
    row = {"name": gpt.name, "precision": precision, "left_out": []}
    slow = [] if precision == "f32" else [side.name for side in sides if f"{side.name}_bf16_gflops" in limits["slow"]]
    all_forms = forms(sides, gpt, precision, s)
    named = [(name, side) for name, side in all_forms if side.name not in slow]
    losses = [[] for _ in named]
    with started([side for _, side in named], "gpt", *gpt.arguments, s.threads, precision) as workers:
        series = turns_of(workers, 2 * len(named) * s.effort, s.rounds(3), losses, settle=not s.smoke)
        for worker in workers:
            worker.end()
    for (name, _), turns, of in zip(named, series, losses):
        check_losses(f"{gpt.name}, {precision}, {name}", of)
        row[name] = summary(turns)
    for name, side in (form for form in all_forms if form not in named):
        if name == "eager" and step_seconds(gpt, limits[f"{side.name}_bf16_gflops"]) <= BRIEF_SECONDS:
            row[name] = brief(side, gpt, precision, s)
        else:
            row["left_out"].append(name)
    return row


def rows(sides, gpts, s, limits):
    return [measure(sides, gpt, precision, s, limits) for gpt in gpts for precision in PRECISIONS]


def least(times, is_left_out=False):
    if is_left_out:
        return "slow"
    return "" if times is None else number(times["least"]) + ("*" if times["brief"] else "" if times["settled"] else "?")


def show(measured):
    out = []
    for row in measured:
        mine = row["memtape"]
        out.append([row["name"], row["precision"], least(mine), number(mine["median"])])
        for form in ("eager", "compiled"):
            theirs = row.get(form)
            out[-1] += [least(theirs, form in row["left_out"]), number(theirs and theirs["median"]),
                        ratio(mine["least"], theirs and theirs["least"])]
    slow = any(row["left_out"] or row.get("eager", {}).get("brief") for row in measured)
    return "\n".join([
        "One training step of a GPT in three precisions, ms, beside PyTorch as it is and compiled by torch.compile; "
        f"? after {MOST_ROUNDS} turns the two best still were more than {100 * SETTLED:.0f} % apart",
        *([f"PyTorch's bf16 products are far slower here than memtape's: * after {BRIEF_STEPS} steps, the first among "
           f"them; slow: not measured, as a step would take over {BRIEF_SECONDS} s or has to be compiled"] if slow else []),
        table(["", "", "least", "median", "torch", "median", "ratio", "compiled", "median", "ratio"], out, 2)])
