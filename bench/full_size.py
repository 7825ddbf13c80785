"""A checkpoint as large as the machine: time to load, prefill and decode, and the peak of memory, in one run.

    python -m tools.make_synthetic FOLDER tests/model/configs/qwen3.6-35b-a3b-mlx-4bit.json \\
        --tokenizer python/lily/models/lily-nano
    python -m bench.full_size FOLDER --record

The work runs in a process of its own with a memory limit of the weight files and --room bytes. Its memory is what the
system counts: anonymous pages (copies, state, scratch), and pages of mapped files, which it shares with the file cache
and which the system may drop and read again at any time. The sum of both must stay within the limit, and so must what
all of the machine gained while an unaligned checkpoint was copied: file cache beside the copy would be a second one.

A single run on a machine that others may use is no comparison; the record says how busy they were.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from bench import arm, machine, runner
from lily import _core
from lily.config import load_config

ROOM_BYTES = 1_500_000_000


def status_bytes() -> dict[str, int]:
    """Memory of this process and of the machine, as /proc counts it."""
    text = Path("/proc/self/status").read_text() + Path("/proc/meminfo").read_text()
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE))
    names = ("VmHWM", "RssAnon", "RssFile", "MemFree", "MemAvailable", "Cached")
    return {name: int(fields[name]) * 1024 for name in names}


class Sampler:
    """Peaks of memory while its `with` block runs, looked at ten times a second."""

    def __init__(self) -> None:
        self.start = status_bytes()
        self.peak_anonymous_bytes = 0
        self.peak_mapped_bytes = 0
        self.peak_machine_bytes = 0  # that the machine has less than at the start
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            self._look()

    def _look(self) -> None:
        now = status_bytes()
        self.peak_anonymous_bytes = max(self.peak_anonymous_bytes, now["RssAnon"])
        self.peak_mapped_bytes = max(self.peak_mapped_bytes, now["RssFile"])
        self.peak_machine_bytes = max(self.peak_machine_bytes, self.start["MemFree"] - now["MemFree"])


def weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("model*.safetensors"))


def measure(folder: Path, prompt_tokens: int, new_tokens: int, room_bytes: int) -> dict[str, Any]:
    """Load, prefill, decode; the digest of the tokens, times and peaks."""
    config = load_config(folder)
    file_bytes = sum(path.stat().st_size for path in weight_files(folder))
    limit = file_bytes + room_bytes
    with Sampler() as memory:
        start = time.perf_counter()
        runtime = _core.Runtime(
            str(folder),
            _core.ModelConfig(**config.core_arguments()),
            memory_limit=limit,
            max_context=prompt_tokens + new_tokens,
            prefix_cache_bytes=0,
        )
        loaded = time.perf_counter()
        anonymous_after_load = status_bytes()["RssAnon"]
        timeline = runtime.timeline()
        runtime.prefill(timeline, np.array(arm.prompt(prompt_tokens, config.vocab_size), np.uint32), wants_logits=True)
        prefilled = time.perf_counter()
        token_ids, steps = [], []
        for _ in range(new_tokens):
            token_ids.append(int(timeline.logits.argmax()))
            begin = time.perf_counter()
            runtime.decode([timeline], [token_ids[-1]])
            steps.append(time.perf_counter() - begin)
    report = runtime.load_report
    peak = status_bytes()["VmHWM"]
    return {
        "digest": arm.digest(token_ids),
        "metrics": {
            "file_bytes": file_bytes,
            "limit_bytes": limit,
            "mapped_bytes": report["mapped_bytes"],
            "copied_bytes": report["copied_bytes"],
            "load_seconds": loaded - start,
            "prefill_tokens_per_second": prompt_tokens / (prefilled - loaded),
            "decode_tokens_per_second": new_tokens / sum(steps),
            "median_step_seconds": float(np.median(steps)),
            "peak_rss_bytes": peak,
            "peak_anonymous_bytes": memory.peak_anonymous_bytes,
            "peak_mapped_bytes": memory.peak_mapped_bytes,
            "anonymous_after_load_bytes": anonymous_after_load,
            "peak_machine_bytes": memory.peak_machine_bytes,
        },
    }


def run_child(options: argparse.Namespace) -> tuple[dict[str, Any], float]:
    """What the measuring process printed, and the processors that others used meanwhile. Raises ArmError."""
    command = [sys.executable, "-m", "bench.full_size", str(options.folder), "--child"]
    command += ["--context", str(options.context), "--tokens", str(options.tokens), "--room", str(options.room)]
    before, start = machine.CpuClock.read(), time.perf_counter()
    done = subprocess.run(command, cwd=runner.ROOT, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise runner.ArmError(f"exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
    result = runner.parse_result(runner.Arm("lily", tuple(command)), done.stdout)
    others = machine.CpuClock.read().foreign_seconds_since(before) / seconds
    return {"digest": result.digest, "metrics": dict(result.metrics)}, others


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--context", type=int, default=256, help="prompt tokens (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=32, help="to decode (default: %(default)s)")
    parser.add_argument("--room", type=int, default=ROOM_BYTES, help="bytes beside the weight files (%(default)s)")
    parser.add_argument("--cold", action="store_true", help="drop the files from the file cache first")
    parser.add_argument("--record", action="store_true", help="write a record to bench/records")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.folder, options.context, options.tokens, options.room)))
        return 0
    try:
        code = runner.describe_code(runner.ROOT) if options.record else None
        if options.cold:
            machine.evict(weight_files(options.folder))
        result, others = run_child(options)
        for name, value in result["metrics"].items():
            print(f"{name:28} {value:,.2f}" if isinstance(value, float) else f"{name:28} {value:,}")
        print(f"{'processors used by others':28} {others:.2f}")
        peak, limit = result["metrics"]["peak_rss_bytes"], result["metrics"]["limit_bytes"]
        if peak > limit:
            print(f"no record: the peak of {peak:,} bytes is above the limit of {limit:,}", file=sys.stderr)
            return 1
        if options.record:
            folder = options.folder.resolve()
            path = runner.write_record(
                {
                    "bench": f"full-size-{folder.name.lower()}",
                    "date": datetime.now(UTC).strftime("%Y-%m-%d"),
                    "command": shlex.join(["python", "-m", "bench.full_size", *sys.argv[1:]]),
                    "machine": machine.describe(),
                    "code": code,
                    "inputs": {"config.json": runner.digest_file(folder / "config.json")},
                    "processors_used_by_others": others,
                    "arms": {"lily": result},
                }
            )
            print(path.relative_to(runner.ROOT))
    except (runner.BenchError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
