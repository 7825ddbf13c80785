"""One file of tests on the GPU, in a process of its own: after a fault a process can use its GPU no more.

python -m tools.ptx.session FOLDER FORM FILE OUT.json
"""

import json
import sys
from pathlib import Path

from .cuda import Gpu
from .device import Device, Kernels
from .folder import PtxFolder
from .kernel_tests import put_in_place_of_lily, run_tests


def main() -> None:
    folder, form, file, out = sys.argv[1:]
    kernels = Kernels(Gpu(), PtxFolder(Path(folder)), form)
    put_in_place_of_lily(lambda sizes, eps: Device(kernels, sizes, eps))
    outcomes = run_tests([Path(file)])
    Path(out).write_text(json.dumps({"kernels": kernels.ran, **vars(outcomes)}), encoding="utf-8")


if __name__ == "__main__":
    main()
