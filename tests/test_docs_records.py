"""The charts and tables of records in the documentation (dependency group docs)."""

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

EXTENSIONS = Path(__file__).parents[1] / "docs" / "_extensions"


@pytest.fixture
def bench_records(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("sphinx", reason="make docs installs it")
    pytest.importorskip("matplotlib", reason="make docs installs it")
    monkeypatch.syspath_prepend(str(EXTENSIONS))
    import bench_records

    return bench_records


def metric(*values: float) -> dict[str, object]:
    return {"median": sorted(values)[1], "min": min(values), "max": max(values), "values": list(values)}


RECORD = {
    "bench": "decode-x",
    "date": "2030-01-02",
    "command": "python -m bench.run decode --model x",
    "machine": {"cpu": "A processor", "usable_cores": 4},
    "code": {"commit": "0123456789abcdef"},
    "rounds": 3,
    "arms": {
        "lily": {"metrics": {"tokens_per_second": metric(10, 11, 12), "first_ms": metric(1, 2, 3)}},
        "peer": {"metrics": {"tokens_per_second": metric(5, 6, 8)}},
    },
}


# As bench.full_size and bench.accuracy write it: numbers of one run.
SINGLE = {name: value for name, value in RECORD.items() if name != "rounds"} | {
    "bench": "single-x",
    "arms": {"lily": {"metrics": {"load_seconds": 0.5}}},
}


def build(folder: Path, bench_records: ModuleType, monkeypatch: pytest.MonkeyPatch, options: str = "") -> str:
    """HTML of a page that is nothing but the directive."""
    from sphinx.application import Sphinx

    source = folder / "source"
    source.mkdir()
    (source / "index.md").write_text(f"# Records\n\n```{{bench-records}}\n{options}```\n")
    monkeypatch.setattr(bench_records, "RECORDS", folder / "records")
    monkeypatch.setattr(bench_records, "CHARTS", source / "_build" / "charts")
    app = Sphinx(
        source, None, folder / "html", folder / "trees", "html", warningiserror=True, status=None,
        confoverrides={"extensions": ["myst_parser", "bench_records"], "exclude_patterns": ["_build"]},
    )  # fmt: skip
    app.build()
    return (folder / "html" / "index.html").read_text()


def test_records_become_tables_and_charts(
    tmp_path: Path, bench_records: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "decode.json").write_text(json.dumps(RECORD))
    page = build(tmp_path, bench_records, monkeypatch)
    assert "decode-x, 2030-01-02" in page and "A processor, 4 cores, 3 rounds, commit 0123456789ab" in page
    assert "python -m bench.run decode --model x" in re.sub("<[^>]+>", "", page)
    cells = re.findall(r"<td[^>]*><p>(.*?)</p></td>", page)
    assert cells == ["tokens per second", "11", "6", "first ms", "2", ""]
    charts = sorted((tmp_path / "html" / "_images").glob("*.svg"))
    assert len(charts) == 2 and all("<svg" in chart.read_text() for chart in charts)


def test_one_arm_has_a_chart_per_unit_and_the_option_chooses(
    tmp_path: Path, bench_records: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "records").mkdir()
    metrics = {"cold_ms": metric(900, 1000, 1100), "warm_ms": metric(1, 2, 3), "state_mib": metric(60, 61, 62)}
    metrics |= {"warm_part_of_cold": metric(0.001, 0.002, 0.003)}
    one = RECORD | {"bench": "cache-x", "arms": {"lily": {"metrics": metrics}}}
    (tmp_path / "records" / "cache-x.json").write_text(json.dumps(one))
    (tmp_path / "records" / "decode-x.json").write_text(json.dumps(RECORD))
    page = build(tmp_path, bench_records, monkeypatch, ":bench: cache-\n")
    assert "cache-x, 2030-01-02" in page and "decode-x" not in page
    assert "warm part of cold" in page and re.findall(r'alt="([^"]+)"', page) == [
        "milliseconds of cold, warm",
        "MiB of state",
    ]


def test_single_runs_have_a_table_and_no_chart(
    tmp_path: Path, bench_records: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "single.json").write_text(json.dumps(SINGLE))
    page = build(tmp_path, bench_records, monkeypatch)
    assert "A processor, 4 cores, one run, commit" in page
    assert re.findall(r"<td[^>]*><p>(.*?)</p></td>", page) == ["load seconds", "0.5"]
    assert not list((tmp_path / "html" / "_images").glob("*.svg"))


def test_without_records_the_page_says_so(
    tmp_path: Path, bench_records: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "There are no published records yet." in build(tmp_path, bench_records, monkeypatch)
