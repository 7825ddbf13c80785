"""How the CPU device cuts a dispatch."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX", "c++")
SOURCES = (ROOT / "tests/native/tile_cut.cpp", ROOT / "src/lily_core/device/cpu/tile_cut.cpp")

# threads, least_x, tile, extent: tiles and their x
CUTS = {
    "whole axes": ((2, 0, (0, 4, 1), (100, 10, 3)), (9, 100)),
    "an empty extent": ((2, 8, (64, 0, 1), (0, 1, 1)), (0, 8)),
    "enough for all threads": ((32, 8, (16, 0, 0), (512, 8, 1)), (32, 16)),
    "a thread more": ((33, 8, (16, 0, 0), (512, 8, 1)), (64, 8)),
    "many threads": ((256, 8, (16, 0, 0), (512, 8, 1)), (64, 8)),
    "halved twice": ((100, 8, (64, 0, 1), (2048, 8, 1)), (128, 16)),
    "tiles of other axes count": ((100, 8, (64, 0, 1), (2048, 8, 3)), (192, 32)),
    "not narrower than its least": ((100, 8, (15, 0, 1), (60, 1, 1)), (4, 15)),
    "a kernel that does not narrow": ((100, 0, (16, 0, 0), (512, 8, 1)), (32, 16)),
}


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="needs a C++ compiler")
def test_cuts(tmp_path: Path) -> None:
    folders = [f"-I{ROOT / folder}" for folder in ("src/lily_core", "shaders")]
    program = tmp_path / "tile_cut"
    subprocess.run([COMPILER, "-std=c++20", "-DLILY_ISA=baseline", *folders, *SOURCES, "-o", program], check=True)
    lines = "".join(f"{threads} {least} {' '.join(map(str, [*tile, *extent]))}\n"
                    for (threads, least, tile, extent), _ in CUTS.values())  # fmt: skip
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    got = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert dict(zip(CUTS, got, strict=True)) == {name: expected for name, (_, expected) in CUTS.items()}
