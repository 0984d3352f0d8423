"""A report as text, for those that the program did not make."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def scaled(n: int) -> str:
    size, unit = float(n), 0
    while size >= 1024 and unit + 1 < len(UNITS):
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {UNITS[unit]}" if size < 1000 else f"{size:.0f} {UNITS[unit]}"


def columns(rows: Sequence[Sequence[str]], right: Sequence[int]) -> List[str]:
    """Rows of equally many cells, aligned; `right` are the columns of numbers."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  " + "  ".join(cell.rjust(width) if i in right else cell.ljust(width)
                             for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]


def ruled(lines: List[str]) -> List[str]:
    """With a line above the last one."""
    return [*lines[:-1], "  " + "─" * (max(map(len, lines)) - 2), lines[-1]]


def peak(values: Mapping[str, Any]) -> List[str]:
    steady = values["steady"]
    at = values.get("peak") or {}
    where = ", in ".join(filter(None, [at.get("phase"), at.get("module")])) + (f" ({at['op']})" if at.get("op") else "")
    rows = [[name, scaled(n), f"{n:,}", f"{100 * n / steady['peak']:.1f} %"] for name, n in steady["by_category"].items() if n]
    rows += [["allocated", scaled(steady["peak"]), f"{steady['peak']:,}", ""]]
    lines = [f"The peak of a training step: {scaled(steady['peak'])} allocated, {scaled(steady['reserved'])} reserved"]
    lines += [f"  reached in {where}"] if where else []
    return [*lines, *ruled(columns(rows, (1, 2, 3))), ""]


def saved(values: Mapping[str, Any]) -> List[str]:
    total = values["saved"]["bytes"]
    outside = "-" if values["model"]["kind"] == "events" else "loss"
    rows = [["module", "op", "keeps", "its", "shape", "dtype", "bytes", "share"]]
    for t in values["saved"]["tensors"]:
        rows.append([t["module"] or outside, t["op"], t["name"], t["role"], f"[{','.join(map(str, t['shape']))}]", t["dtype"],
                     f"{t['bytes']:,}", f"{100 * t['bytes'] / total:.1f} %"])
    rows.append(["all, each once", "", "", "", "", str(values["saved"]["storages"]), f"{total:,}", "100 %"])
    return [f"Saved for backward, right after forward: {total:,} bytes ({scaled(total)})", *ruled(columns(rows, (6, 7)))]


def table(values: Dict[str, Any], title: str, note: Optional[str]) -> str:
    lines = [title]
    if values.get("params"):
        lines.append(f"{values['params']['count']:,} parameters in {values['params']['bytes']:,} bytes")
    model = values.get("model") or {}
    if model.get("kind") == "torch" and model.get("attention"):
        lines.append(f"scaled_dot_product_attention counts as {model['attention']}, by PyTorch's rules for CUDA")
    lines.append("")
    if values.get("steady"):
        lines += peak(values)
    if values.get("saved") and values["saved"]["storages"]:
        lines += saved(values)
    elif values.get("saved"):
        lines.append(note or "Nothing is kept for backward.")
    return "\n".join(lines)
