"""Weights on the Metal device: used where they lie in the file, in windows no longer than a Metal buffer may be."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lily import _core
from lily.config import load_config
from lily.errors import DeviceError
from tests.softmetal import control
from tools.make_checkpoint import make

if not control.is_present():
    pytest.skip("this build has no software Metal", allow_module_level=True)

PAGE_BYTES = 16384


@pytest.fixture(autouse=True)
def clean_double() -> Iterator[None]:
    control.configure()
    control.take_reports()
    yield
    control.configure()
    assert control.take_reports() == []


@pytest.fixture(scope="module", params=[False, True], ids=["odd", "aligned"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("nano"), "qwen3_5_moe", "mlx", "nano", aligned=request.param)


def load(folder: Path, device: str) -> tuple[dict, dict[str, int]]:  # type: ignore[type-arg]
    return _core.load_weights(str(folder), _core.ModelConfig(**load_config(folder).core_arguments()), device)


# 2 GiB holds everything; 5 pages make windows that overlap and tensors that share one.
@pytest.mark.parametrize("longest", [1 << 31, 5 * PAGE_BYTES], ids=["whole file", "windows"])
def test_weights_arrive_as_on_the_cpu(folder: Path, longest: int) -> None:
    control.configure(max_buffer_length=longest)
    expected, _ = load(folder, "cpu")
    loaded, report = load(folder, "metal")
    assert loaded.keys() == expected.keys()
    for name, (form, ranges) in loaded.items():
        assert form == expected[name][0]
        for got, wanted in zip(ranges, expected[name][1], strict=True):
            np.testing.assert_array_equal(got, wanted, name)
    assert report["mapped_bytes"] + report["copied_bytes"] == sum(r.nbytes for _, rs in loaded.values() for r in rs)


def test_what_is_aligned_for_the_widest_load_is_mapped(tmp_path: Path) -> None:
    odd = load(make(tmp_path / "odd", "qwen3_5_moe", "mlx", "nano"), "metal")[1]
    aligned = load(make(tmp_path / "aligned", "qwen3_5_moe", "mlx", "nano", aligned=True), "metal")[1]
    assert odd["mapped_bytes"] == 0
    assert aligned["mapped_bytes"] > 0


def test_a_tensor_that_is_longer_than_a_buffer_is_an_error_with_the_numbers(folder: Path) -> None:
    control.configure(max_buffer_length=PAGE_BYTES // 4)
    with pytest.raises(
        DeviceError, match=rf"\d+ bytes in one piece; this Mac allows {PAGE_BYTES // 4} bytes"
    ) as caught:
        load(folder, "metal")
    assert caught.value.code == "out_of_memory"


def test_loading_leaves_no_object_behind(folder: Path) -> None:
    load(folder, "metal")
    before = control.live_objects()
    for _ in range(3):
        load(folder, "metal")
    assert control.left_over(before) == {}
