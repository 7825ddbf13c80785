"""The checks of metal/conformance on software Metal, on both generations of the API and in both orders.

The same with faults planted in the device: each must be seen.
"""

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.softmetal import control
from tools.make_synthetic import make_synthetic

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "tests" / "model" / "configs" / "qwen3.6-35b-a3b-mlx-4bit.json"
METAL = ROOT / "src" / "lily_core" / "device" / "metal"
INCLUDES = ["-I", str(ROOT), "-I", str(ROOT / "src" / "lily_core"), "-I", str(ROOT / "shaders")]
RUNS = [("metal4",), ("metal3",), ("metal4", "reverse"), ("metal3", "reverse")]

if not control.is_present():
    pytest.skip("this build has no software Metal", allow_module_level=True)


@dataclass(frozen=True)
class Build:
    """What CMake left in the newest build folder, and where this test builds."""

    folder: Path
    objects: list[Path]
    flags: list[str]
    compiler: str
    program: list[Path]  # objects of the checks
    work: Path

    def link(self, output: Path, *others: Path) -> Path:
        """The conformance program, with `others` instead of the objects of the same names."""
        names = {other.name for other in others}
        objects = [path for path in self.objects if path.name not in names]
        archive = self.folder / "liblily_static.a"
        run(self.compiler, *self.program, *others, *objects, archive, "-lpthread", "-ldl", "-o", output)
        return output

    def compile(self, source: Path, name: str) -> Path:
        """An object of the device from `source`, which takes the place of `name`."""
        output = source.parent / f"{name}.o"
        language = self.flags if name.endswith(".mm") else [*self.flags[self.flags.index("-std=c++20") :]]
        arc = ["-fobjc-arc"] if name.endswith(".mm") else []
        run(sys.executable, "-m", "ziglang", "clang", *language, *arc, "-c", source, "-o", output)
        return output


def run(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    lists = sorted(ROOT.glob("build/*/softmetal/objects.txt"), key=lambda path: path.stat().st_mtime)
    folder = lists[-1].parent.parent
    read = {name: (folder / "softmetal" / f"{name}.txt").read_text().split() for name in ("objects", "flags", "linker")}
    work = tmp_path_factory.mktemp("conformance")
    compiler = read["linker"][0]

    sources = Path(__file__).parent / "metal" / "conformance"

    def compiled(source: Path) -> Path:
        output = work / f"{source.stem}.o"
        run(compiler, "-std=c++20", "-O1", *INCLUDES, "-c", source, "-o", output)
        return output

    with ThreadPoolExecutor(2) as pool:
        program = list(pool.map(compiled, sorted(sources.glob("*.cpp"))))
    return Build(folder, list(map(Path, read["objects"])), read["flags"], compiler, program, work)


@pytest.fixture(scope="module")
def conformance(build: Build) -> Path:
    return build.link(build.work / "conformance")


def outcome(program: Path, check: str, *words: str) -> str:
    """What the program printed; a crash is no outcome."""
    done = subprocess.run([program, check, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CHECKS = ["order", "submissions", "replay", "split", "failure", "fatal_failure", "hang", "stop", "compile_error"]
FORMS = ["tensor_form", "slow_tensor_form", "wrong_tensor_form", "refused_tensor_form"]


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
@pytest.mark.parametrize("check", CHECKS + FORMS)
def test_conformance(conformance: Path, check: str, words: tuple[str, ...]) -> None:
    assert outcome(conformance, check, *words) == ""


@pytest.fixture(scope="module")
def headers_of_35b(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("35b")
    make_synthetic(folder, json.loads(CONFIG.read_text(encoding="utf-8")), hollow=True)
    return str(folder)


@pytest.mark.parametrize(("check", "words"), [("budget", ()), ("time", ("metal4",)), ("time", ("metal3",))], ids=str)
def test_no_command_buffer_passes_the_time_budget(
    conformance: Path, headers_of_35b: str, check: str, words: tuple[str, ...]
) -> None:
    """Chunks of the 35B in contexts of up to 262,144 tokens, as long as GPUs with little and with much memory take."""
    assert outcome(conformance, check, *words, headers_of_35b) == ""


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_an_overrun_is_an_error_that_names_kernel_and_buffer(conformance: Path, words: tuple[str, ...]) -> None:
    text = outcome(conformance, "overrun", *words)
    assert re.search(r"Metal failed to run gated_norm_f16: .*outside a buffer.*past the end of 'x' \(256 bytes\)", text)


@dataclass(frozen=True)
class Fault:
    file: str  # in device/metal, or from src/lily_core
    right: str
    wrong: str
    check: str
    seen: str  # in what the check prints
    apis: tuple[str, ...] = ("metal3", "metal4")


FAULTS = {
    "no barriers": Fault(
        "metal_device.mm", "if (follows) queue_->barrier();", "", "order",
        "no barrier between dispatches that share memory",
    ),
    "a write declared as a read": Fault(
        "../contract.cpp", '{"moe_combine", false, "rrrrb"', '{"moe_combine", false, "rrrrr"', "order",
        "no barrier between dispatches that share memory",
    ),
    "a read that is not declared": Fault(
        "../../program/program.cpp", "last_level(history.reads, range)", "0u", "order",
        "no barrier between dispatches that share memory",
    ),
    "a read of other memory than was declared": Fault(
        "metal_executable.mm", "segment.offsets.push_back(buffer.offset() + range.offset);",
        "segment.offsets.push_back(buffer.offset() + range.offset + 256);", "order", "past the end of",
    ),
    "memory that is not resident": Fault(
        "residency.mm", "[set_ addAllocation:buffer];", "", "order", "is not resident", ("metal4",)
    ),
    "residency that is not committed": Fault(
        "residency.mm", "[set_ commit];", "", "order", "is not resident", ("metal4",)
    ),
    "an open encoder": Fault(
        "metal3_queue.mm", "[encoder_ endEncoding];", "", "order", "commit with an open encoder", ("metal3",)
    ),
    "an open encoder of Metal 4": Fault(
        "metal4_queue.mm", "[encoder_ endEncoding];", "", "order", "endCommandBuffer with an open encoder", ("metal4",)
    ),
    "command buffers that may overlap": Fault(
        "metal3_queue.mm", "[command_buffer_ encodeWaitForEvent:event_ value:ticket - 1];", "", "submissions",
        "shares an untracked buffer with an earlier one", ("metal3",),
    ),
    "command buffers of Metal 4 that may overlap": Fault(
        "metal4_queue.mm", "[encoder_ barrierAfterQueueStages:MTLStageDispatch", "if (ticket == 0) [encoder_ "
        "barrierAfterQueueStages:MTLStageDispatch", "submissions", "shares an untracked buffer with an earlier one",
        ("metal4",),
    ),
    "a command allocator used too early": Fault(
        "metal4_queue.mm", "allocators_[ticket % kMaxUnfinished]", "allocators_[0]", "submissions",
        "a command allocator was reset while its commands are in use", ("metal4",),
    ),
    "a failure that nobody looks at": Fault(
        "metal3_queue.mm", "if (done.status == MTLCommandBufferStatusCompleted)", "if (true)", "failure",
        'the error\'s code is ""', ("metal3",),
    ),
    "a failure of Metal 4 that nobody looks at": Fault(
        "metal4_queue.mm", "if (feedback.error)", "if (false)", "failure", 'the error\'s code is ""', ("metal4",)
    ),
    "no autorelease pool": Fault(
        "metal_device.mm", "std::uint32_t index) override {\n    const AutoreleasePool pool;\n",
        "std::uint32_t index) override {\n", "replay", "objects before ten replays", ("metal3",),
    ),
    "no cuts": Fault(
        "time_budget.cpp", "if (cuts.empty() || is_full)", "if (cuts.empty())", "split", "were cut into"
    ),
    "no cuts of a chunk": Fault(
        "time_budget.cpp", "if (cuts.empty() || is_full)", "if (cuts.empty())", "budget", "a command buffer of",
        ("metal4",),
    ),
    "cuts behind the budget": Fault(
        "time_budget.cpp", "(cuts.back().seconds + seconds) * pace", "cuts.back().seconds * pace", "budget",
        "a command buffer of", ("metal4",),
    ),
    "a longer budget": Fault(
        "time_budget.cpp", "kBudgetSeconds = 0.1", "kBudgetSeconds = 0.12", "budget", "a command buffer of", ("metal4",)
    ),
    "a cut behind every dispatch": Fault(
        "time_budget.cpp", "(cuts.back().seconds + seconds) * pace > kBudgetSeconds", "true", "budget",
        "the next dispatch would make", ("metal4",),
    ),
    "a pace that nobody asks for": Fault(
        "metal_device.mm", "cut(segment.costs, progress_->pace())", "cut(segment.costs, 1)", "split", "were cut into"
    ),
    "an estimate without the context": Fault(
        "cost.cpp", "cost.step_row = reinterpret_cast<const StepRow*>(", "(void)(", "time", "1 command buffers for"
    ),
    "an estimate of products for one row": Fault(
        "cost.cpp", "const double rows = arg(dispatch, 0);", "const double rows = 1;", "budget",
        "a command buffer of", ("metal4",),
    ),
    "an estimate of attention that forgets idle cores": Fault(
        "cost.cpp", "is_prefill ? attended_rows(cost.rows, m) : rows", "rows", "budget", "a command buffer of",
        ("metal4",),
    ),
    "attention over too many keys": Fault(
        "../../model/prefill.cpp", "c.traits.attention_flops / key_flops", "2 * c.traits.attention_flops / key_flops",
        "budget", "a command buffer of", ("metal4",),
    ),
    "attention of keys that are not there": Fault(
        "metal_device.mm", "if (segment.costs[i].is_idle()) continue;", "", "time", "dispatches ran"
    ),
    "attention that is left out": Fault(
        "metal_device.mm", "if (segment.costs[i].is_idle()) continue;",
        "if (segment.costs[i].now() > 0.05) continue;", "time", "0 dispatches ran",
    ),
    "a tensor product that nobody compares": Fault(
        "matrix_form.cpp", "if (!(error <= kCases[i].tolerance))", "if (false)", "wrong_tensor_form",
        "tensor operations: tensor operations are right", ("metal4",),
    ),
    "a wait without an end": Fault(
        "progress.cpp", "if (is_hung_) return false;", "", "hang", "HANGS"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_seen(build: Build, headers_of_35b: str, tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    original = (METAL / fault.file).resolve()
    text = original.read_text()
    assert text.count(fault.right) == 1, f"{original.name} no longer has the line that this fault changes"
    source = tmp_path / original.name
    source.write_text(text.replace(fault.right, fault.wrong))
    program = build.link(tmp_path / "conformance", build.compile(source, original.name))
    for api in fault.apis:
        if fault.seen == "HANGS":
            with pytest.raises(subprocess.TimeoutExpired):
                subprocess.run([program, fault.check, api], capture_output=True, timeout=5)
        else:
            assert fault.seen in outcome(program, fault.check, api, headers_of_35b)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize(
    ("file", "right", "wrong", "kernel"),
    [
        ("lily_gemm.h", "int(LILY_GEMM_COLUMNS), 64, false", "int(LILY_GEMM_COLUMNS), 32, false", "shared_down"),
        ("attn_prefill.metal", "int(kKeys), false, false", "int(kKeys) / 2, false, false", "attn_prefill"),
    ],
)
def test_a_wrong_tensor_product_is_not_chosen(
    build: Build, tmp_path: Path, file: str, right: str, wrong: str, kernel: str
) -> None:
    """The shaders of lily with a fault in the tensor operations: the device runs simdgroup matrices and says why."""
    shaders = tmp_path / "shaders"
    shutil.copytree(ROOT / "shaders", shaders)
    text = (shaders / file).read_text()
    assert text.count(right) == 1, f"{file} no longer has what this fault changes"
    (shaders / file).write_text(text.replace(right, wrong))
    embedded = tmp_path / "embedded_shaders.cpp"
    script = ROOT / "cmake" / "embed_shaders.cmake"
    run(Path(sys.executable).parent / "cmake", f"-DOUTPUT={embedded}", "-P", script, *sorted(shaders.iterdir()))
    source, program = Path(__file__).parent / "metal" / "describe.cpp", tmp_path / "describe"
    archive = build.folder / "liblily_static.a"
    others = [*build.objects, archive, "-lpthread", "-ldl", "-o", program]
    run(build.compiler, "-std=c++20", "-O1", *INCLUDES, source, embedded, *others)
    said = subprocess.run([program], capture_output=True, text=True, timeout=600).stdout
    assert f"simdgroup matrices: tensor operations give wrong values: {kernel} is off by " in said
