"""Numbers that pages take from records."""

from pathlib import Path

from bench.citations import citations, problem


def test_names_with_dots(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"arms": {"llama": {"cpp": 1}, "llama.cpp": {"x": 2}}}')
    found = list(citations("2 <!-- record: r.json#arms.llama.cpp.x -->"))
    assert [problem(citation, tmp_path) for citation in found] == [None]
