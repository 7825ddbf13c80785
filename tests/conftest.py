"""What all tests share: the small model that comes with the package, and how thorough property tests are."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import hypothesis
import pytest

import lily

# A slow, shared machine is no reason for a property test to fail: no deadline per example, and none for making them.
PATIENT = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
# The same examples in every run: one that fails is the fault of the change that is tested. `make soak` draws others.
hypothesis.settings.register_profile("default", PATIENT, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("soak", PATIENT, max_examples=2000)
hypothesis.settings.load_profile("default")

# Skips that no installation could mend say "this machine has no ...", or how the cpu device answers to an
# instruction set that its processor lacks.
OF_THE_MACHINE = re.compile(r'this (machine|file system) |unknown debug switch "(avx|amx|dotprod|i8mm)')


# A shell lets what it starts in the background ignore Ctrl-C, and programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forbid-skips", action="store_true", help="a skip that an installation could mend fails the run")


def forbidden_skips(config: pytest.Config) -> dict[str, str]:
    """Reasons, by tests."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not config.getoption("--forbid-skips") or reporter is None:
        return {}
    reasons = {report.nodeid: report.longrepr[2] for report in reporter.stats.get("skipped", [])}
    return {test: reason for test, reason in reasons.items() if not OF_THE_MACHINE.search(reason)}


def pytest_sessionfinish(session: pytest.Session) -> None:
    if forbidden_skips(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if skips := forbidden_skips(config):
        terminalreporter.section("the run fails: --forbid-skips")
        for test, reason in skips.items():
            terminalreporter.write_line(f"{test}: {reason}")


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What lily keeps from a start to the next, such as machine code of shaders, does not land among the user's."""
    of_user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        if "ZIG_GLOBAL_CACHE_DIR" not in os.environ:  # a library that takes a minute to make again
            environment.setenv("ZIG_GLOBAL_CACHE_DIR", str(of_user / "zig"))
        yield


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """On a busy machine software Metal is slow; that is no hang."""
    with pytest.MonkeyPatch.context() as environment:
        if "LILY_METAL_DEBUG" not in os.environ:
            environment.setenv("LILY_METAL_DEBUG", "timeout=600")
        yield


@pytest.fixture(scope="session")
def lily_nano() -> Path:
    """Folder of lily-nano: a real checkpoint of the family in 8 MB, trained for tests and demos."""
    return Path(lily.__file__).parent / "models" / "lily-nano"


@pytest.fixture
def as_nobody() -> Callable[[], AbstractContextManager[None]]:
    """A context without the right to read everything, which tests often have: root is nobody inside it."""

    @contextmanager
    def context() -> Iterator[None]:
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            if user == 0:
                os.seteuid(user)

    return context
