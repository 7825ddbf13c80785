"""What records say about the machine."""

import os
import sys
from pathlib import Path

import pytest

from bench.machine import usable_cores


@pytest.mark.skipif(sys.platform != "linux", reason="this machine does not list its processors as Linux does")
def test_hyper_threads_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 6, 7})
    for processor in range(6):  # of 6 and 7 nothing is known
        (tmp_path / str(processor)).write_text(f"{processor % 3},{processor % 3 + 3}\n")
    assert usable_cores(f"{tmp_path}/{{}}") == 5
