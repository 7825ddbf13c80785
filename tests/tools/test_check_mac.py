"""tools/check_mac.sh: the C++ and the Metal device as the Mac's compiler would see them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ziglang")

ROOT = Path(__file__).parents[2]


def check_mac(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "tools" / "check_mac.sh"), *map(str, files)]
    env = os.environ | {"PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)


def test_everything_compiles_for_the_oldest_macos_and_the_metal_device_for_the_newest() -> None:
    done = check_mac()
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["macOS 15.0", "macOS 26.0"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "id queue(id<MTLDevice> d) { return [d newMTL4CommandQueue]; }",
            "only available on macOS 26.0",
        ),
        ("NSUInteger length(id<MTLBuffer> b) { return [b size]; }", "no known instance method"),
        ("id<MTLBuffer> buffer(id<MTLDevice> d) { return d; }", "cannot initialize return object"),
        ("#include <algorithm>\nauto f(uint64_t a, size_t b) { return std::max(a, b); }", "no matching function"),
    ],
    ids=["Metal 4 without @available", "unknown selector", "wrong type", "one type on Linux, two on a Mac"],
)
def test_a_fault_is_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "fault.mm").write_text(f"#import <Metal/Metal.h>\n{line}\n")
    done = check_mac(tmp_path / "fault.mm")
    assert done.returncode != 0
    assert message in done.stderr


def test_a_guard_that_is_missing_in_the_device_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "src/lily_core/device/metal/pipelines.mm").read_text()
    guard = "if (@available(macOS 26.0, *)) options"
    assert guard in text
    (tmp_path / "pipelines.mm").write_text(text.replace(guard, "options"))
    done = check_mac(tmp_path / "pipelines.mm")
    assert done.returncode != 0
    assert "only available on macOS 26.0" in done.stderr
