"""The check of the kernel objects finds what it is for. `make lint` runs it on the real build."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "tools" / "check_isa_symbols.py"
COMPILER = os.environ.get("CXX", "c++")

OWN = """namespace lily::cpu::avx2 {
template <class T> T twice(T x) { return x + x; }
float use(float x) { return twice(x); }
}
"""
OTHER = OWN.replace("avx2", "avx512")
STANDARD = (
    "template <class T> struct Box { T get(T x) { return x; } }; float use(float x) { return Box<float>{}.get(x); }"
)


@pytest.mark.skipif(shutil.which(COMPILER) is None or shutil.which("nm") is None, reason="needs a C++ compiler and nm")
@pytest.mark.parametrize(("source", "culprit"), [(OWN, None), (OTHER, "avx512::twice"), (STANDARD, "Box<float>::get")])
def test_weak_symbols_belong_to_their_instruction_set(tmp_path: Path, source: str, culprit: str | None) -> None:
    folder = tmp_path / "lily_cpu_avx2.dir"
    folder.mkdir()
    command = [COMPILER, "-std=c++20", "-O0", "-x", "c++", "-", "-c", "-o", str(folder / "kernel.o")]
    subprocess.run(command, input=source, text=True, check=True)
    done = subprocess.run([sys.executable, CHECK, tmp_path], capture_output=True, text=True)
    assert done.returncode == (culprit is not None), done.stderr
    assert (culprit or "") in done.stderr


def test_a_build_without_kernel_objects_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, CHECK, tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "make setup" in done.stderr or "binutils" in done.stderr
