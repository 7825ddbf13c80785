"""Runs tests/kernels with another device in the place of the Metal device of lily's extension."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests/kernels"
FILES = sorted(path for path in TESTS.glob("test_*.py") if path.name != "test_every_kernel.py")

MakeDevice = Callable[[Mapping[str, int], float], Any]  # of a model's sizes and its epsilon


def put_in_place_of_lily(make_device: MakeDevice) -> None:
    """Makes the modules that the tests share importable where lily is not built. "metal" is the only device there."""
    for name in ("lily", "lily.selftest"):
        package = ModuleType(name)  # without running what its __init__ imports
        package.__path__ = [str(ROOT / "python" / name.replace(".", "/"))]
        sys.modules[name] = package
    from lily.errors import DeviceError

    def device(
        name: str, *, sizes: Mapping[str, int], rms_norm_eps: float = 1e-6, threads: int = 0, debug: str = ""
    ) -> Any:
        if name != "metal":
            raise DeviceError(f'"{name}" is not available: lily is not built', device=name, kernel="", code="missing")
        return make_device(sizes, rms_norm_eps)

    core: Any = ModuleType("lily._core")
    core.Device = device
    sys.modules["lily._core"] = sys.modules["lily"]._core = core  # type: ignore[attr-defined]


@dataclass(eq=False)
class Outcomes:
    """What became of the tests: a plug-in of pytest."""

    passed: int = 0
    skipped: int = 0
    failures: dict[str, str] = field(default_factory=dict)  # the end of the report, by the test's name

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures[report.nodeid] = report.longreprtext[-1000:]
        elif report.skipped:
            self.skipped += 1
        elif report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failures[report.nodeid] = report.longreprtext[-1000:]


def run_tests(files: list[Path], seed: int = 0) -> Outcomes:
    """The tests of these files for the Metal device, once: the form of products is the session's. `seed` is that of
    property tests."""
    outcomes = Outcomes()
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    options += [f"--hypothesis-seed={seed}"]
    status = pytest.main([*options, "-k", "metal and not tensor", *map(str, files)], plugins=[outcomes])
    if status != pytest.ExitCode.OK and not outcomes.failures:
        outcomes.failures["pytest"] = f"exit status {int(status)}"  # no tests, an error of its own
    return outcomes
