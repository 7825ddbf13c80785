from __future__ import annotations

import subprocess
import sys

import pytest

from lily.log import show_log


def stderr_of_import(level: str, code: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import lily, logging\n{code}"],
        env={"LILY_LOG": level},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


SPEAK = """
log = logging.getLogger("lily")
log.debug("quiet"), log.info("loud")
"""


def test_the_environment_chooses_the_level() -> None:
    assert stderr_of_import("", SPEAK) == ""
    assert stderr_of_import("info", SPEAK).endswith("INFO lily: loud\n")
    assert len(stderr_of_import("debug", SPEAK).splitlines()) == 2


def test_an_unknown_level_is_named() -> None:
    assert stderr_of_import("loud") == "LILY_LOG is 'loud'; it must be one of debug, info, warning, error\n"
    with pytest.raises(ValueError, match="debug, info, warning, error"):
        show_log("loud")


def test_a_program_that_configures_logging_sees_a_message_once() -> None:
    assert stderr_of_import("info", "logging.basicConfig(level=0)" + SPEAK).count("loud") == 1
