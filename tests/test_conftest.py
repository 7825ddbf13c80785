"""CI relies on --forbid-skips: where it is given, a test that was skipped is no success."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SKIPS = "import pytest\n\n\ndef test_it():\n    pytest.skip('no device')\n\n\ndef test_other():\n    pass\n"
SKIPPED_AS_A_WHOLE = "import pytest\n\npytest.importorskip('no_such_module')\n"


@pytest.mark.parametrize(("options", "status"), [([], 0), (["--forbid-skips"], 1)])
def test_skips_can_be_forbidden(tmp_path: Path, options: list[str], status: int) -> None:
    (tmp_path / "test_part.py").write_text(SKIPS)
    (tmp_path / "test_whole.py").write_text(SKIPPED_AS_A_WHOLE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status, done.stdout
    assert "2 skipped" in done.stdout
    for said in ("the run fails: --forbid-skips", "test_part.py::test_it: Skipped: no device"):
        assert (said in done.stdout) == bool(status)


@pytest.mark.parametrize(
    "reason",
    ["this machine has no IPv6", *(f'unknown debug switch "{isa}" of the cpu device' for isa in ("avx512", "amx"))],
)
def test_what_the_machine_lacks_may_be_skipped(tmp_path: Path, reason: str) -> None:
    (tmp_path / "test_part.py").write_text(SKIPS.replace("'no device'", repr(reason)))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run([*command, "--forbid-skips"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "1 skipped" in done.stdout, done.stdout
