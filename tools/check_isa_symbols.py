"""Check that the CPU kernel objects define no weak symbol that another instruction set could share.

usage: check_isa_symbols.py [BUILD_FOLDER]

The same kernel sources are compiled once per instruction set. A weak symbol (an inline function, a template of the
standard library) with one name in two of them is merged by the linker, which may keep the copy that needs AVX-512 for
code that has to run everywhere. So each weak symbol must name its own namespace, lily::cpu::<instruction set>.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BUILD = Path(__file__).parents[1] / "build"
TARGET = re.compile(r"lily_cpu_(\w+)\.dir$")
DEFINED_WEAK = "WVu"  # nm: weak object or function with a definition, unique global


def kernel_objects(build: Path) -> Iterator[tuple[str, Path]]:
    """(instruction set, object file) of each kernel object below `build`."""
    for folder in sorted(build.glob("**/lily_cpu_*.dir")):
        match = TARGET.search(folder.name)
        if match:
            yield from ((match[1], path) for path in sorted(folder.glob("**/*.o")))


def shared_symbols(isa: str, path: Path) -> list[str]:
    """Demangled names of the weak symbols that `path` defines outside namespace lily::cpu::<isa>."""
    listing = subprocess.run(["nm", "--defined-only", "-P", path], check=True, capture_output=True, text=True).stdout
    namespace = f"4lily3cpu{len(isa)}{isa}"
    symbols = [line.split()[:2] for line in listing.splitlines()]
    names = [name for name, kind in symbols if kind in DEFINED_WEAK and namespace not in name]
    if not names:
        return []
    return subprocess.run(["c++filt", *names], check=True, capture_output=True, text=True).stdout.splitlines()


def main() -> int:
    build = Path(sys.argv[1]) if len(sys.argv) > 1 else BUILD
    missing = [tool for tool in ("nm", "c++filt") if not shutil.which(tool)]
    if missing:
        print(f"{' and '.join(missing)} not found: install binutils", file=sys.stderr)
        return 1
    objects = list(kernel_objects(build))
    if not objects:
        print(f"no kernel objects (lily_cpu_*.dir/**/*.o) below {build}: run 'make setup'", file=sys.stderr)
        return 1
    found = [(isa, path, name) for isa, path in objects for name in shared_symbols(isa, path)]
    for isa, path, name in found:
        print(f"{path.relative_to(build)}: weak symbol outside lily::cpu::{isa}: {name}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
