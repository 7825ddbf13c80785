"""The linter in its own process: libclang crashed in one that had run shaders on software Metal (why is unknown)."""

from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context

from tools.msl import lint as linter
from tools.msl.build import Source


@cache
def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def lint(source: Source) -> list[linter.Finding]:
    return _pool().submit(linter.lint, source).result()
