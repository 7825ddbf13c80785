"""The cases of `lily doctor --selftest`: their references, what they cover, and that a wrong result is found."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from lily import Engine, _core
from lily.errors import DeviceError
from lily.selftest import MAX_VALUES, REFERENCES, Check, name_of, run_case, run_cases, run_model, sampled, worst
from lily.selftest.cases import Case, all_cases
from lily.selftest.numbers import Numbers
from lily.selftest.precision import ACTIVATIONS, HALVES, halves_of, op_of, tolerance_of
from lily.selftest.tables import RMS_NORM_EPS, SMALL
from tools.make_selftest import references


def test_the_generator_is_splitmix64() -> None:
    """Known answers of the reference implementation (https://prng.di.unimi.it/splitmix64.c) for seed 1234567."""
    assert Numbers(1234567).words(3).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    in_parts = Numbers(1234567)
    assert [int(in_parts.words(1)[0]) for _ in range(3)] == Numbers(1234567).words(3).tolist()


def test_numbers_stay_in_their_range() -> None:
    n = Numbers(5)
    values = n.uniform(4000, low=-2, high=3)
    assert values.min() >= -2 and values.max() < 3 and abs(values.mean() - 0.5) < 0.1
    assert set(n.integers(7, 500).tolist()) == set(range(7))
    assert sorted(n.permutation(50).tolist()) == list(range(50))


def test_stored_references_are_those_of_the_oracles() -> None:
    stored, computed = load_file(REFERENCES), references()
    assert stored.keys() == computed.keys()
    for name, values in computed.items():
        assert stored[name].dtype == values.dtype, name
        np.testing.assert_allclose(stored[name], values, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512", "avx512_pairs", "amx", "dotprod", "i8mm"])
def test_every_kernel_passes_on_every_instruction_set(isa: str) -> None:
    try:
        report = run_cases("cpu", debug=isa)
    except DeviceError as error:
        pytest.skip(str(error))
    assert [check for check in report.checks if not check.passed] == []
    assert report.passed and report.without_case == []


def test_metal_passes_a_case_of_every_operation() -> None:
    """One format of each: `lily doctor --selftest --device metal` runs all, which takes minutes without a GPU."""
    try:
        names = set(_core.Device("metal", sizes=SMALL).kernel_names())
    except DeviceError as error:
        pytest.skip(str(error))
    of_metal = {name_of(case, "f16"): case for case in all_cases() if name_of(case, "f16") in names}
    assert of_metal.keys() == names, "every kernel has a case"
    of_operation = {op_of(name): case for name, case in of_metal.items()}
    assert len(of_operation) > 30
    checks: list[Check] = []
    for one in of_operation.values():
        device = _core.Device("metal", sizes=one.sizes, rms_norm_eps=RMS_NORM_EPS)
        checks += run_case(device, one, "f16")
    assert [check for check in checks if not check.passed] == []


@pytest.mark.parametrize("activation", ["i16", "f16"])
def test_halves_hold_the_inputs_of_every_precision(activation: str) -> None:
    """Else a rounded input would count as an error of the kernel."""
    found = 0
    for one in all_cases():
        for index in halves_of(one.kernel, activation):
            values = one.buffers[index]
            found += 1
            np.testing.assert_array_equal(values.astype(np.float16).astype(np.float32), values, err_msg=one.kernel)
    assert found > 3


def test_precisions_of_an_operation() -> None:
    assert op_of("experts_down_q4g64_q8g64w_i16") == "experts_down" and op_of("attn_prep_f16_tile") == "attn_prep_tile"
    operations = {op_of(one.kernel) for one in all_cases()}
    assert all(HALVES[activation].keys() <= operations for activation in ACTIVATIONS)
    assert tolerance_of("gdn_in_q4g64_f32", "f32", 2e-6) == 2e-6
    assert tolerance_of("gdn_in_q4g64_i16", "i16", 2e-6) == 1e-3
    assert tolerance_of("gdn_scan_f16", "f16", 5e-6) == 2e-3 and tolerance_of("gdn_scan_i16", "i16", 5e-6) == 5e-6
    assert tolerance_of("topk_i16", "i16", 0) == 0 and tolerance_of("embed_q4g64_f16", "f16", 2e-7) == 2e-7


def case(kernel: str) -> Case:
    return next(case for case in all_cases() if case.kernel == kernel)


@pytest.mark.parametrize(
    ("kernel", "buffer"), [("gdn_in_q4g64_f32", 2), ("attn_prefill_f32", 1), ("gdn_scan_f32", 7), ("topk_f32", 0)]
)
def test_a_wrong_result_is_found(kernel: str, buffer: int) -> None:
    broken = case(kernel)
    values = broken.buffers[buffer]
    broken.buffers[buffer] = np.ascontiguousarray(values[::-1])
    device = _core.Device("cpu", sizes=broken.sizes, rms_norm_eps=RMS_NORM_EPS)
    assert not all(check.passed for check in run_case(device, broken, "f32"))


def test_what_was_not_written_is_found() -> None:
    assert sampled(np.arange(2 * MAX_VALUES)).tolist()[-1] == 2 * MAX_VALUES - 1
    one = case("rms_norm_f32")
    short = Case(
        kernel=one.kernel, sizes=one.sizes, args=(69).to_bytes(4, "little"), extent=(69, 1, 1),
        buffers=one.buffers, outputs=one.outputs,
    )  # fmt: skip
    (check,) = run_case(_core.Device("cpu", sizes=one.sizes, rms_norm_eps=RMS_NORM_EPS), short, "f32")
    assert check.error == float("inf") and not check.passed


def test_a_device_that_fails_is_reported_as_a_failure() -> None:
    one = case("rms_norm_f32")
    wrong = Case(kernel="no_such_kernel_f32", sizes=one.sizes, args=one.args, extent=one.extent, buffers=[], outputs={})
    (check,) = run_case(_core.Device("cpu", sizes=one.sizes), wrong, "f32")
    assert not check.passed and "no_such_kernel" in (check.problem or "")


def test_a_model_is_compared_with_itself() -> None:
    with Engine("lily-nano", max_context=512, progress=False) as engine:
        checks = run_model(engine)
    assert len(checks) == 2 and all(check.passed for check in checks)
    assert worst(checks) == checks[0]
    assert not Check(name="x", error=float("nan"), tolerance=1.0).passed
