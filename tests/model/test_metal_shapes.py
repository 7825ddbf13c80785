"""What the Metal device says before a model is loaded: how programs are cut for it, and how much it may hold."""

import json
from pathlib import Path

import numpy as np
import pytest

from lily import Engine, _core
from lily.config import load_config
from lily.errors import MemoryLimitError
from tests.model.support import LIMIT, load
from tests.softmetal import control
from tools.make_synthetic import make_synthetic

CONFIG = Path(__file__).parent / "configs" / "qwen3.6-35b-a3b-mlx-4bit.json"
HEADS, WIDTH = 16, 256  # of its attention
BUDGET = 0.1  # seconds of a dispatch on the slowest GPU
BYTES, FLOPS = 60e9, 1e12  # that it manages in a second
GIB = 1 << 30

if not control.is_present():
    pytest.skip("this build has no software Metal", allow_module_level=True)


@pytest.fixture(autouse=True)
def defaults():
    yield
    control.configure()


@pytest.fixture(scope="module")
def of_35b(tmp_path_factory):
    """The 35B's programs for a context, on a GPU of so many GiB."""
    folder = tmp_path_factory.mktemp("35b")
    make_synthetic(folder, json.loads(CONFIG.read_text()), hollow=True)
    config = _core.ModelConfig(**load_config(folder).core_arguments())
    return lambda context, gib=64: _core.ProgramOutline(
        folder=str(folder), config=config, max_context=context, device_bytes=gib * GIB
    )


def seconds(name, args, ranges):
    """Of a dispatch of prefill, counted from what it multiplies."""
    rows = args[0]
    if name.startswith("attn_prefill"):
        return 4 * HEADS * WIDTH * rows * args[3] / FLOPS
    lengths = [length for buffer, length, _ in ranges if ".layers." in buffer]
    codes = sum(length for length in lengths if length == max(lengths))  # not the scales and biases
    share = 8 / 256 if name.startswith("experts") else 1
    return max(2 * rows * 2 * codes * share / FLOPS, codes * min(1, share * rows) / BYTES)


@pytest.mark.parametrize(
    ("gib", "rows", "stretch"),
    [(16, 512, 9472), (64, 1024, 4608), (64, 1000, 4864), (64, 128, 38_144), (64, 1, 38_144)],
)
@pytest.mark.parametrize("context", [4096, 32_768, 131_072, 262_144])
def test_no_dispatch_of_prefill_passes_the_budget(of_35b, context, gib, rows, stretch):
    """Nor does a threadgroup, which walks a dispatch's keys for 64 queries with an eighth of the slowest GPU."""
    slowest, stretches = {}, {}
    for name, level, args, ranges in of_35b(context, gib).prefill(rows):
        slowest[name] = max(slowest.get(name, 0), seconds(name, args, ranges))
        if name.startswith("attn_prefill"):
            stretches.setdefault(args[1], []).append((level, args[0], args[2], args[3]))
    assert len(stretches) == 10
    stretch = min(stretch, context)
    for of_layer in stretches.values():  # one behind the other, each key once
        first = of_layer[0][0]
        assert of_layer == [(first + i, rows, key, stretch) for i, key in enumerate(range(0, context, stretch))]
    assert max(slowest.values()) < BUDGET, slowest
    assert context < 131_072 or rows < 512 or slowest["attn_prefill_f16"] > 0.07, "longer stretches would do"
    assert rows < 512 or any(value > 0.01 for name, value in slowest.items() if "q4g64" in name), "products count"
    assert 4 * 64 * WIDTH * stretch / (FLOPS / 8) < BUDGET


@pytest.mark.parametrize(("context", "splits"), [(256, 8), (512, 8), (1024, 16), (4096, 64), (131_072, 64)])
def test_decode_attention_is_split_finely(of_35b, context, splits):
    program = of_35b(131_072).decode(1, context)
    assert {args[2] for name, _, args, _ in program if name == "attn_split_f16"} == {splits}


def metal(folder, **options):
    return load(folder, device="metal", dtype="float16", **({"max_context": 256} | options))


@pytest.mark.parametrize(("gib", "chunk_tokens"), [(12, 512), (31, 512), (32, 1024), (96, 1024)])
def test_a_gpu_with_much_memory_takes_long_chunks(checkpoint, gib, chunk_tokens):
    control.configure(working_set_size=gib * GIB)
    runtime = metal(checkpoint("qwen3_5_moe"))
    assert runtime.max_chunk_tokens == chunk_tokens
    assert load(checkpoint("qwen3_5_moe")).max_chunk_tokens == 1024  # the CPU


def test_a_long_chunk_gives_the_logits_of_two(checkpoint):
    prompt, rows = ((37 * np.arange(520) + 11) % 512).astype(np.uint32), []
    for gib in (64, 16):
        control.configure(working_set_size=gib * GIB)
        runtime = metal(checkpoint("qwen3_5_moe"), max_context=1024)
        timeline = runtime.timeline()
        for chunk in np.split(prompt, range(runtime.max_chunk_tokens, len(prompt), runtime.max_chunk_tokens)):
            runtime.prefill(timeline, chunk, wants_logits=True)
        rows.append(timeline.logits.copy())
    assert np.sqrt(((rows[0] - rows[1]) ** 2).mean() / (rows[1] ** 2).mean()) < 0.002


def test_the_plan_keeps_to_what_the_gpu_may_hold(checkpoint):
    """recommendedMaxWorkingSetSize, where it is less than memory_limit."""
    folder = checkpoint("qwen3_5_moe")
    assert metal(folder).memory_limit == LIMIT
    control.configure(working_set_size=64 << 20)
    runtime = metal(folder)
    assert runtime.memory_limit == 64 << 20
    assert sum(runtime.memory_bytes.values()) <= 64 << 20
    assert load(folder).memory_limit == LIMIT  # the CPU


def test_a_model_that_the_gpu_may_not_hold_names_the_command_that_helps(checkpoint):
    folder = checkpoint("qwen3_5_moe")
    needed = sum(metal(folder, prefix_cache_bytes=0).memory_bytes[part] for part in ("weights", "activations"))
    control.configure(working_set_size=needed)
    with pytest.raises(
        MemoryLimitError, match=r"sudo sysctl iogpu\.wired_limit_mb=\d+ \(until the next restart"
    ) as caught:
        metal(folder)
    error = caught.value
    assert error.limit_bytes == needed < error.required_bytes < LIMIT
    raised = int(error.suggestion.partition("wired_limit_mb=")[2].split()[0])
    assert needed < raised << 20 < 2 * error.required_bytes
    control.configure(working_set_size=raised << 20)
    assert metal(folder, max_context=None).max_context >= 256

    control.configure(working_set_size=64 << 20)
    with pytest.raises(
        MemoryLimitError, match=r"Use max_context=\d+ or less, or let the GPU.*wired_limit_mb="
    ) as caught:
        metal(folder, max_context=200_000)
    with pytest.raises(
        MemoryLimitError, match="or raise memory_limit"
    ) as caught:  # what was given is less than it may hold
        metal(folder, max_context=200_000, memory_limit=32 << 20)
    assert "sysctl" not in str(caught.value)


def test_an_engine_says_what_the_gpu_may_hold():
    control.configure(working_set_size=96 << 20)
    with Engine("lily-nano", device="metal", max_context=256, memory_limit="8GiB", progress=False) as engine:
        assert "of 96.00 MiB memory" in repr(engine)
