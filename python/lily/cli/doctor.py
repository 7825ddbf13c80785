"""`lily doctor`: the machine, the versions and, with --model, the facts of a model: a report to paste into an issue."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from lily import Engine, __version__
from lily.memory import DEFAULT_MEMORY_FRACTION, available_bytes, default_limit, format_bytes, total_bytes

from .options import add_engine_flags, make_engine

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(verbs: Verbs) -> None:
    parser = verbs.add_parser("doctor", help="describe the machine and, with --model, how a model runs on it")
    add_engine_flags(parser, default_model=None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    report: dict[str, Mapping[str, object]] = {"machine": _machine(), "versions": _versions()}
    if options.model:
        with make_engine(options) as engine:
            report["model"] = _model(engine)
    if options.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        for title, facts in report.items():
            print(title)
            for name, value in facts.items():
                print(f"  {name.removesuffix('_bytes').replace('_', ' '):24}{_shown(name, value)}")
    return 0


def _machine() -> dict[str, object]:
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "system": platform.platform(),
        "architecture": platform.machine(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": total_bytes(),
        "available_bytes": available_bytes(),
        "default_limit_bytes": default_limit(),
        "default_limit_is": f"{DEFAULT_MEMORY_FRACTION:.0%} of what is available",
    }


def _versions() -> dict[str, object]:
    packages = ("numpy", "tokenizers", "safetensors", "jinja2")
    return {"lily": __version__, "python": platform.python_version(), **{name: version(name) for name in packages}}


def _model(engine: Engine) -> dict[str, object]:
    runtime = engine.runtime
    tokens = engine.tokenizer
    return {
        "summary": repr(engine),
        "model_type": engine.config.model_type,
        "device": runtime.device_description,
        "dtype": runtime.dtype,
        "context_that_fits": runtime.max_context,
        "prefill_chunk_tokens": runtime.max_chunk_tokens,
        "vocab_size": engine.config.vocab_size,
        "stop_ids": {str(i): tokens.decode([i]) for i in engine.stop_token_ids},
        "sampling_defaults": dict(engine.config.sampling_defaults),
        "memory": runtime.memory_bytes,
        "load_report": runtime.load_report,
    }


def _shown(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    if isinstance(value, Mapping):
        in_bytes = name == "memory"
        return ", ".join(f"{key} {_shown('_bytes', v) if in_bytes else v}" for key, v in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
