"""The reference itself, against logits that transformers and mlx-lm agree with in float32 (RMS ratio 2e-6)."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.oracles.forward import Checkpoint, forward
from tools.make_checkpoint import make

TOKEN_IDS = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233]

# (model, size) -> first 8 digits of the SHA-256 of the weights, logits[-1, :5], argmax of each row
GOLDEN = {
    ("qwen3_5_moe", "nano"): (
        "d8427297",
        [1.902470, -0.754951, -0.634043, -0.163196, 0.518932],
        [302, 211, 317, 68, 126, 280, 47, 411, 120, 320, 395, 263],
    ),
    ("qwen3_next", "nano"): (
        "3413a968",
        [-0.757437, 1.648138, -2.875737, 0.653518, -6.114362],
        [125, 101, 145, 172, 416, 364, 413, 75, 407, 242, 469, 319],
    ),
    ("qwen3_5_moe", "tiny"): (
        "570df810",
        [7.096597, -2.098900, -1.165595, 3.729518, 2.041218],
        [288, 149, 345, 2039, 202, 318, 212, 1508, 913, 1145, 1050, 502],
    ),
    ("qwen3_next", "tiny"): (
        "9140659f",
        [0.106673, -3.563106, 1.490437, 4.793223, -7.157592],
        [266, 1916, 2020, 1348, 1654, 1323, 835, 212, 975, 586, 2013, 1407],
    ),
}


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:8]


@pytest.mark.parametrize(("model", "size"), GOLDEN)
def test_golden_logits(tmp_path: Path, model: str, size: str) -> None:
    sha, last_row, argmax = GOLDEN[model, size]
    folder = make(tmp_path, model, "mlx", size)
    assert digest(folder) == sha
    logits = forward(folder, TOKEN_IDS)
    np.testing.assert_allclose(logits[-1, :5], last_row, atol=1e-6)
    assert logits.argmax(-1).tolist() == argmax


@pytest.mark.parametrize(("model", "sha"), [("qwen3_5_moe", "5cdbd179"), ("qwen3_next", "e6782edb")])
def test_hugging_face_layout_is_reproducible(tmp_path: Path, model: str, sha: str) -> None:
    assert digest(make(tmp_path, model, "hf", "nano")) == sha


@pytest.mark.parametrize("model", ["qwen3_5_moe", "qwen3_next"])
def test_chunks_equal_steps(tmp_path: Path, model: str) -> None:
    ck = Checkpoint(make(tmp_path, model))
    token_ids = [(37 * t + 11) % 512 for t in range(21)]
    states: list[dict[str, np.ndarray]] = []
    logits = []
    for chunk_size in (0, 8):
        state: dict[str, np.ndarray] = {}
        logits.append(forward(ck, token_ids, chunk_size=chunk_size, trace=state.__setitem__))
        states.append(state)
    np.testing.assert_allclose(logits[1], logits[0], atol=1e-10)
    name = f"{ck.root}layers.0.linear_attn.recurrent_state"
    assert np.abs(states[0][name]).max() > 0
    np.testing.assert_allclose(states[1][name], states[0][name], atol=1e-12)


def test_pair_types_and_bits(tmp_path: Path) -> None:
    """The same weights in finer forms give nearly the same logits: each form is read as what it is."""
    reference = forward(make(tmp_path / "f32", bits={"*": 8}, dtypes={"*": "F32"}), TOKEN_IDS)
    for name, bits, dtypes in [
        ("f16", {"*": 8}, {"*": "F16"}),
        ("mixed", {"*": 8}, {"*.A_log": "F32", "*_proj*": "F16"}),
        ("aligned", {"*": 8}, {"*": "F32", "*.up_proj": "BF16"}),
    ]:
        logits = forward(make(tmp_path / name, bits=bits, dtypes=dtypes, aligned=name == "aligned"), TOKEN_IDS)
        ratio = np.sqrt(((logits - reference) ** 2).mean() / (reference**2).mean())
        assert 0 < ratio < 0.1
