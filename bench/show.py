"""show.py: the measurements as text."""


def table(heads, rows, left=1):
    """A table whose first `left` columns are aligned to the left, the others to the right."""
    widths = [max(len(str(row[i])) for row in [heads, *rows]) for i in range(len(heads))]

    def line(row):
        cells = (f"{cell:<{w}}" if i < left else f"{cell:>{w}}"
                 for i, (cell, w) in enumerate(zip(row, widths)))
        return ("  " + "  ".join(cells)).rstrip()

    return "\n".join([line(heads), "  " + "  ".join("-" * w for w in widths), *map(line, rows)])


def number(x):
    if x is None:
        return ""
    digits = 0 if x >= 100 else 1 if x >= 10 else 2 if x >= 1 else 3
    return f"{x:.{digits}f}"


def ratio(mine, theirs):
    return "" if theirs is None else f"{theirs / mine:.2f}x"


def mib(kib):
    return f"{kib / 1024:.0f}"


def pick(times, key="min"):
    """memtape's figure and the peer's, which is None without a peer"""
    return times[0][key], times[1][key] if len(times) > 1 else None


def show_limits(limits, title):
    def of_each(dtype):
        end = f"_{dtype}_gflops"
        slow = " (far slower than memtape: measured once, in small)"
        return ", ".join(f"{key.removesuffix(end)} {number(rate)}{slow if key in limits['slow'] else ''}"
                         for key, rate in limits.items() if key.endswith(end))

    return "\n".join([
        title,
        f"  {number(limits['gemm_gflops']):>6} GFLOP/s  the best large f32 product of any side, \"of peak\" below: "
        f"{of_each('f32')}, OpenBLAS {number(limits['openblas_gflops'])}",
        f"  {number(limits['bf16_gflops']):>6} GFLOP/s  the best large bf16 product of any side, \"of peak\" of bf16: "
        f"{of_each('bf16')}",
        f"  {number(limits['fma_gflops']):>6} GFLOP/s  multiply-adds on registers, nothing else",
        f"  {number(limits['copy_gbs']):>6} GB/s     copying 64 MiB, bytes read and written: "
        "\"of copy\" below"])


def show_machine(m):
    peer = f"PyTorch {m['peer']}" if m["peer"] else f"none: PyTorch is {m['no_peer']}"
    lines = [f"memtape's benchmarks, commit {m['commit']}", "",
             f"  machine   {m['cpu']}, {m['cores']} cores, {m['isa']}",
             f"  software  {m['compiler']}; OpenBLAS {m['openblas_version']}, kernels for {m['core']}",
             f"  peer      {peer}",
             f"  settings  {m['threads']} threads each, {m['clock']} time; "
             f"load of the machine at the start {m['load']}"]
    if m["smoke"]:
        lines.append("  SMOKE     everything once and in small: the figures say nothing")
    elif float(m["load"]) > 0.5 and m["clock"] == "wall":
        lines.append("  BEWARE    the machine has other work: threads that wait for each other lose "
                     "most")
    return "\n".join([*lines, "", show_limits(m["limits"], "Limits, measured now")])


def show_gpts(gpts, limits, peer):
    rows, memory, ledger = [], [], []
    for g in gpts:
        mine, theirs = g["memtape"], g.get(peer)
        rate = g["flop"] / mine["min"] / 1e6
        rows.append([g["name"], g["text"], number(mine["min"]), number(mine["median"]),
                     number(rate), f"{100 * rate / limits['gemm_gflops']:.0f} %",
                     number(theirs and theirs["min"]), number(theirs and theirs["median"]),
                     ratio(mine["min"], theirs and theirs["min"]),
                     ratio(mine["median"], theirs and theirs["median"])])
        reserved = mine["reserved_peak"] / 1024
        memory.append([g["name"], mib(mine["start_kib"]), mib(mine["allocated_peak"] / 1024), mib(reserved),
                       f"{mine['reserved_peak'] / mine['allocated_peak']:.2f}",
                       mib(mine["peak_kib"] - mine["start_kib"] - reserved), mib(mine["peak_kib"]),
                       mib(theirs["start_kib"]) if theirs else "",
                       mib(theirs["peak_kib"]) if theirs else "",
                       ratio(mine["peak_kib"], theirs and theirs["peak_kib"])])
        book = g["ledger"]
        ledger.append([g["name"], number(book["off_ms"]), number(book["on_ms"]),
                       f"{100 * (book['median_ratio'] - 1):+.2f} %",
                       f"{100 * (book['min_ratio'] - 1):+.2f} %", book["pairs"]])
    return "\n".join([
        "One training step of a GPT in f32, ms: forward, loss, backward, AdamW",
        table(["", "model", "least", "median", "GFLOP/s", "of peak", "torch", "median", "ratio",
               "of medians"], rows, 2), "",
        "Peak resident memory of those runs, MiB: what the libraries took once loaded, the allocator's own peaks "
        "(allocated, and reserved in segments), and the rest",
        table(["", "loaded", "allocated", "reserved", "over it", "rest", "peak", "torch: loaded", "peak", "ratio"], memory), "",
        "The ledger: pairs of steps, one without and one with it, ms",
        table(["", "off", "on", "median of pairs", "of least", "pairs"], ledger)])


def show_segments(gpts):
    rows = []
    for g in gpts:
        rows.append([g["name"], mib(g["rows"][0]["allocated_peak"] / 1024)] + [
            cell for row in g["rows"] for cell in (
                f"{row['reserved_peak'] / row['allocated_peak']:.4f}", number(row["ms"]))])
    return "\n".join([
        "Reserved over allocated at their peaks, and the least step, ms: segments of PyTorch's sizes; expandable ones "
        "with PyTorch's granules; with granules of 4 KiB; and with those reclaimed before a segment grows",
        table(["", "allocated", "own sizes", "ms", "expandable", "ms", "4 KiB", "ms", "reclaimed", "ms"], rows)])


def show_parts(name, parts, step, limits):
    rows, sums = [], [0, 0]
    for part in parts:
        mine, theirs = (x and x * part["times"] / 1e6 for x in pick(part["both"]))
        sums[0] += mine
        sums[1] += theirs or 0
        rate = part["flop"] * part["times"] / mine / 1e6
        rows.append([part["part"], part["times"], number(mine), number(rate) if rate else "",
                     f"{100 * rate / limits['gemm_gflops']:.0f} %" if rate else "",
                     number(theirs), ratio(mine, theirs)])
    has_peer = sums[1] > 0
    optimizer = step["memtape"]["optimizer"] if step else None
    if step:
        theirs = step[next(k for k in step if k.startswith("torch"))] if has_peer else None
        rows.append(["AdamW", 1, number(optimizer), "", "", number(theirs and theirs["optimizer"]),
                     ratio(optimizer, theirs and theirs["optimizer"])])
        sums[0] += optimizer
        sums[1] += theirs["optimizer"] if theirs else 0
    rows.append(["sum", "", number(sums[0]), "", "", number(sums[1]) if has_peer else "",
                 ratio(sums[0], sums[1] if has_peer else None)])
    return "\n".join([f"Where a step of {name} goes: its parts alone, forward and backward, ms",
                      table(["part", "times", "least", "GFLOP/s", "of peak", "torch", "ratio"],
                            rows)])


def show_traced(name, dtype, step, limits):
    """Floors are what FLOPs and bytes, as the ops count them, take at the machine's limits."""
    peak = limits["gemm_gflops" if dtype == "f32" else "bf16_gflops"]
    total, rows = step["total_ns"], []
    for part in sorted(step["parts"], key=lambda p: -(p["forward_ns"] + p["backward_ns"])):
        ns = part["forward_ns"] + part["backward_ns"]
        floor = max(part["flop"] / peak, part["bytes"] / limits["copy_gbs"])
        rows.append([f"{part['op']} {part['module']}", part["kernels"], number(part["forward_ns"] / 1e6),
                     number(part["backward_ns"] / 1e6), number(ns / 1e6), f"{100 * ns / total:.1f} %",
                     number(part["flop"] / ns) if part["flop"] else "", number(floor / 1e6),
                     f"{ns / floor:.1f}x" if floor else ""])
    sums = [sum(part[key] for part in step["parts"]) / 1e6 for key in ("forward_ns", "backward_ns")]
    rows.append(["outside kernels", "", "", "", number(step["outside_ns"] / 1e6),
                 f"{100 * step['outside_ns'] / total:.1f} %", "", "", ""])
    rows.append(["the step", sum(part["kernels"] for part in step["parts"]), *map(number, sums),
                 number(total / 1e6), "", "", "", ""])
    return "\n".join([
        f"Where a step of {name} in {dtype} goes, ms: every kernel of the fastest of {step['pairs']} steps; the parts "
        "sum to it",
        table(["", "kernels", "forward", "backward", "both", "of the step", "GFLOP/s", "floor", "over it"], rows),
        f"  The clocks around the kernels cost {number(max(0, step['clocks_ns']) / 1e6)} ms of it, by the median of "
        "pairs with a step without them."])


def show_tiny(ops):
    rows = []
    for op in ops:
        forward, torch_forward = pick(op["forward"])
        both, torch_both = pick(op["both"])
        rows.append([op["op"], op["inputs"], number(forward), number(torch_forward),
                     ratio(forward, torch_forward), number(both), number(torch_both),
                     ratio(both, torch_both)])
    return "\n".join(["Every op on tiny tensors, ns: the cost of an op as such",
                      table(["op", "inputs", "forward", "torch", "ratio", "with backward", "torch",
                             "ratio"], rows, 2)])


def show_memory(ops, n_rows):
    rows = []
    for op in ops:
        for word, label in (("forward", "forward"), ("both", "with backward")):
            if not op["bytes"][word]:
                continue
            mine, theirs = pick(op[word])
            rate = op["bytes"][word] / mine
            rows.append([op["op"], label, number(mine / 1e6), number(rate),
                         f"{100 * rate / op['copy_gbs']:.0f} %",
                         number(theirs and theirs / 1e6), ratio(mine, theirs)])
    copies = [op["copy_gbs"] for op in ops]
    title = f"Ops that wait for memory, on [{n_rows},1024] f32, ms; GB/s counts each tensor once; " \
            f"copies before and after each: {number(min(copies))} to {number(max(copies))} GB/s"
    return "\n".join([title,
                      table(["op", "", "least", "GB/s", "of copy", "torch", "ratio"], rows, 2)])


def show_meta(rows):
    return "\n".join([
        "A whole run of `memtape profile --device meta`: forward, ledger, backward and AdamW of GPT-3",
        table(["", "least ms", "median", "on the processor", "MiB resident", "pages"],
              [[r["name"], number(r["min_ms"]), number(r["median_ms"]), number(r["min_cpu_ms"]),
                mib(r["peak_kib"]), r["pages"]] for r in rows])])
