"""Threads that are in native code while the interpreter ends. It hands them no GIL, and must not be aborted by that."""

import subprocess
import sys

import pytest

# The interpreter deletes `slow` after the point from which it ends every other thread that asks for the GIL.
CODE = """
import threading, time
from lily import Engine, _core

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(2)

slow = Slow()
started = threading.Event()

def work():
    while True:
        {call}
        started.set()

threading.Thread(target=work, daemon=True).start()
started.wait()
"""


@pytest.mark.parametrize("call", ["_core.multiply_rate()", 'Engine("lily-nano", progress=False)'])
def test_a_thread_that_comes_back_from_native_code(call: str) -> None:
    done = subprocess.run([sys.executable, "-c", CODE.format(call=call)], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
