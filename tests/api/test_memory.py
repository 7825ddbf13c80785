from __future__ import annotations

import pytest

from lily.memory import available_bytes, default_limit, format_bytes, parse_bytes, total_bytes


@pytest.mark.parametrize(
    ("size", "expected"),
    [(5, 5), ("24GiB", 24 * 2**30), ("24 gib", 24 * 2**30), ("1.5KB", 1500), ("10B", 10), ("2TiB", 2 * 2**40)],
)
def test_sizes(size: int | str, expected: int) -> None:
    assert parse_bytes(size) == expected


@pytest.mark.parametrize("size", [0, -1, "0GiB", "24G", "24", "GiB", "-1GiB", "1e3GiB", "", 2**64, "9" * 400 + "B"])
def test_bad_sizes(size: int | str) -> None:
    with pytest.raises(ValueError, match="memory size"):
        parse_bytes(size)


def test_nothing_is_a_size_where_that_makes_sense() -> None:
    assert parse_bytes(0, least=0) == parse_bytes("0GiB", least=0) == 0
    with pytest.raises(ValueError, match="at least 0 B and at most"):
        parse_bytes(-1, least=0)


@pytest.mark.parametrize("size", [True, 1.5, None])
def test_wrong_types(size: object) -> None:
    with pytest.raises(TypeError, match="memory size"):
        parse_bytes(size)  # type: ignore[arg-type]


def test_formatting() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 2**30, 3 * 2**40)] == [
        "0 B",
        "1023 B",
        "1.50 KiB",
        "1.00 GiB",
        "3.00 TiB",
    ]


def test_the_machine() -> None:
    assert 0 < default_limit() < available_bytes() <= total_bytes()
