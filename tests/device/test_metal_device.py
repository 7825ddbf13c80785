"""The Metal device, over software Metal (tests/softmetal) where there is no Mac: both generations of the API."""

import struct

import numpy as np
import pytest

from lily import _core
from lily.errors import DeviceError
from tests.kernels.harness import NANO
from tests.model.support import load
from tests.oracles.rows import norm

SIZES = NANO | {"hidden_size": 256}
ROWS = 64
ARGS = struct.pack("<I", ROWS)


def metal(debug=""):
    try:
        return _core.Device("metal", sizes=SIZES, debug=debug)
    except DeviceError as error:
        if error.code == "unavailable":
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize(
    ("debug", "described"),
    [
        ("", "Metal 4, "),
        ("serial", "Metal 4, "),
        ("metal3", "Metal 3, simdgroup matrices"),
        ("simdgroup", "Metal 4, simdgroup matrices"),
        ("tensor", "Metal 4, tensor operations"),
    ],
)
def test_runs_a_kernel(debug, described):
    device = metal(debug)
    assert described in device.description
    assert device.notes
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, SIZES["hidden_size"]), dtype=np.float32)
    gain = rng.standard_normal(SIZES["hidden_size"], dtype=np.float32)
    y = np.full(x.shape, np.nan, np.float16)
    device.run("rms_norm_f16", ARGS, [x, gain, y], (ROWS, 1, 1))
    np.testing.assert_allclose(y, norm(x, gain, 1e-6), rtol=1e-3, atol=1e-4)


def compile_norm():
    device = metal("simdgroup")  # the check of forms has kernels of its own
    x, gain, y = (np.ones(shape, dtype) for shape, dtype in (((1, 256), "f4"), (256, "f4"), ((1, 256), "f2")))
    device.run("rms_norm_f16", struct.pack("<I", 1), [x, gain, y], (1, 1, 1))


def test_a_second_start_finds_its_machine_code(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    compile_norm()
    (archive,) = tmp_path.rglob("metal-*.archive")
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    written, content = archive.stat().st_mtime_ns, archive.read_bytes()
    compile_norm()
    assert archive.stat().st_mtime_ns == written  # a pipeline that the archive lacks would be added
    archive.write_bytes(b"damaged")
    compile_norm()
    assert archive.read_bytes() == content


def test_another_context_compiles_nothing(lily_nano, tmp_path, monkeypatch):
    """Both programs of a model; no kernel knows how long a timeline may be."""
    metal()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = []
    for max_context in (256, 1024):
        runtime = load(lily_nano, device="metal", dtype="float16", debug="simdgroup", max_context=max_context)
        timeline, greedy = runtime.timeline(), _core.Sampling()
        runtime.prefill(timeline, np.arange(9, dtype=np.uint32), wants_logits=True, sampling=greedy)
        runtime.decode([timeline], None, sampling=[greedy])
        del runtime, timeline
        (archive,) = tmp_path.rglob("metal-*")
        kept.append((archive, archive.stat().st_mtime_ns, archive.read_bytes()))
    assert kept[0] == kept[1]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    compile_norm()


def test_errors_say_what_is_wrong():
    device = metal()
    with pytest.raises(DeviceError, match="the metal device has no kernel rms_norm_f32"):
        device.run("rms_norm_f32", ARGS, [], (1, 1, 1))
    with pytest.raises(
        DeviceError, match=r'unknown debug switch "fast".*metal3, serial, simdgroup, tensor, timeout=SECONDS'
    ):
        metal("metal3,fast")
    with pytest.raises(DeviceError, match=r'unknown debug switch "timeout=0"'):
        metal("timeout=0")
    with pytest.raises(DeviceError, match="the debug switch tensor needs Metal 4"):
        metal("metal3,tensor")
