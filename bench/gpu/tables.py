"""tables.py: the results of the steps as text."""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from show import number, table  # noqa: E402
from snapshot import FIGURES  # noqa: E402

DRY = "DRY RUN on cudasim and toy sizes: no figure here is a measurement of a GPU"


def percent(part, whole):
    return f"{100 * part / whole:.0f} %" if part and whole else ""


def hide(rows, result, columns):
    """Hides times and rates in a dry run, where they mean nothing."""
    if result["measurement"]:
        return rows
    return [[cell if i not in columns or not cell else "-" for i, cell in enumerate(row)]
            for row in rows]


def gib(n_bytes):
    return f"{n_bytes / 2 ** 30:.2f}" if n_bytes is not None else ""


def machine(result):
    m = result["machine"]
    lines = [f"memtape on the GPU, commit {m['commit']}", "",
             f"  device    {m['gpu'] or 'none: ' + m['probe']}",
             f"  machine   {m['cpu']}, {m['cores']} cores, load {m['load']}",
             f"  software  {m['compiler']}",
             f"  peer      PyTorch {m['torch'] or 'is not here: ' + str(m['no_torch'])}"]
    if not result["measurement"]:
        lines += ["", f"  {DRY}"]
    return "\n".join(lines)


# ---- one table for each step -------------------------------------------------------------------


def suite(rows, _):
    left_out = [row["name"] for row in rows if "left_out" in row]
    rows = [row for row in rows if "left_out" not in row]
    tests, skipped = (sum(row[key] for row in rows) for key in ("tests", "skipped"))
    passed = sum("wrong" not in row for row in rows)
    return table(["program", "tests passed", "skipped", "s", ""],
                 [[r["name"], r["tests"], r["skipped"] or "", r["seconds"], r.get("wrong", "ok")]
                  for r in rows]) + (
        f"\n  {passed} of {len(rows)} programs passed, {tests} tests; {skipped} tests skipped"
        f"\n  not packed: {', '.join(left_out) or 'none'}")


def saved(rows, _):
    out = []
    for r in rows:
        verdict = "FAILED" if "failed" in r else "FALSE" if "wrong" in r else "=="
        out.append([r["name"], r.get("measured", ""), verdict, r.get("expected", ""),
                    gib(r.get("peak_allocated")), gib(r.get("peak_reserved"))])
    return table(["bytes", "measured", "", "expected", "peak GiB", "reserved"], out)


def curve(rows, result):
    out = []
    for r in rows:
        every = max(1, len(r["cpu"]) // 10)
        shown = [[i + 1, f"{a:.6f}", f"{b:.6f}", f"{b - a:+.1e}"]
                 for i, (a, b) in enumerate(zip(r["cpu"], r["device"]))
                 if (i + 1) % every == 0 or i == 0]
        out.append(f"  {r['name']}: one seed, the loss of each step\n" + table(
            ["step", "cpu", result["kind"], "difference"], shown) +
            f"\n  largest difference of all {len(r['cpu'])} steps: {r['largest_difference']:.2e}, "
            f"allowed {r['allowed']}")
    return "\n".join(out)


def limits(rows, result):
    if not result["measurement"]:
        return "  (not shown)"
    return "\n".join(f"  {number(r['copy_gbs'])} GB/s copying in device memory, bytes read and "
                     f"written; {number(r['gemm_tflops'])} TFLOP/s in a large bf16 product of "
                     f"random numbers (by {r['by']})" for r in rows)


def limit(result, key):
    rows = result["steps"].get("limits", {}).get("rows") or [{}]
    return rows[0].get(key)


def kernel_rows(rows, result, rate, of):
    """One line per direction. rate(figures, ns); of(name, rates): the last columns."""
    out = []
    for r in rows:
        if "failed" in r:
            out.append([r["name"], "FAILED"] + [""] * 7)
            continue
        for word in ("forward", "backward"):
            if word not in r:
                continue
            mine, theirs = r[word]["memtape"]["ns"], r[word].get("torch", {}).get("ns")
            rates = rate(r[word], mine), theirs and rate(r[word], theirs)
            error = "" if r.get("error") is None or word == "backward" else f"{r['error']:.0e}"
            out.append([r["name"], word, number(mine / 1e3), number(rates[0]), of(*rates),
                        theirs and number(theirs / 1e3) or "", number(rates[1]),
                        f"{theirs / mine:.2f}x" if theirs else "",
                        error + (" WRONG" if "wrong" in r else "")])
    return hide(out, result, range(2, 8))


def memory(rows, result):
    copy = limit(result, "copy_gbs")
    shown = kernel_rows(rows, result, lambda figures, ns: figures["bytes"] / ns,
                        lambda mine, _: percent(mine, copy))
    return table(["op", "", "us", "GB/s", "of copy", "torch us", "GB/s", "ratio", "error"],
                 shown, 2) + (
        "\n  error: how far memtape's results and gradients are from PyTorch's in f32 (f64 for f32)"
        "\n  rope, int8 and nf4: in PyTorch several of its operations")


def gemm(rows, result):
    shown = kernel_rows(rows, result, lambda figures, ns: figures["flop"] / ns / 1e3, percent)
    return table(["linear", "", "us", "TFLOP/s", "of cuBLAS", "cuBLAS us", "TFLOP/s", "ratio",
                  "error"], shown, 2) + (
        "\n  memtape's whole op, bias and bias gradient with it, beside torch.mm's products alone;"
        "\n  loss: without logits in memory, beside torch's linear and cross_entropy")


def attention(rows, result):
    peak = limit(result, "gemm_tflops")
    shown = kernel_rows(rows, result, lambda figures, ns: figures["flop"] / ns / 1e3,
                        lambda mine, _: percent(mine, peak))
    return table(["causal attention", "", "us", "TFLOP/s", "of gemm", "torch us", "TFLOP/s",
                  "ratio", "error"], shown, 2)


def warm(rows, _):
    return "\n".join(f"  {r['name']}: {r.get('said') or 'FAILED: ' + r['failed']}" for r in rows)


def gpt(rows, result):
    """The limit is the tokens/s that a step's flop allow at the rate of a large product."""
    peak, sizes, out = limit(result, "gemm_tflops"), {}, []
    for r in rows:
        sizes.setdefault(r["name"], {})[r.get("side", "")] = r
    for name, sides in sizes.items():
        mine = sides.get("memtape", {})
        flop = mine.get("flop")
        for side, r in sides.items():
            if "failed" in r:
                out.append([name, f"{side} FAILED".strip()] + [""] * 7)
                continue
            rate = flop / r["ms"] / 1e9 if flop else None
            out.append([name, side, number(r["ms"]), f"{r['tokens_per_s']:.0f}",
                        number(rate), percent(rate, peak),
                        f"{r['ms'] / mine['ms']:.2f}x" if "ms" in mine else "",
                        gib(r.get("peak_allocated")), gib(r.get("peak_reserved"))])
        if flop and peak:
            ms = flop / peak / 1e9
            out.append([name, "flop limit", number(ms), f"{mine['tokens'] / ms * 1e3:.0f}",
                        number(peak), "100 %", "", "", ""])
    out = hide(out, result, range(2, 7))
    return table(["", "", "ms a step", "tokens/s", "TFLOP/s", "of gemm", "ratio",
                  "peak GiB allocated", "reserved"], out, 2) + (
        "\n  weights and activations bf16 on all sides; ratio: the side's time by memtape's"
        "\n  AdamW's state: memtape f32, PyTorch bf16 (its fused AdamW keeps the weights' dtype)")


def offload(rows, result):
    """The first row of memtape and the first of PyTorch are the steps without offload."""
    plain, out = {}, []

    def size(n_bytes):
        if n_bytes is None:
            return ""
        return gib(n_bytes) if result["measurement"] else f"{n_bytes} B"

    for r in rows:
        if "failed" in r:
            out.append([r["side"], "FAILED"] + [""] * 8)
            continue
        without = plain.setdefault(r["side"].split()[0].rstrip(","), r)
        peaks = [row.get("peak_allocated") for row in (without, r)]
        lowered = None if None in peaks or without is r else peaks[0] - peaks[1]
        moved = r["out"] + r["in"] if "out" in r else None
        same = "" if without is r or "gradient_hash" not in r else (
            "same bits" if r["gradient_hash"] == without.get("gradient_hash") else "DIFFER")
        out.append([r["side"], number(r["ms"]), f"{r['ms'] / without['ms']:.2f}x", size(peaks[1]),
                    size(lowered), size(moved), size(r.get("in_vain")),
                    number(r["copy_ms"]) if "copy_ms" in r else "",
                    f"{100 * r['hidden']:.0f} %" if "hidden" in r else "", same])
    out = hide(out, result, (1, 2, 7, 8))
    return table(["GiB" if result["measurement"] else "", "ms a step", "of plain", "peak", "lowered",
                  "moved", "in vain", "ms copying", "hidden", "gradients"], out, 1) + (
        "\n  N out, M ahead: storages on their way out at once, and on their way back ahead of"
        "\n  their turn; peak: allocated, of all steps; moved: out and back, a step; in vain: moved"
        "\n  out without lowering the peak; hidden: share of copying that compute did not wait for")


def sanitizer(rows, _):
    return table(["compute-sanitizer", "s", ""],
                 [[r["name"], r.get("seconds", ""), r.get("skipped") or r.get("failed") or r.get("wrong") or r["said"] or "ok"]
                  for r in rows])


def variants(rows, result):
    """Each beside the plain step of its size."""
    plain, out = {r["name"]: r for r in rows if r.get("side") == "plain"}, []
    for r in rows:
        if "failed" in r:
            out.append([r["name"], r["side"], "FAILED"] + [""] * 4)
            continue
        first = plain.get(r["name"], {})
        out.append([r["name"], r["side"], number(r["ms"]), f"{r['tokens_per_s']:.0f}",
                    f"{r['ms'] / first['ms']:.2f}x" if "ms" in first else "", gib(r.get("peak_allocated")),
                    gib(r.get("peak_reserved"))])
    out = hide(out, result, (2, 3, 4))
    return table(["", "", "ms a step", "tokens/s", "of plain", "peak GiB allocated", "reserved"], out, 2)


def snapshot(rows, _):
    replayed, phases = [], []
    for r in rows:
        label = " ".join(filter(None, (r["name"], r.get("side"))))
        if "failed" in r:
            replayed.append([label, "FAILED"] + [""] * 4)
        elif "events" in r:
            for when in ("memory", "peak"):
                for side in ("torch", "memtape"):
                    verdict = ("DIFFERS" if r["torch"][when] != r["memtape"][when] else "==") if side == "memtape" else ""
                    replayed.append([label, f"{side}, {'now' if when == 'memory' else 'peak'}", *r[side][when], verdict])
        else:
            phases.append([r["name"], r["torch"], r["workspace"], r["counters"], r["memtape"], r["difference"] or "=="])
    text = table(["bytes", "", *FIGURES, ""], [row + [""] * (8 - len(row)) for row in replayed], 2)
    if phases:
        text += "\n\n" + table(["allocated after", "torch", "its workspace", "step counters", "memtape", "rest"], phases)
    return text + ("\n  PyTorch's recorded requests, asked of memtape's allocator; below, the same step on both sides"
                   if phases else "\n  the recorded requests, asked of memtape's allocator")


def trainers_row(r, size):
    """(its line in the table of peaks, in that of phases)"""
    mine, theirs = r["memtape"], r.get("torch", {})

    def both(key, name=None):
        a, b = (side.get(key) if name is None else side.get(key, {}).get(name) for side in (theirs, mine))
        return [size(a), size(b), f"{b / a:.3f}" if a else ""]

    workspace = theirs.get("workspace")
    return ([r["name"], f"{r['b']} x {r['s']}", *both("peak"), *both("reserved"), *both("rest"),
             "" if workspace is None else f"{workspace / 2 ** 20:.1f}", number(theirs.get("ms"))],
            [r["name"], *both("loaded")[:2], *both("first")[:2], *both("after", "forward")[:2], *both("after", "backward")[:2]])


def trainers(rows, result):
    """Peaks of a steady step and what else was counted; below, what memtape was asked."""
    dry = not result["measurement"]

    def size(n_bytes):
        return "" if n_bytes is None else f"{n_bytes / 2 ** (20 if dry else 30):.2f}"

    told = [r for r in rows if "failed" not in r]
    lines = [trainers_row(r, size) for r in told]
    failed = [[r["name"], "FAILED"] + [""] * 11 for r in rows if "failed" in r]
    asked = [[r["name"], r["command"] + (f"   (without {r['lacks']})" if r["lacks"] else "")] for r in rows if "command" in r]
    ratios = [r["memtape"]["peak"] / r["torch"]["peak"] for r in told if r.get("torch", {}).get("peak")]
    near = [sum(abs(ratio - 1) <= part for ratio in ratios) for part in (0.01, 0.05)]
    unit = "MiB" if dry else "GiB"
    return table([unit, "b x s", "peak: torch", "memtape", "ratio", "reserved: torch", "memtape", "ratio",
                  "at rest: torch", "memtape", "ratio", "cuBLAS MiB", "ms a step"],
                 hide([line for line, _ in lines] + failed, result, (12,)), 2) + (
        ("\n  PyTorch counts no bytes on the CPU" if dry else
         f"\n  of {len(ratios)} peaks memtape predicts {near[0]} within 1 %, {near[1]} within 5 %") +
        "\n  torch: max_memory_allocated and max_memory_reserved of a steady step, less cuBLAS's workspaces,"
        "\n  which have a column; at rest: after the step, gradients gone; ratio: memtape's over torch's\n\n") + table(
        [unit, "loaded: torch", "memtape", "first peak: torch", "memtape", "after forward: torch", "memtape",
         "after backward: torch", "memtape"], [phases for _, phases in lines]) + "\n\n" + table(
        ["", "what memtape was asked"], asked, 2) + (
        "" if dry else "\n  trainers.zip has each last step as PyTorch's allocator recorded it, for memtape compare")


def modules(rows, result):
    """Of each figure that differs, whose: below the table."""
    about = next((r["about"] for r in rows if "about" in r), {})
    rows, out, why = [r for r in rows if "about" not in r], [], [f"  cuDNN's reserve: {text}" for text in about.get("reserves", [])]
    for r in rows:
        if "watch" in r:
            why += [f"  watch, step {i + 1}: {measured:,} measured, {mine:,} predicted: {mine - measured:+,}; before: {r['before']:,}"
                    for i, (measured, mine) in enumerate(r["watch"])]
            why += [f"    {line}" for line in r.get("said", "").splitlines()]
        elif "failed" in r:
            out.append([r["name"], "FAILED"] + [""] * 8)
        elif "torch_peak" not in r:
            out.append([r["name"], "", "", "", f"{r['memtape_peak']:,}"] + [""] * 5)
        else:
            saved = r["torch_saved"], r["memtape_saved"]
            out.append([r["name"], *(f"{r[key]:,}" for key in ("torch_peak", "before", "within", "memtape_peak", "rest")),
                        *(f"{n:,}" for n in (*saved, saved[0] - saved[1])), "differs" if r["differs"] else "=="])
            why += [f"  {r['name']}: " + ", ".join(f"{key} {n:+,}" for key, n in found.items()) for found in [r["differs"]] if found]
            why += [f"    kept by {op}: {theirs:,}, predicted {mine:,}" for op, (theirs, mine) in r["saved_differs"].items()]
    text = table(["bytes", "torch's peak", "before", "in kernels", "memtape", "rest", "torch saved", "memtape", "rest", ""], out)
    if not result["measurement"]:
        return "\n".join([text, "  on the CPU PyTorch runs the steps, and tells no bytes", *why])
    return "\n".join([text, f"  before: on the device before the module, cuBLAS's workspaces ({about.get('workspace', 0):,} bytes) in it; "
                      "in kernels: what they take", "  and give back within an operation; rest: PyTorch's bytes without both, minus "
                      "memtape's; ==: so at the start, and at the end", "  and the peak of forward, backward and step; saved: allocated "
                      "after forward, minus before", *why])


MOST_LAUNCHES = 40


def launches(rows, _):
    """What takes longest; the others in one line."""
    if any("skipped" in r or "failed" in r for r in rows):
        return "\n".join(f"  {r['name']}: {r.get('skipped') or 'FAILED: ' + r['failed']}" for r in rows)
    whole, rest = sum(r["ns"] for r in rows), rows[MOST_LAUNCHES:]
    out = [[r["name"], r["grid"], r["launches"], number(r["ns"] / 1e3 / r["launches"]), number(r["ns"] / 1e6), percent(r["ns"], whole),
            percent(r["memory"], 100)] for r in rows[:MOST_LAUNCHES]]
    if rest:
        ns = sum(r["ns"] for r in rest)
        out.append([f"{len(rest)} others", "", sum(r["launches"] for r in rest), "", number(ns / 1e6), percent(ns, whole), ""])
    out.append(["all", "", sum(r["launches"] for r in rows), "", number(whole / 1e6), "", ""])
    return table(["kernel", "grid", "launches", "us each", "ms", "of the step", "of bandwidth"], out, 2)


TITLES = {
    "suite": (suite, "The op suite on the device: gradients, kernels against the CPU, engine, ledger"),
    "sanitizer": (sanitizer, "Kernels under compute-sanitizer"),
    "variants": (variants, "A step with one option more"),
    "modules": (modules, "Modules of PyTorch's world beside memtape.torch, which sees no GPU"),
    "launches": (launches, "One training step of GPT-2 124M, bf16, b=16, s=1024, by kernel: Nsight Compute's times, each kernel alone"),
    "snapshot": (snapshot, "Two steps as PyTorch's allocator recorded them, f32"),
    "saved": (saved, "The design's figures, bytes"),
    "curve": (curve, "A tiny GPT trained on the device and on the CPU"),
    "warm": (warm, "PyTorch's steps compiled ahead"),
    "limits": (limits, "What the device reaches"),
    "memory": (memory, "Kernels that wait for memory"),
    "gemm": (gemm, "Products beside cuBLAS alone"),
    "attention": (attention, "Flash attention beside torch's scaled_dot_product_attention"),
    "gpt": (gpt, "Training GPT-2 124M, bf16, s=1024"),
    "trainers": (trainers, "Training Hugging Face's models: PyTorch's memory beside memtape profile's"),
    "offload": (offload, "What is saved waits in page-locked memory: GPT-2 124M, bf16, b=16, s=1024"),
}


def step(name, found, result):
    show, title = TITLES[name]
    dry = "" if result["measurement"] else " [dry run: no measurement]"
    lines = [f"{title} ({found['seconds']:.0f} s){dry}"]
    if found["rows"]:
        lines.append(show(found["rows"], result))
    if "failed" in found:
        lines.append(f"  FAILED: {found['failed']}")
    if found.get("not_reached"):
        lines.append(f"  not reached: {', '.join(found['not_reached'])}")
    return "\n".join(lines)


# ---- faults ------------------------------------------------------------------------------------


def label_of(row):
    return " ".join(filter(None, (row.get("name"), row.get("side"))))


def faults(result):
    out = []
    for name, found in result["steps"].items():
        if "failed" in found:
            out.append(f"{name}: {found['failed']}")
        if found.get("not_reached"):
            out.append(f"{name}: not reached: {', '.join(found['not_reached'])}")
        for row in found["rows"]:
            for key in ("wrong", "failed"):
                if key in row:
                    out.append(f"{name}: {label_of(row)}: {row[key]}")
    return out


# ---- predictions -------------------------------------------------------------------------------


def figure_of(result, step, label, path):
    """A number of the row with this label; of a kernel also forward.tflops, forward.gbs and the like. None if it
    was not measured."""
    for row in result["steps"].get(step, {}).get("rows", []):
        if label_of(row) != label:
            continue
        *way, last = path.split(".")
        for key in way:
            row = row.get(key, {})
        if last in ("tflops", "gbs") and "memtape" in row:
            return row["flop" if last == "tflops" else "bytes"] / row["memtape"]["ns"] / (1e3 if last == "tflops" else 1)
        return row.get(last)
    return None


def predictions(listed, result):
    """What docs/results predicts, beside what was measured."""
    out = []
    for p in listed:
        got = figure_of(result, p["step"], p["row"], p["figure"])
        if got is not None and "over" in p:
            other = figure_of(result, p["step"], p["over"], p["figure"])
            got = got / other if other else None
        verdict = "not measured" if got is None or not result["measurement"] else (
            f"of an {p['on']}" if p.get("on", "") not in str(result["machine"]["gpu"]) else
            "confirmed" if p["least"] <= got <= p["most"] else "REFUTED")
        out.append([p["what"], f"{p['least']} to {p['most']} {p['unit']}",
                    "" if got is None or not result["measurement"] else number(got), verdict])
    return "Predictions\n" + table(["", "predicted", "measured", ""], out)


def summary(result):
    found = faults(result)
    lines = [f"{result['seconds']:.0f} s in all. " + (
        f"{len(found)} faults:" if found else "No check failed, and no step was cut off.")]
    lines += [f"  {fault}" for fault in found]
    times = [("look", result["look_seconds"])] + [
        (name, step["seconds"]) for name, step in result["steps"].items()]
    lines.append("  seconds: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in times))
    if not result["measurement"]:
        lines.append(DRY)
    return "\n".join(lines)
