"""The directive `bench-records`: tables and charts of the records in bench/records, drawn when the pages are built."""

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

RECORDS = Path(__file__).parents[2] / "bench" / "records"
UNITS = {"ms": "milliseconds", "mib": "MiB", "bytes": "bytes", "seconds": "seconds", "us": "microseconds"}
WIDE = 100  # bars that differ by more are drawn on a logarithmic scale
CHARTS = Path(__file__).parents[1] / "_build" / "charts"


class BenchRecords(SphinxDirective):
    """For each record its date, machine, command, a table of medians, and charts of several rounds.

    Of several arms a chart per metric; of one arm a chart per unit. Option `bench`: only records whose name starts so.
    """

    option_spec = {"bench": directives.unchanged_required}  # noqa: RUF012  # docutils reads it from the class

    def run(self) -> list[nodes.Node]:
        paths = sorted(RECORDS.glob(f"{self.options.get('bench', '')}*.json"))
        self.env.note_dependency(str(RECORDS))
        if not paths:
            return [nodes.paragraph(text="There are no published records yet.")]
        return [node for path in paths for node in self._record(path)]

    def _record(self, path: Path) -> list[nodes.Node]:
        self.env.note_dependency(str(path))
        record = json.loads(path.read_text())
        machine = record["machine"]
        section = nodes.section(ids=[nodes.make_id(path.stem)])
        section += nodes.title(text=f"{record['bench']}, {record['date']}")
        code = record["code"]["commit"][:12]
        rounds = f"{record['rounds']} rounds" if "rounds" in record else "one run"
        gpu = f", {machine['gpu']}" if "gpu" in machine else ""
        about = f"{machine['cpu']}, {machine['usable_cores']} cores{gpu}, {rounds}, commit {code}: "
        section += nodes.paragraph("", about, nodes.literal(text=record["command"]))
        section += _table(record["arms"])
        for number, (title, bars) in enumerate(_charts(record["arms"]).items()):
            chart = CHARTS / f"{path.stem}-{number}.svg"
            draw(title, bars, chart)
            relative = "/" + chart.relative_to(Path(self.env.srcdir)).as_posix()
            section += nodes.image(uri=relative, alt=f"{title} of {', '.join(bars)}")
        return [section]


def _charts(arms: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Bars by title; a single number, which has no spread, has no chart."""
    charts: dict[str, dict[str, Any]] = {}
    for metric in _metrics(arms):
        shown = {name: arm["metrics"][metric] for name, arm in arms.items() if metric in arm["metrics"]}
        if not all(isinstance(value, dict) for value in shown.values()):
            continue
        name, _, unit = metric.rpartition("_")
        if len(arms) > 1 or metric.endswith("_per_second"):
            charts[metric.replace("_", " ")] = shown
        elif unit in UNITS:
            (value,) = shown.values()
            charts.setdefault(UNITS[unit], {})[name.replace("_", " ")] = value
    return charts


def _metrics(arms: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for arm in arms.values() for name in arm["metrics"]))


def _median(value: Any) -> float:
    """Of the rounds; of a single run its number."""
    return float(value["median"] if isinstance(value, dict) else value)


def _table(arms: dict[str, Any]) -> nodes.table:
    """Medians: a row per metric, a column per arm."""
    rows = [["median", *arms]]
    for metric in _metrics(arms):
        values = (arm["metrics"].get(metric) for arm in arms.values())
        rows.append(
            [metric.replace("_", " "), *("" if value is None else f"{_median(value):,.4g}" for value in values)]
        )
    group = nodes.tgroup(cols=len(rows[0]))
    group += [nodes.colspec(colwidth=1) for _ in rows[0]]
    head, body = nodes.thead(), nodes.tbody()
    for row in rows:
        line = nodes.row()
        line += [nodes.entry("", nodes.paragraph(text=cell)) for cell in row]
        (head if row is rows[0] else body).append(line)
    group += [head, body]
    return nodes.table("", group)


def draw(title: str, shown: dict[str, Any], path: Path) -> None:
    """A bar each: the median, with the smallest and the largest round."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.6 + 0.4 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    medians = [value["median"] for value in shown.values()]
    spread = [
        [value["median"] - value["min"] for value in shown.values()],
        [value["max"] - value["median"] for value in shown.values()],
    ]
    bars = axes.barh(list(shown), medians, xerr=spread, height=0.6, color="#7a6bb0", ecolor="#888888", capsize=3)
    axes.bar_label(bars, fmt="%.4g", padding=4, color="#888888")
    if min(medians) > 0 and max(medians) > WIDE * min(medians):
        axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_title(title, fontsize="medium", color="#888888", loc="left")
    axes.margins(x=0.15)
    axes.tick_params(colors="#888888")
    for side in axes.spines.values():
        side.set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, transparent=True)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("bench-records", BenchRecords)
    return {"version": "1", "parallel_read_safe": False}
