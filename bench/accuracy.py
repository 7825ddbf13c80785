"""Accuracy of lily's logits: perplexity, KL divergence and top-1 agreement against a reference, teacher-forced.

    python -m bench.accuracy --model lily-nano --dtype float16 --reference float64 --record
    python -m bench.accuracy --model FOLDER --text BOOK.txt --reference mlx-lm:float32
    python -m bench.accuracy --model FOLDER --dtype float16 --reference lily:cpu:float32

The first --context tokens of a text are prefilled, each later one is a step: after both, the logits are compared with
those of the reference at the same place, and scored by the token that follows. References are `float64` (the NumPy
formulas of tests/oracles; slow), `mlx-lm` (as it is) and `mlx-lm:float32` (dependency group oracle), and
`lily:DEVICE:DTYPE`.

Texts are those of --text, else the model's own held-out chats (eval.jsonl, as in lily-nano), else for a folder without
a tokenizer random token ids.
"""

import argparse
import importlib.metadata
import json
import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import arm, machine, runner
from lily import _core
from lily.chat_template import load_chat_template
from lily.config import load_config
from lily.errors import LilyError
from lily.hub import find_model
from lily.memory import default_limit
from lily.tokenizer import Tokenizer
from tests.oracles.forward import forward

Array = NDArray[np.float64]

CHUNK = 512  # tokens of a prefill call


def load(folder: Path, max_context: int, device: str, dtype: str) -> _core.Runtime:
    return _core.Runtime(
        str(folder),
        _core.ModelConfig(**load_config(folder).core_arguments()),
        device=device,
        dtype=dtype,
        max_context=max_context,
        memory_limit=default_limit(),
        prefix_cache_bytes=0,
    )


def lily_rows(runtime: _core.Runtime, token_ids: Sequence[int], context: int) -> Iterator[Array]:
    """Logits [V] after `context` tokens, by prefill, and after each one that follows, by steps."""
    timeline = runtime.timeline()
    ids = np.array(token_ids, np.uint32)
    for begin in range(0, context, CHUNK):
        end = min(begin + CHUNK, context)
        runtime.prefill(timeline, ids[begin:end], wants_logits=end == context)
    yield timeline.logits.astype(np.float64)
    for token_id in token_ids[context:]:
        runtime.decode([timeline], [token_id])
        yield timeline.logits.astype(np.float64)


def mlx_rows(folder: Path, token_ids: Sequence[int], context: int, dtype: str | None) -> Array:
    import mlx.core as mx  # optional: the dependency group "oracle"
    import mlx_lm

    model = mlx_lm.load(str(folder))[0]
    if dtype is not None:
        model.set_dtype(getattr(mx, dtype))
    logits = model(mx.array([list(token_ids)]))[0, context - 1 :].astype(mx.float32)
    return np.array(logits).astype(np.float64)


def reference_rows(name: str, folder: Path, token_ids: Sequence[int], context: int) -> Array:
    """Logits [positions, V] of the reference called `name`. Raises ValueError for a name that is none."""
    kind, *options = name.split(":")
    if kind == "float64" and not options:
        return forward(folder, token_ids)[context - 1 :]
    if kind == "mlx-lm" and len(options) <= 1:
        return mlx_rows(folder, token_ids, context, options[0] if options else None)
    if kind == "lily" and len(options) == 2:
        return np.stack(list(lily_rows(load(folder, len(token_ids), *options), token_ids, context)))
    raise ValueError(f"{name!r} is no reference; use float64, mlx-lm, mlx-lm:DTYPE or lily:DEVICE:DTYPE")


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def compare(rows: Array, reference: Array, next_ids: Sequence[int]) -> dict[str, float]:
    """What rows [n, V] of logits differ from those of the reference, and how well both predict next_ids [n].

    KL is KL(reference || lily) in nats; row_ratio is rms(difference) / rms(reference) of a row.
    """
    if not np.isfinite(rows).all():
        raise ValueError("the logits hold NaN or infinity")
    p, q = log_softmax(reference), log_softmax(rows)
    kl = (np.exp(p) * (p - q)).sum(-1)
    ratio = np.sqrt(((rows - reference) ** 2).mean(-1) / (reference**2).mean(-1))
    places = np.arange(len(next_ids))
    return {
        "positions": len(next_ids),
        "perplexity": math.exp(-q[places, next_ids].mean()),
        "reference_perplexity": math.exp(-p[places, next_ids].mean()),
        "kl_mean": float(kl.mean()),
        "kl_max": float(kl.max()),
        "top1_agreement": float((rows.argmax(-1) == reference.argmax(-1)).mean()),
        "row_ratio_median": float(np.median(ratio)),
        "row_ratio_max": float(ratio.max()),
    }


def held_out_ids(folder: Path, tokenizer: Tokenizer, length: int) -> list[int]:
    """Token ids of the chats of eval.jsonl with their right answers, one behind the other."""
    template = load_chat_template(folder, tokenizer, None)
    if template is None:
        raise ValueError(f"{folder} has eval.jsonl but no chat template; give --text")
    token_ids: list[int] = []
    with (folder / "eval.jsonl").open(encoding="utf-8") as lines:
        for item in map(json.loads, lines):
            if item["enable_thinking"] or item["tools"]:  # the right thoughts and calls are not written down
                continue
            prompt = template.render(item["messages"], enable_thinking=False)
            token_ids += prompt.token_ids(tokenizer)
            token_ids += tokenizer.encode(item["expected"] + "<|im_end|>\n", allow_special=True)
            if len(token_ids) >= length:
                break
    return token_ids


def text_ids(folder: Path, text: Path | None, length: int) -> tuple[list[int], str]:
    """At least `length` token ids to predict, and where they come from. Raises ValueError if there are not enough."""
    config = load_config(folder)
    if text is None and not (folder / "tokenizer.json").exists():
        return arm.prompt(length, config.vocab_size), "random token ids"
    tokenizer = Tokenizer(folder, config.vocab_size)
    if text is not None:
        token_ids, source = tokenizer.encode(text.read_text(encoding="utf-8")), text.name
    elif (folder / "eval.jsonl").exists():
        token_ids, source = held_out_ids(folder, tokenizer, length), "eval.jsonl"
    else:
        raise ValueError(f"{folder} has no eval.jsonl; give a text with --text")
    if len(token_ids) < length:
        raise ValueError(f"the text has {len(token_ids)} tokens; {length} are needed for this context and positions")
    return token_ids[:length], source


def measure(options: argparse.Namespace) -> tuple[dict[str, float], str, dict[str, str]]:
    """The metrics, the source of the text, and what lily ran on, with a digest of its most probable tokens."""
    folder = find_model(options.model)
    length = options.context + options.positions
    token_ids, source = text_ids(folder, options.text, length)
    # The last token is only predicted.
    inputs, next_ids = token_ids[:-1], token_ids[options.context :]
    reference = reference_rows(options.reference, folder, inputs, options.context)
    runtime = load(folder, len(inputs), options.device, options.dtype)
    rows = np.stack(list(lily_rows(runtime, inputs, options.context)))
    lily = {
        "device": runtime.device,
        "description": runtime.device_description,
        "dtype": runtime.dtype,
        "digest": arm.digest(rows.argmax(-1).tolist()),
    }
    return compare(rows, reference, next_ids), source, lily


def record(options: argparse.Namespace, metrics: dict[str, float], source: str, lily: dict[str, str]) -> dict[str, Any]:
    folder = find_model(options.model)
    ran = lily["dtype"] if lily["device"] == "cpu" else f"{lily['device']}-{lily['dtype']}"
    versions = {name: importlib.metadata.version(name) for name in ("mlx", "mlx-lm") if "mlx" in options.reference}
    return {
        "bench": f"accuracy-{folder.name.lower()}-{ran}-{options.reference.replace(':', '-')}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": shlex.join(["python", "-m", "bench.accuracy", *sys.argv[1:]]),
        "machine": machine.describe(),
        "code": runner.describe_code(runner.ROOT),
        "inputs": {folder.name: runner.digest_folder(folder), "text": source},
        "reference": {"name": options.reference, **versions},
        "arms": {"lily": {**lily, "metrics": metrics}},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lily-nano", help="folder or Hugging Face id (default: %(default)s)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", help="of lily (default: %(default)s)")
    parser.add_argument("--reference", default="float64", help="(default: %(default)s)")
    parser.add_argument("--text", type=Path, help="UTF-8 text to predict")
    parser.add_argument("--context", type=int, default=64, help="tokens that are prefilled (default: %(default)s)")
    parser.add_argument("--positions", type=int, default=192, help="that are compared (default: %(default)s)")
    parser.add_argument("--record", action="store_true", help="write a record to bench/records")
    options = parser.parse_args()
    if options.context < 1 or options.positions < 1:
        parser.error("--context and --positions must be at least 1")
    try:
        if options.record:
            runner.describe_code(runner.ROOT)  # before the work
        metrics, source, lily = measure(options)
        for name, value in metrics.items():
            print(f"{name:22} {value:.6g}")
        print(f"text: {source}")
        if options.record:
            path = runner.write_record(record(options, metrics, source, lily))
            print(path.relative_to(runner.ROOT))
    except (runner.BenchError, LilyError, ValueError, OSError, ImportError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
