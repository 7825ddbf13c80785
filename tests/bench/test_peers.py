"""The bench beside other engines: exact conversion, what arms are given, and the numbers of the record."""

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from bench.peers import accuracy, measure, run
from bench.peers.to_gguf import Converter, metadata, q4_0, to_gguf
from tests.model.test_synthetic import SMALL
from tests.oracles.forward import Checkpoint, forward
from tools.make_synthetic import make_synthetic

CONFIG = Path(__file__).parents[1] / "model" / "configs" / "qwen3.6-35b-a3b-mlx-4bit.json"
ROOT = Path(__file__).parents[2]


def small(folder: Path, *, symmetric: bool = True) -> Path:
    config = json.loads(CONFIG.read_text())
    config["text_config"].update(SMALL)
    return make_synthetic(folder, config, layers=4, symmetric=symmetric)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("peers") / "synthetic")


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """Q4_0 as its format is defined: a float16 scale, then 16 bytes, the low halves before the high ones."""
    blocks = np.ascontiguousarray(blocks).reshape(*blocks.shape[:-1], -1, 18)
    scale = blocks[..., :2].copy().view(np.float16).astype(np.float64)
    codes = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], -1).astype(np.float64)
    return (scale * (codes - 8)).reshape(*blocks.shape[:-2], -1)


def test_q4_0_holds_the_same_numbers(checkpoint: Path) -> None:
    ck, converter = Checkpoint(checkpoint), Converter(checkpoint)
    for module in ("self_attn.q_proj", "mlp.shared_expert.down_proj"):
        name = f"{ck.root}layers.3.{module}"
        assert np.array_equal(dequantise(converter.blocks(name)), ck.weight(name))
    stack = f"{ck.root}layers.0.mlp.switch_mlp.up_proj"
    assert np.array_equal(dequantise(converter.blocks(stack))[5], ck.weight(stack, 5))


def test_a_checkpoint_that_q4_0_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--symmetric"):
        list(Converter(small(tmp_path, symmetric=False)).tensors())
    words, scales = np.zeros((1, 8), np.uint32), np.full((1, 1), 2.0**-30, np.float32)
    with pytest.raises(ValueError, match="float16"):
        q4_0(words, scales, -8 * scales)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["model_type"] = "qwen3_next"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="qwen3_next"):
        Converter(tmp_path)


def test_value_heads_of_one_key_head_are_spread(checkpoint: Path) -> None:
    # two key heads, four value heads, 128 rows each: llama.cpp repeats the key heads as a whole, k0 k1 k0 k1
    ck, tensors = Checkpoint(checkpoint), dict(Converter(checkpoint).tensors())
    name = f"{ck.root}layers.0.linear_attn"
    order = [0, 2, 1, 3]
    heads = ck.weight(f"{name}.in_proj_z").reshape(4, 128, -1)
    assert np.array_equal(dequantise(tensors["blk.0.attn_gate.weight"]), heads[order].reshape(512, -1))
    qkv = ck.weight(f"{name}.in_proj_qkv")
    expected = np.concatenate([qkv[:512], qkv[512:].reshape(4, 128, -1)[order].reshape(512, -1)])
    assert np.array_equal(dequantise(tensors["blk.0.attn_qkv.weight"]), expected)
    conv = ck.raw(f"{name}.conv1d.weight")[:, :, 0]
    expected = np.concatenate([conv[:512], conv[512:].reshape(4, 128, 4)[order].reshape(512, 4)])
    assert np.array_equal(tensors["blk.0.ssm_conv1d.weight"], expected)
    out = ck.weight(f"{name}.out_proj").reshape(-1, 4, 128)[:, order].reshape(-1, 512)
    assert np.array_equal(dequantise(tensors["blk.0.ssm_out.weight"]), out)
    assert np.allclose(tensors["blk.0.ssm_a"], -np.exp(ck.vector(f"{name}.A_log")[order]))


def test_the_gguf_says_what_was_written(checkpoint: Path, tmp_path: Path) -> None:
    reader = gguf.GGUFReader(to_gguf(checkpoint, tmp_path / "x.gguf"))
    ck = Checkpoint(checkpoint)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert {key: fields[f"qwen35moe.{key}"] for key in metadata(ck.config)} == pytest.approx(metadata(ck.config))
    assert fields["qwen35moe.rope.dimension_sections"] == [11, 11, 10, 0]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    head = tensors["output.weight"]
    assert np.array_equal(gguf.quants.dequantize(head.data, head.tensor_type), ck.weight(ck.head))
    router = tensors["blk.2.ffn_gate_inp.weight"]
    assert np.array_equal(router.data, ck.weight(f"{ck.root}layers.2.mlp.gate"))


class FakeTimeline:
    """Logits that tell which tokens were read: 1 at their sum."""

    closed = 0

    def __init__(self) -> None:
        self.sum = 0

    def prefill(self, token_ids: list[int]) -> None:
        self.sum = sum(token_ids)

    def decode(self, token_id: int) -> None:
        self.sum += token_id

    def close(self) -> None:
        FakeTimeline.closed += 1

    @property
    def logits(self) -> np.ndarray:
        return np.eye(32, dtype=np.float32)[self.sum]


def arguments(tmp_path: Path, token_ids: list[int], steps: int) -> argparse.Namespace:
    np.array(token_ids, "<i4").tofile(tmp_path / "tokens")
    paths = ["--model", "x", "--tokens", str(tmp_path / "tokens"), "--logits", str(tmp_path / "logits")]
    return measure.options("").parse_args([*paths, "--steps", str(steps), "--contexts", "2", "3"])


def test_an_arm_times_each_context_and_writes_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FakeTimeline.closed = 0
    measure.measure(arguments(tmp_path, [1, 2, 3, 4, 5], 2), FakeTimeline)
    result = json.loads(capsys.readouterr().out)
    assert set(result["metrics"]) == {f"{verb}_{n}_tokens_per_second" for verb in ("prefill", "decode") for n in (2, 3)}
    rows = accuracy.read_logits(tmp_path / "logits", 6, 32)
    assert rows.argmax(-1).tolist() == [3, 6, 10, 6, 10, 15]
    assert FakeTimeline.closed == 4  # a warm-up and a timed one for each context
    measure.measure(arguments(tmp_path, [1, 2, 3, 4, 6], 2), FakeTimeline)
    assert json.loads(capsys.readouterr().out)["digest"] != result["digest"]


def test_too_few_tokens_or_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 4 ids, 3 \\+ 2 are needed"):
        measure.measure(arguments(tmp_path, [1, 2, 3, 4], 2), FakeTimeline)
    np.zeros(5, np.float32).tofile(tmp_path / "rows")
    with pytest.raises(ValueError, match="holds 5 numbers, not 2 rows of 3"):
        accuracy.read_logits(tmp_path / "rows", 2, 3)
    np.full(6, np.nan, np.float32).tofile(tmp_path / "rows")
    with pytest.raises(ValueError, match="not finite"):
        accuracy.read_logits(tmp_path / "rows", 2, 3)


def test_one_reference_pass_serves_all_contexts(checkpoint: Path) -> None:
    token_ids = [(37 * i + 11) % 1000 for i in range(20)]
    wanted = accuracy.positions([4, 16], 2)
    assert wanted == [3, 4, 5, 15, 16, 17]
    expected = accuracy.reference(checkpoint, token_ids, wanted)
    whole = forward(checkpoint, token_ids)
    for position in wanted:
        assert np.allclose(expected[position], whole[position], atol=1e-9)


def test_errors_are_those_of_the_formulas() -> None:
    expected = np.log([[0.5, 0.25, 0.25], [0.2, 0.7, 0.1]])
    got = np.log([[0.25, 0.5, 0.25], [0.2, 0.7, 0.1]]) + 3.0  # a constant changes the error, not the distribution
    found = accuracy.errors(got, expected)
    assert found["kl_mean"] == pytest.approx(0.5 * (0.5 * np.log(2) - 0.25 * np.log(2)))
    assert found["kl_median"] == pytest.approx(found["kl_mean"])
    assert found["same_top_token"] == 0.5
    difference = got - expected
    assert found["relative_rms"] == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(expected))
    assert accuracy.errors(expected, expected)["relative_rms"] == 0


def test_rows_after_a_prompt_and_after_a_step_are_told_apart() -> None:
    expected = {position: np.array([1.0, 2.0]) * (position + 1) for position in range(8)}
    got = np.stack([expected[position] for position in accuracy.positions([2, 5], 2)]).astype(np.float32)
    got[[1, 2, 4, 5]] *= 1.5
    stages = accuracy.by_stage(got, expected, [2, 5], 2)
    assert stages["prefill"]["relative_rms"] == 0
    assert (stages["prefill"]["rows"], stages["decode"]["rows"]) == (2, 4)
    assert stages["decode"]["relative_rms"] == pytest.approx(0.5)


def test_the_name_of_the_token_file_tells_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two benches may run at once, and must not change each other's ids.
    monkeypatch.setattr(run.runner, "ROOT", tmp_path)
    paths = {run.write_tokens(length, vocab_size) for length in (40, 80) for vocab_size in (100, 200)}
    assert len(paths) == 4
    short, long = (np.fromfile(tmp_path / run.write_tokens(length, 100), "<i4") for length in (40, 80))
    assert np.array_equal(short, long[:40])


WORK = run.Workload((512, 2048), 32)


def test_commands_of_the_engines() -> None:
    lily = run.Engine("lily", "lily", "python", Path("model"))
    peer = run.Engine("llama.cpp", "llama", "/bin/peer", Path("x.gguf"), layout="repacked")
    mlx = run.Engine("mlx-lm", "mlx", "python3", Path("model"))
    command = lily.command(WORK, Path("ids"), Path("rows"))
    assert command[:3] == ("python", "-m", "bench.peers.lily_arm")
    parsed = measure.options("").parse_args(command[3:])
    assert (parsed.model, parsed.tokens, parsed.logits) == ("model", Path("ids"), Path("rows"))
    assert (parsed.steps, parsed.contexts) == (32, [512, 2048])
    program, model, layout, ids, rows, steps, threads, *contexts = peer.command(WORK, Path("ids"))
    assert (program, model, layout) == ("/bin/peer", "x.gguf", "repacked")
    assert (ids, rows, steps, contexts) == ("ids", "-", "32", ["512", "2048"])
    assert int(threads) > 0
    assert mlx.workload(WORK) == run.Workload((8,), 2)
    assert lily.workload(WORK, [lily, peer]) == peer.workload(WORK, [lily, mlx]) == WORK
    assert lily.workload(WORK, [lily, mlx]) == run.Workload((8, 512, 2048), 32)


def arm(**metrics: list[float]) -> dict[str, dict[str, dict[str, list[float]]]]:
    return {"metrics": {name: {"values": values} for name, values in metrics.items()}}


def test_ratios_pair_the_runs_of_a_round() -> None:
    arms = {
        "lily": arm(decode=[20.0, 10.0, 33.0], prefill=[1.0] * 3),
        "peer": arm(decode=[10.0, 5.0, 11.0], other=[1.0]),
    }
    assert run.ratios(arms) == {"peer": {"decode": {"median": 2.0, "min": 2.0, "max": 3.0}}}


def test_error_ratios_compare_equal_work_only() -> None:
    def found(rms: float, contexts: list[int]) -> dict[str, object]:
        return {"contexts": contexts, "prefill": {"relative_rms": rms}, "decode": {"relative_rms": 2 * rms}}

    ratios = run.error_ratios({"lily": found(1.0, [64]), "peer": found(4.0, [64]), "mlx-lm": found(9.0, [8])})
    assert ratios == {"peer": {"prefill": 0.25, "decode": 0.25}}


def test_a_bench_that_cannot_be_started_writes_no_record(checkpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.peers.run", str(checkpoint), "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no record: 1 rounds" in done.stderr
    done = subprocess.run([*command, "--gguf", "x.gguf"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--gguf goes together with" in done.stderr


def test_the_table_shows_speed_and_error_of_each_arm() -> None:
    def summary(speed: float) -> dict[str, object]:
        return {"metrics": {"decode": {"median": speed, "min": speed, "max": speed, "values": [speed, speed]}}}

    def stages(rms: float) -> dict[str, object]:
        error = {"relative_rms": rms, "kl_mean": rms**2, "kl_median": rms**2}
        return {"contexts": [64], "prefill": error, "decode": error}

    record = {"arms": {"lily": summary(30.0), "peer": summary(20.0)}}
    record |= {"ratios": run.ratios(record["arms"])}
    assert "lily: 1.50x (1.50 to 1.50)" in run.show({**record, "error_ratios": {}})
    found = {"lily": stages(1e-3), "peer": stages(1e-2)}
    lines = run.show({**record, "accuracy": found, "error_ratios": run.error_ratios(found)}).splitlines()
    assert [line.split()[0] for line in lines] == ["lily"] * 3 + ["peer"] * 3
    assert "1.00e-02 relative RMS" in lines[4]
    assert lines[4].endswith("lily: 0.1x")


@pytest.mark.skipif(sys.platform != "linux", reason="this machine does not run Linux, which records need")
def test_a_peer_is_known_by_the_digests_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, library = tmp_path / "peer", tmp_path / "libggml-cpu.so.0"
    program.write_bytes(b"program")
    library.write_bytes(b"library")
    text = f"\tlibc.so.6 => {tmp_path}/libc.so.6 (0x1)\n\tlibggml-cpu.so.0 => {library} (0x2)\n"
    done = subprocess.CompletedProcess([], 0, stdout=text)
    monkeypatch.setattr(run.subprocess, "run", lambda *args, **options: done)
    found = run.describe_program(program)
    assert found == {
        "peer": hashlib.sha256(b"program").hexdigest(),
        library.name: hashlib.sha256(b"library").hexdigest(),
    }
