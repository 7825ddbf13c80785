"""Reads Metal shaders on Linux.

lint says what Metal would refuse, cpp compiles a library for the CPU, ptx a module for NVIDIA GPUs,
tgmem prints the static threadgroup memory of kernels.
The host's macros are those of Qwen3.6-35B-A3B with 4-bit weights, unless --plain or -D says otherwise.
"""

import argparse
import sys
from pathlib import Path

from .build import MATH_MODES, Source, compile_library, ptx, threadgroup_bytes
from .errors import ShaderError
from .lint import lint
from .preamble import model_defines

THREADGROUP_LIMIT = 32768  # bytes, on every Apple GPU of interest


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.msl", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("lint", "cpp", "ptx", "tgmem"))
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("-D", action="append", default=[], metavar="NAME=VALUE", help="a macro", dest="defines")
    parser.add_argument(
        "-o", type=Path, metavar="OUT", help="output of cpp and ptx; default FILE with .so or .ptx", dest="out"
    )
    parser.add_argument("--math", choices=MATH_MODES, default="safe", help="of cpp")
    parser.add_argument("--plain", action="store_true", help="define nothing but what -D says")
    parser.add_argument("--name", help="what messages call the file")
    return parser.parse_args()


def _tgmem(source: Source) -> int:
    over = 0
    for kernel, size in threadgroup_bytes(ptx(source)).items():
        over += size > THREADGROUP_LIMIT
        print(f"{kernel:32s} {size:6d}{'  more than 32768 bytes' if size > THREADGROUP_LIMIT else ''}")
    return over


def main() -> int:
    arguments = _arguments()
    defines = {} if arguments.plain else model_defines()
    defines |= dict(d.split("=", 1) if "=" in d else (d, "1") for d in arguments.defines)
    if arguments.out and len(arguments.files) > 1:
        raise SystemExit("-o is for one file")
    faults = 0
    for path in arguments.files:
        source = Source(path.read_text(encoding="utf-8"), arguments.name or path.name, defines, (path.parent,))
        try:
            if arguments.command == "lint":
                findings = lint(source)
                faults += len(findings)
                print("".join(f"{finding}\n" for finding in findings), end="")
            elif arguments.command == "cpp":
                compile_library(source, arguments.out or path.with_suffix(".so"), arguments.math)
            elif arguments.command == "ptx":
                (arguments.out or path.with_suffix(".ptx")).write_text(ptx(source), encoding="utf-8")
            else:
                faults += _tgmem(source)
        except ShaderError as error:
            print(error, file=sys.stderr)
            faults += 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
