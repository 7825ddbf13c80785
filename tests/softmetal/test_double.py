"""Software Metal: what it runs, and every misuse that it reports, on Metal 3 and Metal 4."""

import ctypes
import re

import pytest

from tests.softmetal.build import build
from tests.softmetal.control import Control

BOTH = pytest.mark.parametrize("metal4", [False, True], ids=["metal3", "metal4"])
NOTHING: list[str] = []
ONLY_THE_DEVICE = {"SoftDevice": 1}  # which lives as long as the process


@pytest.fixture(scope="session")
def driver():
    library = ctypes.CDLL(str(build()))
    library.run_scenario.restype = ctypes.c_char_p
    return library


@pytest.fixture
def control(driver):
    control = Control(driver)
    control.configure()
    control.take_reports()
    yield control
    control.configure()


@pytest.fixture
def scenario(driver, control):
    """Runs a scenario: what it says of itself, and what software Metal reported."""

    def run(name, metal4, **settings):
        control.configure(**settings)
        said = driver.run_scenario(name.encode(), int(metal4)).decode()
        return said, control.take_reports()

    return run


@BOTH
@pytest.mark.parametrize("reverse", [False, True])
def test_dispatches_behind_a_barrier(scenario, metal4, reverse):
    assert scenario("barrier", metal4, reverse=reverse) == ("8", NOTHING)


@BOTH
@pytest.mark.parametrize(("reverse", "value"), [(False, "8"), (True, "5")])
def test_a_missing_barrier_is_reported_and_shows_in_reverse(scenario, metal4, reverse, value):
    said, reports = scenario("no barrier", metal4, reverse=reverse)
    assert said == value
    assert reports == ["no barrier between dispatches that share memory: add argument 0, twice argument 0"]


@BOTH
def test_readers_need_no_barrier(scenario, metal4):
    assert scenario("readers without a barrier", metal4) == ("4 5", NOTHING)


@BOTH
def test_parts_of_one_buffer_need_no_barrier(scenario, metal4):
    assert scenario("parts of one buffer without a barrier", metal4) == ("2 2 1", NOTHING)


@BOTH
def test_a_submission_that_may_overlap_an_earlier_one(scenario, metal4):
    _, reports = scenario("submission not waited for", metal4)
    assert "a submission shares an untracked buffer with an earlier one that was not waited for" in reports


@BOTH
@pytest.mark.parametrize("name", ["submission waited for", "submission ordered on the GPU"])
def test_submissions_in_order(scenario, metal4, name):
    assert scenario(name, metal4) == ("8", NOTHING)


def test_a_queue_barrier_orders_submissions_of_metal4(scenario):
    assert scenario("queue barrier", True) == ("8", NOTHING)


def test_a_wait_behind_the_work_orders_nothing(scenario):
    assert scenario("wait behind the work", False) == ("2", ["a wait behind the work does not order it"])


@BOTH
@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("nothing bound", r"add argument 1: no buffer is bound"),
        ("freed buffer", r"twice argument 0: the buffer was freed"),
        (
            "access past the end",
            r"twice: access outside a buffer: .* \(\d+ bytes past the end of 'floats' \(1024 bytes\)\)",
        ),
        ("too much threadgroup memory", r"large declares 32800 bytes of threadgroup memory, the limit is 32768"),
        ("unknown function", r"the descriptor has no function"),
        ("source that does not compile", r"program_source:2:3: error: void function 'f'"),
    ],
)
def test_errors_that_reach_the_host(scenario, metal4, name, report):
    said, reports = scenario(name, metal4)
    assert re.search(report, said)
    assert all(r == said for r in reports)


@pytest.mark.parametrize(
    ("name", "metal4", "report"),
    [
        ("buffer that is not resident", True, "twice argument 0: 'floats' is not resident"),
        ("residency without commit", True, "twice argument 0: 'buffer' is not resident"),
        ("offset past the end", True, "twice argument 0: the buffer was freed"),
    ],
)
def test_errors_of_addresses(scenario, name, metal4, report):
    assert scenario(name, metal4) == (report, [report])


@pytest.mark.parametrize("name", ["buffer that is not resident", "residency without commit"])
def test_what_metal3_binds_is_resident(scenario, name):
    assert scenario(name, False) == ("", NOTHING)


@pytest.mark.parametrize(
    ("name", "metal4", "report"),
    [
        ("offset past the end", False, "offset 1088 is past the end of 'floats' (1024 bytes)"),
        ("encoder left open", False, "commit with an open encoder"),
        ("encoder left open", True, "endCommandBuffer with an open encoder"),
        ("encoder used after its end", False, "dispatch after endEncoding"),
        ("encoder used after its end", True, "dispatch after endEncoding"),
        ("endEncoding twice", False, "endEncoding twice"),
        ("endEncoding twice", True, "endEncoding twice"),
        ("commit twice", False, "a committed command buffer was changed"),
        ("commit twice", True, "commit of a command buffer that is not ended, or twice"),
        ("allocator reset in use", True, "a command allocator was reset while its commands are in use"),
        ("no copy off a page", False, "a buffer without a copy must be whole pages"),
        ("private contents", False, "contents of a private buffer"),
        ("empty grid", False, "twice: the grid is empty"),
        ("empty grid", True, "twice: the grid is empty"),
        ("ragged threadgroup", False, "twice: 33 threads per threadgroup: not a multiple of 32 up to 1024"),
        ("ragged threadgroup", True, "twice: 33 threads per threadgroup: not a multiple of 32 up to 1024"),
    ],
)
def test_misuse_is_reported(scenario, name, metal4, report):
    assert report in scenario(name, metal4)[1]


def test_longest_buffer(scenario):
    said, reports = scenario("long buffer", False, max_buffer_length=1 << 20)
    assert (said, reports) == ("refused", ["a buffer of 1048577 bytes, maxBufferLength is 1048576"])


@BOTH
def test_no_copy_buffers_release_their_memory(scenario, metal4):
    said, reports = scenario("no copy", metal4)
    assert said.startswith("8.0") and reports == NOTHING


def test_new_memory_is_nan(scenario):
    said, reports = scenario("new memory", False)
    assert said.lstrip("-") == "nan" and reports == NOTHING
    assert scenario("large memory", False, max_buffer_length=1 << 34) == ("nan nan nan number ", NOTHING)


@BOTH
def test_macros_and_function_names(scenario, metal4):
    assert scenario("macros", metal4) == ("5 twice", NOTHING)


@BOTH
def test_ordered_failures(scenario, metal4):
    assert scenario("failure", metal4, fail_code=8) == ("ordered by the test, 1", NOTHING)
    assert scenario("failure", metal4, fail_after=1, fail_code=8) == (", 2", NOTHING)


@BOTH
def test_a_stalled_gpu(scenario, control, metal4):
    assert scenario("stall", metal4, stalls=True) == ("waiting", NOTHING)
    control.configure()
    assert control.left_over(ONLY_THE_DEVICE) == {}  # its reports are not the next test's


def test_binary_archives(scenario):
    assert scenario("archive", False) == ("added saved hit miss", NOTHING)


@BOTH
def test_hosts_leave_no_objects(scenario, control, metal4):
    for _ in range(3):
        scenario("barrier", metal4)
    assert control.left_over(ONLY_THE_DEVICE) == {}
