"""Matrix products of a prefill on the Metal device: tensor operations against simdgroup matrices."""

from functools import cache

import numpy as np
import pytest

from lily import _core
from lily.errors import DeviceError
from lily.selftest import name_of
from lily.selftest.cases import Case, all_cases
from lily.selftest.precision import halves_of, op_of
from lily.selftest.tables import RMS_NORM_EPS, SMALL, Array, rms_ratio

OPERATIONS = {
    "gdn_in_tile", "gdn_out_tile", "attn_in_tile", "attn_prefill", "attn_out_tile", "router_tile", "shared_up_tile",
    "experts_up_tile", "experts_down_tile", "shared_down_tile",
}  # fmt: skip
BOUND = 5e-4  # ratio of root mean squares: halves, and the order of sums


@pytest.fixture(scope="module", autouse=True)
def metal() -> None:
    try:
        _core.Device("metal", sizes=SMALL, debug="simdgroup")
    except DeviceError as error:
        pytest.skip(str(error))


@cache
def cases() -> dict[str, Case]:
    return {op: case for case in all_cases() if (op := op_of(case.kernel)) in OPERATIONS}


def results(case: Case, form: str) -> dict[str, Array]:
    """The outputs of a case."""
    kernel = name_of(case, "f16")
    halves = halves_of(kernel, "f16")
    bound = [values.astype(np.float16) if i in halves else values.copy() for i, values in enumerate(case.buffers)]
    plain = [values.view(np.uint8) if values.dtype.names else values for values in bound]
    device = _core.Device("metal", sizes=case.sizes, rms_norm_eps=RMS_NORM_EPS, debug=form)
    device.run(kernel, case.args, plain, case.extent)
    wide = [values.astype(np.float32) if i in halves else values for i, values in enumerate(bound)]
    return {name: output.of(wide) for name, output in case.outputs.items()}


@pytest.mark.parametrize("op", sorted(OPERATIONS))
def test_both_forms_give_the_same(op: str) -> None:
    simdgroup, tensor = (results(cases()[op], form) for form in ("simdgroup", "tensor"))
    for name, values in simdgroup.items():
        if values.dtype.kind == "f":
            assert rms_ratio(tensor[name], values) < BOUND, name
        else:
            np.testing.assert_array_equal(tensor[name], values)
