"""A pytest plugin: the memory of a model's training step as a regression test, without a GPU.

    def test_memory(memtape_baseline):
        model = Model()
        memtape_baseline(model, batch, torch.optim.AdamW(model.parameters()))

`pytest --memtape-update` writes the figures into memtape.json beside the test's file; without it a step that takes more fails, and
the message says where. docs/python.md is the page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List

import pytest

from memtape._library import MemtapeError
from memtape.report import Report, figures

NAME = "memtape.json"
SCHEMA = "memtape.baseline/1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("memtape").addoption("--memtape-update", action="store_true",
                                         help=f"write what training steps take into {NAME} beside each test's file, instead of comparing")


def _read(path: Path) -> Dict[str, Dict[str, int]]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise MemtapeError(f"{path}: not JSON: {error}") from error
    steps = values.get("steps") if isinstance(values, dict) and values.get("schema") == SCHEMA else None
    if not isinstance(steps, dict):
        raise MemtapeError(f'{path}: not a baseline of memtape: need "schema": "{SCHEMA}" and "steps"')
    return steps


def _write(path: Path, steps: Dict[str, Dict[str, int]]) -> None:
    text = json.dumps({"schema": SCHEMA, "steps": dict(sorted(steps.items()))}, indent=2) + "\n"
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class Baseline:
    """What the fixture gives: baseline(model, batch, optimizer) profiles a step and compares it with the baseline. A test that does so
    several times names each: baseline(..., name="large batch")."""

    def __init__(self, path: Path, test: str, update: bool) -> None:
        self._path, self._test, self._update = path, test, update
        self._used: List[str] = []

    def __call__(self, *given: Any, name: str = "", tolerance: int = 0, **options: Any) -> Report:
        """The arguments are memtape.torch.profile's, or a report. tolerance: bytes that the peak may take more. Returns the report."""
        if len(given) == 1 and isinstance(given[0], Report):
            report = given[0]
        else:
            import memtape.torch

            report = memtape.torch.profile(*given, **options)
        key = f"{self._test}: {name}" if name else self._test
        if key in self._used:
            raise MemtapeError(f"memtape_baseline: {key!r} has been compared before; give each step of a test its name=")
        self._used.append(key)
        steps = _read(self._path)
        if self._update:
            _write(self._path, {**steps, key: figures(report)})
        elif key not in steps:
            pytest.fail(f"{self._path.name} has no {key!r}; run pytest --memtape-update, and keep the file", pytrace=False)
        else:
            self._compare(key, steps[key], report, tolerance)
        return report

    def _compare(self, key: str, before: Dict[str, int], report: Report, tolerance: int) -> None:
        from memtape import _text

        after = figures(report)
        what = "peak" if "peak" in before else "saved"
        if after.get(what, 0) <= before.get(what, 0) + tolerance:
            return
        rows = [(name, before.get(name, 0), after.get(name, 0)) for name in {**before, **after}]
        more = f"{after[what] - before[what]:,} bytes more than {self._path.name} says"
        pytest.fail(f"{key}: {what} takes {more}\n{_text.difference(rows)}\n\n"
                    f"{report}\n\nIf it may: pytest --memtape-update", pytrace=False)


@pytest.fixture  # type: ignore[untyped-decorator, unused-ignore]
def memtape_baseline(request: pytest.FixtureRequest) -> Baseline:
    """baseline(model, batch, optimizer): fails if the training step takes more memory than memtape.json says."""
    path = Path(str(request.node.path))
    test = f"{path.name}::{request.node.nodeid.partition('::')[2]}"
    return Baseline(path.with_name(NAME), test, request.config.getoption("--memtape-update"))
