"""`lily doctor`: the machine, its devices and versions, how a model fits, and a test of the kernels.

A report to paste into an issue.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from tqdm.auto import tqdm

from lily import Engine, _core
from lily.engine_options import DeviceName
from lily.errors import DeviceError, MemoryLimitError
from lily.machine import describe_machine, sysctl, versions
from lily.memory import DEFAULT_MEMORY_FRACTION, available_bytes, default_limit, format_bytes, total_bytes
from lily.progress import wants_progress
from lily.selftest import Check, Report, run_cases, run_model, worst
from lily.selftest.cases import all_cases
from lily.selftest.tables import SMALL

from .options import Verbs, add_engine_flags, make_engine

_CONTEXTS: Final = (4_096, 16_384, 65_536, 131_072, 262_144)
_VARIABLES: Final = ("LILY_LOG", "LILY_CPU_DEBUG", "LILY_METAL_DEBUG")
_CPU_SETS: Final = ("amx", "avx512_pairs", "avx512", "avx2", "i8mm", "dotprod", "baseline")
_MIN_TIMELINES: Final = 2  # those that an engine has room for at least
_SHORT: Final = 20  # characters of items that share a line
_GIB: Final = 1 << 30


def add_parser(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "doctor",
        help="describe the machine, how a model fits, and test the kernels",
        description="Describes the machine and the devices. With --model it loads the model and says what fits. "
        "--selftest runs every kernel on known problems and both programs of a model (lily-nano without --model).",
    )
    add_engine_flags(parser, default_model=None)
    parser.add_argument("--selftest", action="store_true", help="compare the kernels with stored references")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    report: dict[str, Mapping[str, object]] = {"versions": versions(), "machine": _machine(), "devices": _devices()}
    failed = False
    model: str | None = options.model or ("lily-nano" if options.selftest else None)
    checks: list[Check] = []
    if model is not None:
        options.model = model
        try:
            with make_engine(options) as engine:
                report["model"] = _model(engine)
                if options.selftest:
                    checks = run_model(engine)
                    device = engine.runtime.device
        except MemoryLimitError as error:
            report["model"] = {
                "name": model,
                "fits": False,
                "required_bytes": error.required_bytes,
                "limit_bytes": error.limit_bytes,
                "problem": str(error),
            }
            failed = True
    if options.selftest and not failed:
        cases = _replay(device)
        report["selftest"] = _selftest(cases, checks)
        failed = not cases.passed or not all(check.passed for check in checks)
    if options.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        for title, facts in report.items():
            print(title)
            for name, value in facts.items():
                _print_fact(name, value)
    return 1 if failed else 0


def _machine() -> dict[str, object]:
    facts = {
        **describe_machine(),
        "available_bytes": available_bytes(),
        "default_limit_bytes": default_limit(),
        "default_limit_is": f"{DEFAULT_MEMORY_FRACTION:.0%} of what is available",
    }
    if sys.platform == "darwin":
        facts |= wired_limit(total_bytes(), int(sysctl("iogpu.wired_limit_mb") or 0))
    variables = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    return {**facts, "variables": variables} if variables else facts


def wired_limit(total: int, limit_mb: int) -> dict[str, object]:
    """How much memory macOS lets a GPU hold, and the command that raises it.

    total: bytes of the machine. limit_mb: of iogpu.wired_limit_mb; 0 is the system's default.
    """
    # What the system and other programs need: an eighth, at least 4 GiB.
    raised_mb = (total - max(total // 8, 4 * _GIB)) >> 20
    facts: dict[str, object] = {
        "wired_limit": f"{limit_mb:,} MiB" if limit_mb else "the system's default, about three quarters of the memory"
    }
    if limit_mb < raised_mb:
        facts["wired_limit_command"] = f"sudo sysctl iogpu.wired_limit_mb={raised_mb}"
        facts["wired_limit_note"] = "for models that need more than the limit; until the next restart"
    return facts


def _devices() -> dict[str, object]:
    """Each kind of device: what it is here, or why there is none."""
    found: dict[str, object] = {}
    for name in get_args(DeviceName):
        if name == "auto":
            continue
        try:
            device = _core.Device(name, sizes=SMALL)
        except DeviceError as error:
            found[name] = f"no: {error}"
            continue
        found[name] = f"{device.description}, {len(device.kernel_names())} kernels"
        if name == "cpu":
            found["cpu_instruction_sets"] = [isa for isa in _CPU_SETS if _has_instructions(isa)]
            found["cpu_kernels"] = "prebuilt, in the extension"
        elif name == "metal":
            found["metal_matrix_form"] = device.notes
            found["metal_may_hold_bytes"] = device.memory_bytes
            found["metal_kernels"] = metal_kernels()
    return found


def metal_kernels() -> str:
    """What is kept of the kernels that the Metal device compiles (src/lily_core/device/metal, archive_path)."""
    of_user = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or of_user) / "lily"
    archives = list(folder.glob("metal-*.archive"))
    if not archives:
        return f"compiled at the first start of a model, then kept in {folder}"
    num_bytes = sum(path.stat().st_size for path in archives)
    kept = f"{format_bytes(num_bytes)} in {folder}, files: {len(archives)}"
    return f"prebuilt, {kept} (one for each model, GPU, system and build of lily)"


def _has_instructions(isa: str) -> bool:
    try:
        _core.Device("cpu", sizes=SMALL, debug=isa)
    except DeviceError:
        return False
    return True


def _model(engine: Engine) -> dict[str, object]:
    runtime, config, tokens = engine.runtime, engine.config, engine.tokenizer
    longest = config.max_position_embeddings or _CONTEXTS[-1]
    lengths = sorted({*(context for context in _CONTEXTS if context < longest), longest, engine.max_context})
    return {
        "summary": repr(engine),
        "model_type": config.model_type,
        "device": runtime.device_description,
        "dtype": runtime.dtype,
        "context_that_fits": engine.max_context,
        "longest_context": longest,
        "needs_at_least_bytes": {str(context): needed_bytes(engine, context) for context in lengths},
        "takes_at_most_bytes": runtime.memory_bytes,
        "sequences_at_once": runtime.max_timelines,
        "prefix_cache_limit_bytes": runtime.state_use["snapshot_limit_bytes"],
        "prefill_chunk_tokens": runtime.max_chunk_tokens,
        "vocab_size": config.vocab_size,
        "stop_ids": {str(token_id): tokens.decode([token_id]) for token_id in engine.stop_token_ids},
        "sampling_defaults": dict(config.sampling_defaults),
        "load_report": runtime.load_report,
    }


def needed_bytes(engine: Engine, context: int) -> int:
    """The least memory_limit with which this model has `context` tokens of context, without a prefix cache."""
    memory, state = engine.runtime.memory_bytes, engine.runtime.state_use
    slots = 1 + 2 * _MIN_TIMELINES
    pages = -(-context // _core.PAGE_TOKENS)
    return memory["weights"] + memory["activations"] + slots * state["slot_bytes"] + pages * state["page_bytes"]


def _replay(device: str) -> Report:
    total = sum(1 for _ in all_cases())
    with tqdm(total=total, desc="kernel cases", leave=False, disable=not wants_progress(None)) as bar:
        return run_cases(device, on_case=lambda number: bar.update(number - bar.n))


def _selftest(cases: Report, of_model: Sequence[Check]) -> dict[str, object]:
    checks = [*cases.checks, *of_model]
    nearest = worst(checks)
    return {
        "result": "passed" if cases.passed and all(check.passed for check in of_model) else "FAILED",
        "device": cases.device,
        "comparisons": len(checks),
        "passed": sum(check.passed for check in checks),
        "kernels": cases.kernels,
        "kernels_without_a_case": cases.without_case,
        "nearest_to_its_tolerance": None if nearest is None else _described(nearest),
        "model": [_described(check) for check in of_model],
        "failures": [_described(check) for check in checks if not check.passed],
    }


def _described(check: Check) -> str:
    if check.problem is not None:
        return f"{check.name}: {check.problem}"
    if check.tolerance == 0:
        return f"{check.name}: {check.error:.1%} of the values differ"
    return f"{check.name}: error {check.error:.2g}, tolerance {check.tolerance:.2g}"


def _print_fact(name: str, value: object) -> None:
    in_bytes = name.endswith("_bytes") or name == "memory"
    label = name.removesuffix("_bytes").replace("_", " ")
    if name == "needs_at_least_bytes" and isinstance(value, Mapping):
        value = {f"{int(context):,} tokens:": needed for context, needed in value.items()}
    if isinstance(value, list) and any(len(str(item)) > _SHORT for item in value):
        print(f"  {label}")
        for item in value:
            print(f"    {item}")
    else:
        print(f"  {label:26}{_shown(value, in_bytes)}")


def _shown(value: object, in_bytes: bool) -> str:
    if isinstance(value, Mapping):
        parts = (
            f"{key.removesuffix('_bytes')} {_shown(part, in_bytes or key.endswith('_bytes'))}"
            for key, part in value.items()
        )
        return ", ".join(parts) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return format_bytes(value) if in_bytes else f"{value:,}"
    return str(value)
