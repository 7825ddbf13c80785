"""Run a bench and write its record.

python -m bench.run decode --model lily-nano
python -m bench.run prefill --model FOLDER --context 2048 --arm "peer=python my_peer.py --context 2048"
python -m bench.run cache --model FOLDER --context 2000

Options that bench.run does not know go to the lily arm: python -m bench.decode --help lists them. Another arm is any
command that prints what bench/runner.py expects.
"""

import argparse
import shlex
import sys

from bench import runner
from lily.hub import find_model

BENCHES = ("decode", "prefill", "overhead", "cache", "server")


def parse_arm(text: str) -> runner.Arm:
    """An arm from NAME=COMMAND."""
    name, _, command = text.partition("=")
    if not name or not shlex.split(command):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COMMAND")
    return runner.Arm(name, tuple(shlex.split(command)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", choices=BENCHES)
    parser.add_argument("--model", default="lily-nano", help="folder or Hugging Face id (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arm", action="append", type=parse_arm, default=[], metavar="NAME=COMMAND")
    options, arm_options = parser.parse_known_args()

    lily_command = (sys.executable, "-m", f"bench.{options.bench}", "--model", options.model, *arm_options)
    try:
        folder = find_model(options.model)
        record = runner.run(
            f"{options.bench}-{folder.name.lower()}",
            [runner.Arm("lily", lily_command), *options.arm],
            command=["python", "-m", "bench.run", *sys.argv[1:]],
            inputs={folder.name: runner.digest_folder(folder)},
            rounds=options.rounds,
        )
    except (runner.BenchError, ValueError, OSError) as error:
        print(f"no record: {error}", file=sys.stderr)
        return 1
    path = runner.write_record(record)
    for name, arm in record["arms"].items():
        for metric, values in arm["metrics"].items():
            print(f"{name:12} {metric:28} {values['median']:12.2f}   ({values['min']:.2f} to {values['max']:.2f})")
    print(path.relative_to(runner.ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
