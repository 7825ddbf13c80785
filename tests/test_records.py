"""Every speed and time in the documentation comes from a committed record and agrees with it."""

import json
from pathlib import Path

import pytest

from bench.citations import Citation, citations, problem, uncited_cells

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_numbers_of_a_page_agree_with_their_records(page: Path) -> None:
    text = page.read_text()
    assert [found for citation in citations(text) if (found := problem(citation, ROOT))] == []
    assert list(uncited_cells(text)) == []


@pytest.mark.parametrize("path", sorted((ROOT / "bench" / "records").glob("*.json")), ids=lambda path: path.stem)
def test_a_record_has_what_the_benchmark_page_shows(path: Path) -> None:
    record = json.loads(path.read_text())
    assert record["bench"] and record["date"] and record["command"] and record["code"]["commit"]
    assert record["machine"]["cpu"] and record["machine"]["usable_cores"]
    assert record["arms"] and all(arm["metrics"] for arm in record["arms"].values())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "r.json").write_text(json.dumps({"arms": {"lily": {"median": 1234.5678, "name": "x"}}}))
    return tmp_path


@pytest.mark.parametrize("shown", ["1,235", "1234.6", "1,234.57", "1234.5678"])
def test_rounding_follows_the_digits_shown(root: Path, shown: str) -> None:
    assert problem(Citation(shown, "r.json", "arms.lily.median"), root) is None


@pytest.mark.parametrize(
    ("citation", "words"),
    [
        (Citation("1,234", "r.json", "arms.lily.median"), "shows 1,234"),
        (Citation("1234.5", "r.json", "arms.lily.median"), "is 1234.5678"),
        (Citation("1", "other.json", "arms"), "does not exist"),
        (Citation("1", "r.json", "arms.lily.mean"), "has no arms.lily.mean"),
        (Citation("1", "r.json", "arms.lily.name"), "not a number"),
        (Citation("1", "r.json", "arms.lily"), "not a number"),
    ],
)
def test_a_wrong_citation_is_named(root: Path, citation: Citation, words: str) -> None:
    assert words in (problem(citation, root) or "")


CITED = "12.5 <!-- record: r.json#a.b -->"
TABLE = "| what | {header} |\n|---|---:|\n| lily | {cell} |\n"


def test_citations_are_found_with_their_numbers() -> None:
    assert list(citations(f"It reads {CITED} tok/s.")) == [Citation("12.5", "r.json", "a.b")]


def test_a_citation_without_a_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="follows no number"):
        list(citations("fast <!-- record: r.json#a.b -->"))


@pytest.mark.parametrize(
    ("header", "cell"),
    [
        ("tok/s", "12.5"),
        ("time (ms)", "3"),
        ("decode", "12.5 tok/s"),
        ("load", "2 seconds"),
        ("load", "2 s"),
        ("tok/s", f"{CITED} and 13"),
        ("load", "12.5tok/s"),
    ],
)
def test_a_measured_cell_without_a_record_is_found(header: str, cell: str) -> None:
    assert list(uncited_cells(TABLE.format(header=header, cell=cell))) == [cell]


@pytest.mark.parametrize(
    ("header", "cell"),
    [("tok/s", CITED), ("tok/s", "not measured yet"), ("bytes", "12"), ("layer's", "3"), ("E/s", "4"), ("S", "f32")],
)
def test_other_cells_need_no_record(header: str, cell: str) -> None:
    assert list(uncited_cells(TABLE.format(header=header, cell=cell))) == []


def test_the_unit_may_stand_in_front_of_the_row() -> None:
    assert list(uncited_cells("| what | 256 | 4096 |\n|---|---|---|\n| decode at 1, tok/s | 7 | 8 |\n")) == ["7", "8"]
