"""The comparison of stubs sees a change of meaning, not of layout. `make lint` runs it on the real extension."""

from tools.check_stub import differences

STUB = "class Device:\n    def run(self, kernel: str, extent: tuple[int, int]) -> None: ...\n"


def test_layout_is_no_difference() -> None:
    spread = STUB.replace(
        "self, kernel: str, extent: tuple[int, int]", "\n  self,\n  kernel: str, extent: tuple[int, int],\n"
    )
    assert differences(STUB, "# a comment\n" + spread) == []


def test_a_renamed_parameter_is_a_difference() -> None:
    lines = differences(STUB, STUB.replace("kernel:", "name:"))
    assert any(line.startswith("+") and "name: str" in line for line in lines)
