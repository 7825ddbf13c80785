"""CI relies on --forbid-skips: where it is given, a test that was skipped is no success."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IN_TEST = "import pytest\ndef test_it():\n    pytest.skip('no device')\ndef test_other():\n    pass\n"
IN_MODULE = "import pytest\npytest.importorskip('no_such_module')\ndef test_it():\n    pass\n"


@pytest.mark.parametrize("source", [IN_TEST, IN_MODULE])
@pytest.mark.parametrize(("options", "status"), [([], 0), (["--forbid-skips"], 1)])
def test_skips_can_be_forbidden(tmp_path: Path, source: str, options: list[str], status: int) -> None:
    (tmp_path / "test_source.py").write_text(source)
    (tmp_path / "test_passing.py").write_text("def test_it():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status, done.stdout
    assert "1 skipped" in done.stdout
