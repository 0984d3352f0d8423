"""A report as text, for those that the program did not make."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def scaled(n: int) -> str:
    size, unit = float(n), 0
    while size >= 1024 and unit + 1 < len(UNITS):
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {UNITS[unit]}" if size < 1000 else f"{size:.0f} {UNITS[unit]}"


def parsed(limit: Union[str, int]) -> int:
    """Bytes of "8GiB", "800 MB" or a number."""
    if isinstance(limit, int) and not isinstance(limit, bool):
        return limit
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", limit, re.IGNORECASE) if isinstance(limit, str) else None
    if match is None:
        raise ValueError(f"{limit!r} is not a size; give bytes, or a text such as '800MB' or '7.5GiB'")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))


def columns(rows: Sequence[Sequence[str]], right: Sequence[int]) -> List[str]:
    """Rows of equally many cells, aligned; `right` are the columns of numbers."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  " + "  ".join(cell.rjust(width) if i in right else cell.ljust(width)
                             for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]


def ruled(lines: List[str]) -> List[str]:
    """With a line above the last one."""
    return [*lines[:-1], "  " + "─" * (max(map(len, lines)) - 2), lines[-1]]


LINES = 20  # of what print shows
LEAST_ROWS = 3  # of a table, however many lines there are above it
MOST_NOTES = 2  # of which print shows each


def folded(module: str) -> str:
    """h.0.mlp and h.1.mlp are both h.*.mlp."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", module)


def peak(values: Mapping[str, Any], n_lines: Optional[int] = None) -> List[str]:
    """Where the peak is, and what holds it: categories, then alike layers together, largest first. In so many lines."""
    steady, at = values["steady"], values.get("peak") or {}
    total = steady["peak"]
    where = ", in ".join(filter(None, [at.get("phase"), at.get("module")])) + (f" ({at['op']})" if at.get("op") else "")
    phases = ", ".join(f"{p['name']} {scaled(p['peak'])}" for p in steady["phases"])
    streams = ", ".join(f"{s['name']} {scaled(s['reserved'])}" for s in steady.get("streams") or [])
    categories = ", ".join(f"{name} {scaled(n)}" for name, n in sorted(steady["by_category"].items(), key=lambda item: -item[1]) if n)
    lines = [f"The peak of a training step: {scaled(total)} allocated ({total:,} bytes), {scaled(steady['reserved'])} reserved",
             f"  {f'reached in {where}; ' if where else ''}most in each phase: {phases}",
             *([f"  reserved by stream: {streams}"] if streams else []), "", f"What holds it: {categories}"]
    largest = at.get("largest") or []
    if not largest:
        return lines
    n_rows = None if n_lines is None else n_lines - len(lines) - 3  # without the head, the rule and all else
    return [*lines, *ruled(columns([["bytes", "share", "category", "module", "op"], *_holders(largest, total, n_rows)], (0, 1)))]


def _holders(largest: Sequence[Mapping[str, Any]], total: int, n_rows: Optional[int]) -> List[List[str]]:
    """So many rows, or all, of those who hold memory at the peak: weights by module alone."""
    groups: Dict[Tuple[str, ...], List[int]] = {}
    for row in largest:
        kept = [f"kept by {row['kept']['op']}"] if row.get("kept") and row["kept"]["op"] not in (row["op"], "unknown") else []
        weight = row["category"] in ("parameter", "gradient", "optimizer")
        module = "" if weight and row["category"] == "optimizer" else folded(row["module"] or "")
        if weight:
            module = ".".join(module.split(".")[:-1])
        key = (row["category"], module, "" if weight else ", ".join(filter(None, [row["op"], *kept])))
        n = groups.setdefault(key, [0, 0])
        n[0] += row["allocated"]
        n[1] += row["storages"]
    order = sorted(groups.items(), key=lambda item: -item[1][0])[:None if n_rows is None else max(n_rows, LEAST_ROWS)]
    rows = [[scaled(n), f"{100 * n / total:.1f} %", category, module or "-", f"{op} ({count} storages)".strip() if count > 1 else op]
            for (category, module, op), (n, count) in order]
    rest = total - sum(n for _, (n, _) in order)
    return [*rows, [scaled(rest), f"{100 * rest / total:.1f} %", "all else", "", ""]]


def saved(values: Mapping[str, Any], n_lines: Optional[int] = None) -> List[str]:
    """What is kept for backward, one row each; where that takes more than so many lines (LINES), alike layers together."""
    total, tensors = values["saved"]["bytes"], values["saved"]["tensors"]
    outside = "-" if values["model"]["kind"] == "events" else "loss"
    n_storages = str(values["saved"]["storages"])
    n_rows = max((n_lines or LINES) - 4, LEAST_ROWS)  # without two heads, the rule and the sum
    if len(tensors) > n_rows:
        rows = _folded_rows(tensors, total, outside, n_storages, n_rows if n_lines else len(tensors))
        return [f"{_saved_head(values)}, alike layers together", *ruled(columns(rows, (4, 5, 6)))]
    rows = [["module", "op", "keeps", "its", "shape", "dtype", "bytes", "share"]]
    for t in tensors:
        rows.append([t["module"] or outside, t["op"], t["name"], t["role"], f"[{','.join(map(str, t['shape']))}]", t["dtype"],
                     f"{t['bytes']:,}", f"{100 * t['bytes'] / total:.1f} %"])
    rows.append(["all, each once", "", "", "", "", n_storages, f"{total:,}", "100 %"])
    return [_saved_head(values), *ruled(columns(rows, (6, 7)))]


def _saved_head(values: Mapping[str, Any]) -> str:
    total = values["saved"]["bytes"]
    return f"Saved for backward, right after forward: {total:,} bytes ({scaled(total)})"


def _folded_rows(tensors: Sequence[Mapping[str, Any]], total: int, outside: str, n_storages: str, n_rows: int) -> List[List[str]]:
    groups: Dict[Tuple[str, ...], List[int]] = {}
    for t in tensors:
        n = groups.setdefault((folded(t["module"]) or outside, t["op"], t["name"], f"[{','.join(map(str, t['shape']))}]"), [0, 0])
        n[0] += t["bytes"]
        n[1] += 1
    order = sorted(groups.items(), key=lambda item: -item[1][0])
    most = n_rows if len(order) <= n_rows else n_rows - 1
    rows = [["module", "op", "keeps", "shape", "times", "bytes", "share"]]
    rows += [[*key, str(count), f"{n:,}", f"{100 * n / total:.1f} %"] for key, (n, count) in order[:most]]
    rest = order[most:]
    if rest:
        left, times = sum(n for _, (n, _) in rest), sum(count for _, (_, count) in rest)
        rows.append([f"{len(rest)} more", "", "", "", str(times), f"{left:,}", f"{100 * left / total:.1f} %"])
    return [*rows, ["all, each once", "", "", "", n_storages, f"{total:,}", "100 %"]]


def difference(rows: Sequence[Tuple[str, int, int]]) -> str:
    """(name, before, after) as a table with what was added."""
    cells = [["", "before", "after", "difference", ""]]
    for name, before, after in rows:
        change = after - before
        cells.append([name, f"{before:,}", f"{after:,}", f"{change:+,}" if change else "0",
                      f"({'-' if change < 0 else '+'}{scaled(abs(change))})" if change else ""])
    return "\n".join(columns(cells, (1, 2, 3)))


def _head(values: Mapping[str, Any], title: str, notes: Sequence[str], most_notes: Optional[int] = None) -> List[str]:
    lines = [title]
    if values.get("params"):
        lines.append(f"{values['params']['count']:,} parameters in {values['params']['bytes']:,} bytes")
    model = values.get("model") or {}
    if model.get("kind") == "torch" and model.get("attention"):
        lines.append(f"scaled_dot_product_attention counts as {model['attention']}, by PyTorch's rules for CUDA")
    n = len(notes) if most_notes is None or len(notes) <= most_notes else most_notes - 1
    lines += [f"Note: {text}" for text in notes[:n]]
    return [*lines, *([f"{len(notes) - n} more notes: report.notes"] if n < len(notes) else []), ""]


def short(values: Mapping[str, Any], title: str, note: Optional[str], notes: Sequence[str] = ()) -> str:
    """A report in LINES lines: of a step what holds its peak, of a forward what is kept for backward."""
    lines = _head(values, title, notes, MOST_NOTES)
    kept = values.get("saved")
    if values.get("steady"):
        of_saved = _saved_head(values) + f" in {kept['storages']} storages" if kept and kept["storages"] else note
        end = ["", *([of_saved] if of_saved else []), "All of it: print(report.details())"]
        lines += [*peak(values, LINES - len(lines) - len(end)), *end]
    elif kept:
        lines += saved(values, LINES - len(lines)) if kept["storages"] else [note or "Nothing is kept for backward."]
    return "\n".join(lines)


def details(values: Mapping[str, Any], title: str, note: Optional[str], notes: Sequence[str] = ()) -> str:
    """All of it, in as many lines as that takes."""
    lines, kept = _head(values, title, notes), values.get("saved")
    if values.get("steady"):
        lines += [*peak(values), *([""] if kept else [])]
    if kept:
        lines += saved(values) if kept["storages"] else [note or "Nothing is kept for backward."]
    return "\n".join(lines)
