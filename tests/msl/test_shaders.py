"""lily's shaders in every form: no finding of the linter, PTX, no more threadgroup memory than there is."""

from pathlib import Path

import pytest

from tools.msl.build import Source, expand, ptx, threadgroup_bytes
from tools.msl.lint import lint
from tools.msl.preamble import model_defines
from tools.msl.translate import translate

FILES = sorted((Path(__file__).parents[2] / "shaders").glob("*.metal"))
LIMIT = 32768
# With simdgroup matrices (Metal 3) and with tensor operations (Metal 4), for narrow and for wide weights.
FORMS = [("q4g64", "0"), ("q8g64w", "0"), ("q4g64", "1")]

assert FILES


def source(path: Path, weight: str, gemm: str) -> Source:
    return Source.read(path, model_defines(formats=(weight, weight)) | {"LILY_GEMM_FORM": gemm})


@pytest.mark.parametrize(("weight", "gemm"), FORMS)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_lint(path, weight, gemm):
    assert [str(finding) for finding in lint(source(path, weight, gemm))] == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_kernels_are_named_after_their_file(path):
    names = {kernel.name for kernel in translate(expand(source(path, "q4g64", "0")), path.name).kernels}
    assert names and names <= {path.stem, f"{path.stem}_tile"}


@pytest.mark.parametrize("gemm", ["0", "1"])
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_ptx_and_threadgroup_memory(path, gemm):
    needs = threadgroup_bytes(ptx(source(path, "q4g64", gemm)))
    assert needs and all(size <= LIMIT for size in needs.values()), needs
