"""Measure lily and other engines on the same weights, round by round in turn, and write one record of speed and error.

python -m bench.peers.run MODEL                                             lily alone
python -m bench.peers.run MODEL --gguf FILE --ik-llama-cpp PROGRAM --llama-cpp PROGRAM --mlx-lm PYTHON

bench/peers/README.md says where model, file and programs come from. What must hold for a record is what bench/runner.py
demands: a quiet machine, a clean checkout, equal outputs in all rounds.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import arm, machine, runner
from bench.peers import accuracy
from tests.oracles.forward import Checkpoint

SCRATCH = Path("build") / "peers"  # below the checkout, so that records name no folder of this machine
MLX_CONTEXTS, MLX_STEPS = (8,), 2  # its CPU backend needs seconds for a token
ACCURACY_CONTEXTS, ACCURACY_STEPS = tuple(range(64, 513, 64)), 8


@dataclass(frozen=True)
class Workload:
    """Prompts of these lengths in tokens, each followed by `steps` single tokens."""

    contexts: tuple[int, ...]
    steps: int

    @property
    def tokens(self) -> int:
        return max(self.contexts) + self.steps


@dataclass(frozen=True)
class Engine:
    """An engine to measure. program: what runs it; model: its weights; layout: "repacked" or "mapped"."""

    name: str
    kind: str  # "lily", "mlx" or "llama"
    program: str
    model: Path
    layout: str = "mapped"

    @property
    def maps_file(self) -> bool:
        """Whether it reads weights where the file is mapped; mlx-lm copies them."""
        return self.layout == "mapped" and self.kind != "mlx"

    def command(self, work: Workload, tokens: Path, logits: Path | None = None) -> tuple[str, ...]:
        """The command line of its arm, run in the folder of the checkout."""
        contexts = tuple(map(str, work.contexts))
        if self.kind == "llama":
            threads = str(machine.describe()["usable_cores"])
            files = (str(self.model), self.layout, str(tokens), str(logits or "-"))
            return (self.program, *files, str(work.steps), threads, *contexts)
        written = ("--logits", str(logits)) if logits else ()
        files = ("--model", str(self.model), "--tokens", str(tokens), *written)
        module = f"bench.peers.{self.kind}_arm"
        return (self.program, "-m", module, *files, "--steps", str(work.steps), "--contexts", *contexts)

    def workload(self, work: Workload, others: Sequence["Engine"] = ()) -> Workload:
        """What this engine does of `work`: mlx-lm very little, and lily that little as well, for the ratio."""
        if self.kind == "mlx":
            return Workload(MLX_CONTEXTS, MLX_STEPS)
        if any(other.kind == "mlx" for other in others) and self.kind == "lily":
            return Workload(tuple(sorted({*work.contexts, *MLX_CONTEXTS})), work.steps)
        return work


def write_tokens(length: int, vocab_size: int) -> Path:
    """The ids that every engine reads; returns the path relative to the checkout, which tells the content."""
    path = SCRATCH / f"tokens-{length}-of-{vocab_size}.i32"
    (runner.ROOT / SCRATCH).mkdir(parents=True, exist_ok=True)
    np.array(arm.prompt(length, vocab_size), "<i4").tofile(runner.ROOT / path)
    return path


def describe_program(program: Path) -> dict[str, str]:
    """SHA-256 of a program and of the llama.cpp libraries that it loads, by file name."""
    done = subprocess.run(["ldd", str(program)], check=True, capture_output=True, text=True)
    loaded = re.findall(r"lib(?:llama|ggml)\S* => (\S+)", done.stdout)
    return {path.name: runner.digest_file(path) for path in (program, *sorted(map(Path, loaded)))}


def read_files(files: Sequence[Path], mapping: Sequence[runner.Arm]) -> None:
    """Let the files lie in memory as the arms that map them ask for: the reads of the digests left small pages."""
    machine.evict(files)
    for one in mapping:
        subprocess.run(one.command, cwd=runner.ROOT, check=True, capture_output=True)


def ratios(arms: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """lily over each other arm, by metric that both have: median, least and largest of the ratios of the rounds.

    The two runs of a round lie next to each other in time, so a machine that gets slower changes no ratio.
    """
    lily = arms["lily"]["metrics"]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, other in arms.items():
        if name == "lily":
            continue
        found[name] = {}
        for metric in lily.keys() & other["metrics"].keys():
            pairs = zip(lily[metric]["values"], other["metrics"][metric]["values"], strict=True)
            values = [ours / theirs for ours, theirs in pairs]
            found[name][metric] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return found


def measure_accuracy(engines: Sequence[Engine], folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Errors of each engine by stage, in runs of their own: writing logits would disturb the times."""
    full = Workload(ACCURACY_CONTEXTS, ACCURACY_STEPS)
    works = {engine.name: engine.workload(full) for engine in engines}
    tokens = write_tokens(full.tokens, config["vocab_size"])
    token_ids = np.fromfile(runner.ROOT / tokens, "<i4").tolist()
    wanted = [position for work in works.values() for position in accuracy.positions(work.contexts, work.steps)]
    expected = accuracy.reference(folder, token_ids, wanted)
    found: dict[str, Any] = {}
    for engine in engines:
        work = works[engine.name]
        with tempfile.TemporaryDirectory() as folder_of_logits:
            logits = Path(folder_of_logits) / "logits.f32"
            command = engine.command(work, tokens, logits)
            done = subprocess.run(command, cwd=runner.ROOT, capture_output=True, text=True)
            if done.returncode != 0:
                raise runner.ArmError(f"accuracy of {engine.name}: status {done.returncode}: {done.stderr[-2000:]}")
            rows = len(accuracy.positions(work.contexts, work.steps))
            got = accuracy.read_logits(logits, rows, config["vocab_size"])
        stages = accuracy.by_stage(got, expected, work.contexts, work.steps)
        found[engine.name] = {"contexts": list(work.contexts), "steps": work.steps, **stages}
    return found


def error_ratios(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Relative RMS error of lily over that of each engine that did the same work, by stage."""
    lily = found["lily"]
    return {
        name: {stage: lily[stage]["relative_rms"] / other[stage]["relative_rms"] for stage in ("prefill", "decode")}
        for name, other in found.items()
        if name != "lily" and other["contexts"] == lily["contexts"]
    }


def show(record: Mapping[str, Any]) -> str:
    """The record as lines of text: each arm's speed, lily's multiple of it, and its error."""
    lines = []
    for name, values in record["arms"].items():
        for metric, value in values["metrics"].items():
            ratio = record["ratios"].get(name, {}).get(metric)
            times = f"   lily: {ratio['median']:.2f}x ({ratio['min']:.2f} to {ratio['max']:.2f})" if ratio else ""
            lines.append(
                f"{name:14} {metric:32} {value['median']:10.2f} ({value['min']:.2f} to {value['max']:.2f}){times}"
            )
        for stage in ("prefill", "decode"):
            if error := record.get("accuracy", {}).get(name, {}).get(stage):
                ratio = record["error_ratios"].get(name, {}).get(stage)
                times = f"   lily: {ratio:.2g}x" if ratio else ""
                kl = f"KL {error['kl_mean']:.2e} mean, {error['kl_median']:.2e} median"
                lines.append(f"{name:14} {stage + ' error':32} {error['relative_rms']:10.2e} relative RMS, {kl}{times}")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of the checkpoint, symmetric if there are peers")
    parser.add_argument("--gguf", type=Path, help="the same weights, by bench.peers.to_gguf")
    parser.add_argument("--ik-llama-cpp", metavar="PROGRAM", help="llama_arm.cpp with ik_llama.cpp")
    parser.add_argument("--llama-cpp", metavar="PROGRAM", help="llama_arm.cpp with llama.cpp")
    parser.add_argument("--mlx-lm", metavar="PYTHON", help="interpreter that has mlx-lm")
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048], help="tokens (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=32, help="decoded after each context (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="at least 2 (default: %(default)s)")
    parser.add_argument("--no-accuracy", action="store_true", help="speed only: the reference is slow in many layers")
    options = parser.parse_args()
    if bool(options.gguf) != bool(options.ik_llama_cpp or options.llama_cpp):
        parser.error("--gguf goes together with --llama-cpp or --ik-llama-cpp")
    return options


def engines_of(options: argparse.Namespace) -> list[Engine]:
    engines = [Engine("lily", "lily", sys.executable, options.model)]
    for name, program in (("ik_llama.cpp", options.ik_llama_cpp), ("llama.cpp", options.llama_cpp)):
        if program:
            # A bare name would be looked up in PATH. The path stays as given: records name no folder of this machine.
            path = program if "/" in program else f"./{program}"
            engines.append(Engine(name, "llama", path, options.gguf, layout="repacked"))
            if name == "ik_llama.cpp":
                engines.append(Engine(f"{name} mapped", "llama", path, options.gguf))
    if options.mlx_lm:
        engines.append(Engine("mlx-lm", "mlx", options.mlx_lm, options.model))
    return engines


def main() -> int:
    options = parse()
    try:
        engines = engines_of(options)
        config = Checkpoint(options.model).config
        work = Workload(tuple(sorted(set(options.contexts))), options.steps)
        tokens = write_tokens(max(engine.workload(work, engines).tokens for engine in engines), config["vocab_size"])
        inputs = {
            options.model.name: runner.digest_folder(options.model),
            "tokens": runner.digest_file(runner.ROOT / tokens),
        }
        if options.gguf:
            inputs[options.gguf.name] = runner.digest_file(options.gguf)
        programs = {e.name: describe_program(Path(e.program)) for e in engines if e.kind == "llama"}
        arms = [runner.Arm(engine.name, engine.command(engine.workload(work, engines), tokens)) for engine in engines]
        files = [*options.model.glob("*.safetensors"), *([options.gguf] if options.gguf else [])]
        mapping = [one for engine, one in zip(engines, arms, strict=True) if engine.maps_file]
        command = ["python", "-m", "bench.peers.run", *sys.argv[1:]]
        name = f"peers-{options.model.name.lower()}"
        read_in = partial(read_files, files, mapping)
        record = runner.run(name, arms, command=command, inputs=inputs, rounds=options.rounds, prepare=read_in)
        record |= {"programs": programs, "ratios": ratios(record["arms"])}
        if not options.no_accuracy:
            found = measure_accuracy(engines, options.model, config)
            record |= {"accuracy": found, "error_ratios": error_ratios(found)}
    except (runner.BenchError, ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"no record: {error}", file=sys.stderr)
        return 1
    path = runner.write_record(record)
    print(show(record))
    print(path.relative_to(runner.ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
