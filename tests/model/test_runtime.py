"""The two programs on small checkpoints of both families against the float64 reference: model.md sections 6 and 7."""

import re

import numpy as np
import pytest

from lily import _core
from lily.errors import CancelledError, DeviceError, MemoryLimitError
from tests.model.support import FAMILIES, check_gate, decode_rows, ids, load, prefill
from tests.oracles.forward import forward

PROMPT = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", ["nano", "tiny"])
def test_decode_equals_the_reference(checkpoint, family, size):
    folder = checkpoint(family, size)
    runtime = load(folder)
    rows = decode_rows(runtime, runtime.timeline(), PROMPT)
    check_gate(rows, forward(folder, PROMPT))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk_size", [1, 7, 64, 512])
def test_chunk_size_does_not_matter(checkpoint, family, chunk_size):
    folder = checkpoint(family)
    token_ids = (37 * np.arange(150) + 11) % 512
    runtime = load(folder)
    reference = forward(folder, token_ids.tolist())
    timeline = runtime.timeline()
    check_gate(prefill(runtime, timeline, token_ids[:149], chunk_size), reference[148])
    check_gate(decode_rows(runtime, timeline, token_ids[149:]), reference[149:])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("debug", ["shuffled", "checked", "checked,shuffled", "baseline"])
def test_debug_modes_compute_the_same(checkpoint, family, debug):
    folder = checkpoint(family)
    token_ids = (37 * np.arange(70) + 11) % 512
    reference = forward(folder, token_ids.tolist())
    runtime = load(folder, debug=debug)
    timeline = runtime.timeline()
    check_gate(prefill(runtime, timeline, token_ids[:67], 65), reference[66])
    check_gate(decode_rows(runtime, timeline, token_ids[67:]), reference[67:])


def test_long_context_crosses_pages_and_buckets(checkpoint):
    folder = checkpoint("qwen3_5_moe")
    token_ids = (37 * np.arange(1100) + 11) % 512
    reference = forward(folder, token_ids.tolist(), chunk_size=64)
    runtime = load(folder)
    timeline = runtime.timeline()
    check_gate(prefill(runtime, timeline, token_ids[:1020]), reference[1019])
    check_gate(decode_rows(runtime, timeline, token_ids[1020:1030]), reference[1020:1030])
    check_gate(prefill(runtime, timeline, token_ids[1030:]), reference[-1])


def test_chunks_of_whole_blocks_give_the_same_bits(checkpoint):
    """So that it does not matter whether other requests, which shorten chunks, were there."""
    runtime = load(checkpoint("qwen3_5_moe"), dtype="float16")
    token_ids = (37 * np.arange(1100) + 11) % 512
    expected, *others = (prefill(runtime, runtime.timeline(), token_ids, size) for size in (1024, 512, 64))
    for logits in others:
        np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize("rows", [2, 3, 8])
def test_a_step_of_several_timelines_equals_each_alone(checkpoint, rows):
    folder = checkpoint("qwen3_next")
    runtime = load(folder)
    prompts = [(31 * np.arange(20 + 9 * r) + r) % 512 for r in range(rows)]
    timelines = [runtime.timeline() for _ in prompts]
    for timeline, prompt in zip(timelines, prompts, strict=True):
        prefill(runtime, timeline, prompt)
    for step in range(3):
        runtime.decode(timelines, [5 + step] * rows)
    for timeline, prompt in zip(timelines, prompts, strict=True):
        check_gate(timeline.logits, forward(folder, [*prompt.tolist(), 5, 6, 7])[-1])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_row_of_a_step_has_the_bits_that_it_has_alone(checkpoint, dtype):
    """In contexts of every cut of the keys, beside shorter and longer ones."""
    runtime = load(checkpoint("qwen3_5_moe"), dtype=dtype, max_context=4096, debug="shuffled")
    token_ids = (37 * np.arange(2100) + 11) % 512

    def step(*contexts):
        timelines = [runtime.timeline() for _ in contexts]
        for timeline, context in zip(timelines, contexts, strict=True):
            prefill(runtime, timeline, token_ids[: context - 1])
        runtime.decode(timelines, [int(token_ids[context - 1]) for context in contexts])
        return [timeline.logits.copy() for timeline in timelines]

    contexts = [2, 256, 257, 513, 1025, 2049]
    for context, logits in zip(contexts, step(*contexts), strict=True):
        np.testing.assert_array_equal(logits, *step(context))


def test_sampled_tokens_continue_on_the_device(checkpoint):
    folder = checkpoint("qwen3_5_moe")
    runtime = load(folder)
    greedy = _core.Sampling(logprobs=3)
    timeline = runtime.timeline()
    drawn = [runtime.prefill(timeline, ids(*PROMPT), wants_logits=True, sampling=greedy)]
    for _ in range(8):
        drawn += runtime.decode([timeline], None, sampling=[greedy])
    expected = list(PROMPT)
    for result in drawn:
        row = forward(folder, expected)[-1]
        assert result.token_id == row.argmax()
        logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert result.logprob == pytest.approx(logprobs[result.token_id], abs=1e-4)
        assert [token_id for token_id, _ in result.top_logprobs] == np.argsort(-row)[:3].tolist()
        expected.append(result.token_id)


def test_a_draw_depends_on_seed_and_position_only(checkpoint):
    runtime = load(checkpoint("qwen3_5_moe"))
    token_ids = ((37 * np.arange(40) + 11) % 512).astype(np.uint32)

    def draw(seed, chunk_size):
        sampling = _core.Sampling(temperature=5.0, seed=seed)
        timeline = runtime.timeline()
        for begin in range(0, 40 - chunk_size, chunk_size):
            runtime.prefill(timeline, token_ids[begin : begin + chunk_size], wants_logits=False)
        last = token_ids[timeline.num_tokens :]
        if len(last) == 1:
            return runtime.decode([timeline], last.tolist(), sampling=[sampling])[0].token_id
        return runtime.prefill(timeline, last, wants_logits=True, sampling=sampling).token_id

    drawn = [draw(seed, 40) for seed in range(30)]
    assert len(set(drawn)) > 15
    for chunk_size in (1, 7, 20):
        assert [draw(seed, chunk_size) for seed in range(30)] == drawn


def test_failed_calls_leave_the_timeline_as_it_was(checkpoint):
    folder = checkpoint("qwen3_5_moe")
    runtime = load(folder, max_context=300)
    reference = forward(folder, [*PROMPT, 7])
    timeline = runtime.timeline()
    prefill(runtime, timeline, PROMPT)
    with pytest.raises(ValueError, match="token id 512 is outside of the vocabulary of 512"):
        runtime.decode([timeline], [512])
    with pytest.raises(ValueError, match="12 \\+ 289 tokens exceed the context of 300"):
        runtime.prefill(timeline, np.zeros(289, np.uint32), wants_logits=True)
    with pytest.raises(ValueError, match="1 to 1024 tokens, not 0"):
        runtime.prefill(timeline, np.zeros(0, np.uint32), wants_logits=True)
    with pytest.raises(ValueError, match="last step drew none"):
        runtime.decode([timeline], None)
    with pytest.raises(ValueError, match="each timeline once"):
        runtime.decode([timeline, timeline], [1, 2])
    with pytest.raises(ValueError, match="no token may be drawn"):
        runtime.decode([timeline], [7], sampling=[_core.Sampling(bias=[(i, -np.inf) for i in range(512)])])
    flag = _core.CancelFlag()
    flag.set()
    with pytest.raises(CancelledError):
        runtime.prefill(timeline, ids(1, 2, 3), wants_logits=True, cancel=flag)
    assert timeline.num_tokens == 12
    runtime.decode([timeline], [7])
    check_gate(timeline.logits, reference[-1])


def test_logits_are_never_those_of_an_earlier_step(checkpoint):
    runtime = load(checkpoint("qwen3_5_moe"))
    timeline = runtime.timeline()
    runtime.prefill(timeline, ids(1, 2), wants_logits=True)
    runtime.prefill(timeline, ids(3, 4), wants_logits=False)
    with pytest.raises(RuntimeError, match="there are no logits"):
        _ = timeline.logits
    runtime.decode([timeline], [5])
    assert len(timeline.logits) == 512


def test_program_statistics_are_checked(checkpoint):
    runtime = load(checkpoint("qwen3_5_moe"))
    for context in (0, 2049, 2**32 - 1):
        with pytest.raises(ValueError, match="outside of 1 to 2048"):
            runtime.decode_stats(context)
    with pytest.raises(ValueError, match="1 to 1024 tokens, not 1025"):
        runtime.prefill_stats(1025)


def test_reset_starts_from_nothing(checkpoint):
    folder = checkpoint("qwen3_next")
    runtime = load(folder)
    timeline = runtime.timeline()
    prefill(runtime, timeline, (3 * np.arange(200)) % 512)
    timeline.reset()
    check_gate(prefill(runtime, timeline, PROMPT), forward(folder, PROMPT)[-1])


def test_timelines_and_pages_are_limited_and_given_back(checkpoint):
    runtime = load(checkpoint("qwen3_5_moe"))
    timelines = [runtime.timeline() for _ in range(runtime.max_timelines)]
    with pytest.raises(MemoryLimitError, match="Close one of the open sessions"):
        runtime.timeline()
    timelines.pop().close()
    runtime.timeline()


def test_memory_limit_is_checked_before_loading(checkpoint):
    folder = checkpoint("qwen3_5_moe", "tiny")
    with pytest.raises(MemoryLimitError, match="Raise memory_limit to at least") as caught:
        load(folder, memory_limit=1000)
    least = caught.value.required_bytes
    with pytest.raises(MemoryLimitError, match="Use max_context=") as caught:
        load(folder, memory_limit=least + (65 << 20), max_context=200_000)
    fitting = int(caught.value.suggestion.split("max_context=")[1].split()[0])
    runtime = load(folder, memory_limit=least + (65 << 20), max_context=fitting)
    assert sum(runtime.memory_bytes.values()) <= least + (65 << 20)


def test_the_memory_that_an_error_asks_for_is_enough(checkpoint):
    folder = checkpoint("qwen3_5_moe")
    with pytest.raises(MemoryLimitError) as caught:
        load(folder, memory_limit=1000, max_context=2048)
    numbers = re.search(r"at least (\d+) bytes, or to (\d+) with max_context=(\d+)", str(caught.value))
    enough, less, shorter = map(int, numbers.groups())
    assert caught.value.required_bytes == enough > less
    load(folder, memory_limit=enough, max_context=2048)
    load(folder, memory_limit=less, max_context=shorter)
    with pytest.raises(MemoryLimitError, match=rf"at least {less} bytes\.$"):
        load(folder, memory_limit=1000, max_context=shorter)


def test_program_sizes_follow_the_design(checkpoint):
    # docs/design/kernels.md: 6 levels and 7 dispatches a delta-net layer, 8 and 9 an
    # attention layer, 4 and 4 at the ends.
    runtime = load(checkpoint("qwen3_5_moe", "tiny"))  # 6 and 2 layers
    assert runtime.decode_stats(256) == {"levels": 6 * 6 + 2 * 8 + 4, "dispatches": 6 * 7 + 2 * 9 + 4}


def test_views_of_logits_survive_the_runtime(checkpoint):
    runtime = load(checkpoint("qwen3_5_moe"))
    timeline = runtime.timeline()
    with pytest.raises(RuntimeError, match="there are no logits"):
        _ = timeline.logits
    runtime.decode([timeline], [1])
    logits = timeline.logits
    expected = logits.copy()
    assert not logits.flags.writeable
    runtime.close()
    np.testing.assert_array_equal(logits, expected)
    with pytest.raises(RuntimeError, match="closed"):
        runtime.decode([timeline], [1])
    with pytest.raises(RuntimeError, match="closed"):
        _ = timeline.num_tokens


def masked_tokens(runtime, masks, how):
    """Tokens drawn greedily, each under its mask [V / 32], given before the step or by a function within it."""
    timeline, greedy = runtime.timeline(), _core.Sampling()
    timeline.set_token_mask(masks[0])
    drawn = [runtime.prefill(timeline, ids(*PROMPT), wants_logits=True, sampling=greedy).token_id]
    for mask in masks[1:]:
        if how == "before":
            timeline.set_token_mask(mask)
        given = [lambda mask=mask: mask] if how == "within" else None
        drawn.append(runtime.decode([timeline], None, sampling=[greedy], masks=given)[0].token_id)
    return drawn


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_masks_given_while_logits_are_computed_draw_the_same_tokens(checkpoint, device):
    try:
        runtime = load(checkpoint("qwen3_5_moe"), device=device, dtype="auto", max_context=256)
    except DeviceError as error:
        pytest.skip(str(error))
    masks = np.random.default_rng(1).integers(0, 2**32, (6, 16), np.uint32)
    masks[3] = 0
    masks[3, 5] = 1 << 9
    drawn = masked_tokens(runtime, masks, "within")
    assert drawn == masked_tokens(runtime, masks, "before")
    assert drawn[3] == 5 * 32 + 9
    assert all(mask[token_id // 32] >> (token_id % 32) & 1 for mask, token_id in zip(masks, drawn, strict=True))
    # Without a new one the last mask holds on.
    timelines, greedy = [runtime.timeline(), runtime.timeline()], _core.Sampling()
    for masked in ([masks[3], None], [None, masks[3]]):
        given = [mask if mask is None else (lambda mask=mask: mask) for mask in masked]
        results = runtime.decode(timelines, [1, 2], sampling=[greedy] * 2, masks=given)
        assert [result.token_id == drawn[3] for result in results] == [True, masked[1] is not None]
    runtime.close()


def test_an_error_in_a_mask_function_ends_the_step_only(checkpoint):
    runtime = load(checkpoint("qwen3_5_moe"))
    timeline, greedy = runtime.timeline(), _core.Sampling()
    prefill(runtime, timeline, PROMPT)

    def fail():
        raise ZeroDivisionError("in the mask")

    with pytest.raises(ZeroDivisionError, match="in the mask"):
        runtime.decode([timeline], [7], sampling=[greedy], masks=[fail])
    with pytest.raises(ValueError, match="a token mask has 16 words of 32 tokens, not 3"):
        runtime.decode([timeline], [7], sampling=[greedy], masks=[lambda: np.zeros(3, np.uint32)])
    with pytest.raises(ValueError, match="differ in number"):
        runtime.decode([timeline], [7], sampling=[greedy], masks=[None, None])
    assert timeline.num_tokens == len(PROMPT)
    timeline.set_token_mask(None)
    runtime.decode([timeline], [7], sampling=[greedy])
    check_gate(timeline.logits, forward(checkpoint("qwen3_5_moe"), [*PROMPT, 7])[-1])
