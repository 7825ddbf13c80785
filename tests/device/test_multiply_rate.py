"""How fast the processor multiplies: bounds that hold for any, and what is refused."""

import pytest

from lily.errors import DeviceError
from lily.machine import logical_processors, multiply_operations_per_second


@pytest.mark.parametrize("isa", ["", "baseline"])
@pytest.mark.parametrize("dtype", ["auto", "float16", "float32"])
def test_the_rate_is_plausible(dtype: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LILY_CPU_DEBUG", isa)
    # A loop that the compiler had dropped would be thousands of times as fast as any core.
    assert 1e8 < multiply_operations_per_second(dtype) < 1e13 * logical_processors()


def test_a_switch_that_an_engine_would_refuse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LILY_CPU_DEBUG", "avx3")
    with pytest.raises(DeviceError, match=r'"avx3".*known here: checked, shuffled, threads=N, '):
        multiply_operations_per_second()


def test_a_dtype_that_the_device_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match='"bfloat16" is not supported by the cpu device'):
        multiply_operations_per_second("bfloat16")
