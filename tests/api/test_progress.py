"""Bars: for work that lasts, from its start, and without noise."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lily import Engine
from lily.progress import Progress, ProgressReport, Started, prefill_report


def test_a_long_prompt_has_a_bar_before_its_first_chunk_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    report = prefill_report(True)
    report.update(Started(100, 400))
    assert "prefill:  25%" in capsys.readouterr().err
    report.update(Progress(400, 400))
    assert capsys.readouterr().err.endswith("\r")  # nothing of it stays


def test_what_takes_no_time_has_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    report = ProgressReport(True, "loading", "B")
    report.update(Progress(7, 7))
    report = prefill_report(True)
    report.update(Started(9_900, 10_000))  # all the rest comes from the prefix cache
    report.update(Progress(9_999, 10_000))
    report.update(Progress(10_000, 10_000))
    assert capsys.readouterr().err == ""


def test_prompts_of_requests_and_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        Engine("lily-nano", max_context=512, memory_limit="1GiB", progress=True) as engine,
        engine.session() as session,
    ):
        assert "loading lily-nano:   0%" in capsys.readouterr().err
        engine.generate("The archive", max_tokens=1)
        session.prefill([1] * 20)
        assert capsys.readouterr().err == ""
        engine.generate([2] * 200, max_tokens=1)
        assert "prefill:   0%" in capsys.readouterr().err
        session.prefill([1] * 20 + [3] * 200)
        assert "prefill:   9%" in capsys.readouterr().err


def test_a_notebook_without_ipywidgets_is_not_told_to_install_them() -> None:
    kernel = "import sys, types; shell = types.SimpleNamespace(config={'IPKernelApp': {}}); "  # what tqdm looks for
    kernel += "sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: shell); "
    kernel += "sys.modules['ipykernel.zmqshell'] = sys.modules['ipywidgets'] = types.ModuleType('empty'); "
    for rest, warns in (("import lily", False), ("import tqdm.auto", True)):
        done = subprocess.run([sys.executable, "-c", kernel + rest], capture_output=True, text=True, check=True)
        assert ("IProgress not found" in done.stderr) == warns
