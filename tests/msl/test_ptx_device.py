"""The shaders as PTX on a GPU (tools/ptx): what is not the GPU itself, on a double of it."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from lily import _core
from lily.errors import DeviceError
from tests.kernels.harness import EPS, NANO, normal, pack, rms_ratio
from tests.msl.fiber_gpu import FiberGpu, LibraryFolder
from tests.msl.runtime import ROOT
from tests.oracles.rows import norm
from tools.msl.build import ptx
from tools.msl.grid import constants, find_grid, grids
from tools.ptx.__main__ import main, summary
from tools.ptx.cuda import CudaError
from tools.ptx.device import Device, Kernels
from tools.ptx.folder import PtxFolder
from tools.ptx.kernel_tests import FILES

ROWS = 9
RMS_NORM = ROOT / "shaders/rms_norm.metal"


@pytest.fixture
def device():
    return Device(Kernels(FiberGpu(), LibraryFolder(), "simdgroup"), NANO, EPS)


def norm_buffers(rows=ROWS):
    rng = np.random.default_rng(0)
    return [normal(rng, ROWS, 64), normal(rng, 64), np.full((rows, 64), np.nan, np.float16)]


def test_a_kernel_gets_its_threadgroups_buffers_and_arguments(device):
    x, gain, y = norm_buffers()
    device.run("rms_norm_f16", pack(ROWS), [x, gain, y], (ROWS, 1, 1))
    assert rms_ratio(y.astype(np.float32), norm(x, gain)) < 5e-4


def test_a_write_behind_a_buffer_is_seen(device):
    with pytest.raises(CudaError, match="rms_norm_f16 wrote outside of buffer 2 of 1024 bytes"):
        device.run("rms_norm_f16", pack(ROWS), norm_buffers(rows=ROWS - 1), (ROWS, 1, 1))


def test_a_changed_read_only_buffer_is_seen(device):
    buffers = norm_buffers()
    buffers[2].flags.writeable = False
    with pytest.raises(CudaError, match="rms_norm_f16 changed buffer 2, which it only reads"):
        device.run("rms_norm_f16", pack(ROWS), buffers, (ROWS, 1, 1))


def test_the_table_of_grids_is_the_metal_device_s(device):
    try:
        metal = _core.Device("metal", sizes=NANO)
    except DeviceError as error:
        pytest.skip(str(error))
    assert sorted(device.kernel_names()) == sorted(metal.kernel_names())
    assert all(grid.threads % constants()["LILY_SIMD_WIDTH"] == 0 and grid.threads <= 1024 for grid in grids())


def test_an_extent_in_threadgroups():
    assert find_grid("gdn_in_q4g64_f16_tile").threadgroups((8256, 70, 1)) == (129, 2, 1)
    assert find_grid("gdn_in_q4g64_f16").threadgroups((8256, 8, 1)) == (129, 1, 1)  # 0 elements: the whole axis
    assert find_grid("gdn_in_q4g64_f16").threadgroups((8256, 0, 1)) == (129, 0, 1)


def test_a_folder_finds_what_it_was_made_from(tmp_path, monkeypatch):
    folder = PtxFolder(tmp_path / "ptx")
    defines = {"LILY_HIDDEN_SIZE": "64u", "LILY_RMS_NORM_EPS": "1e-6f", "LILY_VOCAB_SIZE": "7u"}
    with pytest.raises(FileNotFoundError, match=r"rms_norm-\w+\.ptx\.gz is missing: run `python -m tools\.ptx build"):
        folder.find(RMS_NORM, defines)
    folder.add(RMS_NORM, defines)
    assert ".entry msl_entry_rms_norm(" in folder.find(RMS_NORM, defines)
    assert folder.find(RMS_NORM, defines | {"LILY_VOCAB_SIZE": "8u"})  # nothing in that shader asks for it
    with pytest.raises(FileNotFoundError):
        folder.find(RMS_NORM, defines | {"LILY_HIDDEN_SIZE": "128u"})
    monkeypatch.setattr("tools.ptx.folder.ptx", lambda source: ptx(source) + "// again")
    folder.add(RMS_NORM, defines)
    assert "again" not in folder.find(RMS_NORM, defines)


def test_the_kernel_tests_run_where_lily_is_not_built():
    """With the double in the place of the GPU; lily's extension must not be loaded."""
    code = """
        import json, sys
        from pathlib import Path
        from tests.msl.fiber_gpu import FiberGpu, LibraryFolder
        from tools.ptx.device import Device, Kernels
        from tools.ptx.kernel_tests import TESTS, put_in_place_of_lily, run_tests

        kernels = Kernels(FiberGpu(), LibraryFolder(), "simdgroup")
        put_in_place_of_lily(lambda sizes, eps: Device(kernels, sizes, eps))
        outcomes = run_tests([TESTS / "test_rms_norm.py"])
        loaded = [name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).endswith(".so")]
        print(json.dumps({**vars(outcomes), "ran": sorted(kernels.ran), "loaded": loaded}))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["failures"] == {} and result["passed"] > 20 and result["skipped"] == 0
    assert result["ran"] == ["rms_norm_f16"]
    assert not [name for name in result["loaded"] if name.startswith("lily")]


def test_the_files_of_tests_are_all_those_with_kernels():
    names = {path.stem for path in FILES}
    assert len(names) >= 10 and "test_every_kernel" not in names


def test_a_summary_names_what_failed_and_what_did_not_run():
    kernels = {
        "gdn_in_q4g64_f16": {"registers": 40, "local_bytes": 0},
        "gdn_in_q8g64_f16": {"registers": 30, "local_bytes": 8},
    }
    sessions = [
        {"passed": 3, "skipped": 1, "failures": {}, "kernels": kernels},
        {"failures": {"test_x.py": "no GPU"}},
    ]
    arm = summary(sessions)
    assert arm["metrics"] == {"passed": 3, "failed": 1, "skipped": 1, "kernels": 2}
    assert arm["failures"] == {"test_x.py": "no GPU"}
    assert "gdn_in_q8g64_f16_tile" in arm["kernels_not_run"] and "gdn_in_q4g64_f16" not in arm["kernels_not_run"]
    assert arm["functions"] == {"gdn_in": {"registers": 40, "local_bytes": 8}}


def test_without_a_gpu_there_is_no_record(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.ptx.cuda._LIBRARIES", ("no-such-driver.so",))
    monkeypatch.setattr(sys, "argv", ["ptx", "run", str(tmp_path), "--record", str(tmp_path)])
    with pytest.raises(SystemExit, match="error: there is no NVIDIA driver here"):
        main()
    assert list(tmp_path.iterdir()) == []
