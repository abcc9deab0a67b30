"""A diagnosis as one self-contained HTML file: no script, no style or font from elsewhere.

Every text is escaped; the pictures are inline SVG. Long logs are drawn in bins, so that the file
stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from twostroke.record import RequestRecord, WindowRecord
from twostroke_doctor.finding import Diagnosis, Finding
from twostroke_doctor.parsed import Parsed
from twostroke_doctor.report import (
    measures,
    phase_name,
    place_text,
    printable,
    read_text,
    saving_text,
    seconds_text,
    sentence,
    share_text,
)
from twostroke_doctor.wait import WAIT_PHASES, phase_seconds

MIN_FOR_SERIES = 8
MAX_BINS = 240
_WIDTH, _HEIGHT, _BAR_HEIGHT = 900, 160, 40
_LEAST_HEIGHT = 0.1  # lower parts of a stack cannot be seen
_COLOURS = {
    "queue": "#b07aa1",
    "load": "#9c755f",
    "init": "#edc948",
    "cache": "#76b7b2",
    "prefill": "#4e79a7",
    "stall": "#ff9da7",
    "decode": "#f28e2b",
    "tail": "#59a14f",
    "inference": "#8c8c8c",
    "unaccounted": "#bab0ac",
}
_WINDOW_LINES: tuple[tuple[str, Callable[[WindowRecord], float | None], str], ...] = (
    ("requests waiting", lambda w: w.waiting, "#e15759"),
    ("requests running", lambda w: w.running, "#4e79a7"),
    ("KV cache used", lambda w: w.kv_usage, "#59a14f"),
    ("generation, tok/s", lambda w: w.output_tok_s, "#f28e2b"),
)
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.4em}h2{font-size:1.1em;margin-bottom:.2em}
svg{width:100%;height:auto;display:block}
table{border-collapse:collapse}td,th{padding:.1em .8em .1em 0;text-align:left;vertical-align:top}
.where{color:#666;white-space:nowrap}.key{display:inline-block;width:.8em;height:.8em}
small{color:#666}@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}}
"""


def text(value: str) -> str:
    """Return text safe between tags and in quoted attributes."""
    return escape(printable(value), quote=True)


def html_page(diagnosis: Diagnosis, parsed: Parsed) -> str:
    """Return the whole file."""
    body = [f"<h1>{text(sentence(diagnosis))}</h1>"]
    if diagnosis.wait:
        body += [_bar(diagnosis), _legend(diagnosis)]
    body += [_finding(finding) for finding in diagnosis.findings]
    body += _series(parsed)
    body.append(f"<p><small>{text(read_text(parsed, diagnosis))}</small></p>")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>twostroke doctor</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _bar(diagnosis: Diagnosis) -> str:
    parts, x = [], 0.0
    for name, seconds in diagnosis.wait.items():
        width = _WIDTH * seconds / diagnosis.total_s
        title = f"<title>{text(phase_name(name))} {text(seconds_text(seconds))}</title>"
        parts.append(_rect(name, x, 0, max(width, 0.5), _BAR_HEIGHT, title))
        x += width
    return _svg(parts, _BAR_HEIGHT, "wait by phase")


def _rect(phase: str, x: float, y: float, width: float, height: float, inside: str = "") -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" '
        f'fill="{_COLOURS[phase]}">{inside}</rect>'
    )


def _svg(parts: Sequence[str], height: int, label: str) -> str:
    inside = "".join(parts)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{text(label)}">{inside}</svg>'
    )


def _legend(diagnosis: Diagnosis) -> str:
    rows = "".join(
        f'<tr><td><span class="key" style="background:{_COLOURS[name]}"></span> '
        f"{text(phase_name(name))}</td><td>{text(seconds_text(seconds))}</td>"
        f"<td>{text(share_text(seconds / diagnosis.total_s))}</td></tr>"
        for name, seconds in diagnosis.wait.items()
    )
    return f"<table>{rows}</table>"


def _finding(finding: Finding) -> str:
    evidence = "".join(
        f'<tr><td class="where">{text(place_text(line))}</td><td>{text(line.text)}</td></tr>'
        for line in finding.evidence
    )
    cures = "".join(
        f"<li>{text(cure.what)} <b>{text(saving_text(cure))}</b> "
        f"<small>{text(cure.basis)}</small></li>"
        for cure in finding.cures
    )
    missing = "; ".join(finding.missing)
    return (
        f"<h2>{text(finding.code)} <small>{text(measures(finding))}</small></h2>"
        f"<p>{text(finding.says)}.</p>"
        + (f"<table>{evidence}</table>" if evidence else "")
        + (f"<ul>{cures}</ul>" if cures else "")
        + (f"<p><small>Would prove more: {text(missing)}.</small></p>" if missing else "")
    )


def _series(parsed: Parsed) -> list[str]:
    """Draw how the wait, the load and the cache went over a long log."""
    out = []
    if len(parsed.records) >= MIN_FOR_SERIES:
        out.append("<h2>Wait of each request, by phase, in the order of the log</h2>")
        out.append(_stacked(parsed.records))
    windows = [w for w in parsed.windows if w.running is not None]
    if len(windows) >= MIN_FOR_SERIES:
        out += _window_series(windows)
    return out


def _means(values: Sequence[float | None]) -> list[float | None]:
    """Cut the values into at most MAX_BINS bins and return the mean of the known ones of each."""
    step = max(1, -(-len(values) // MAX_BINS))
    bins = [values[start : start + step] for start in range(0, len(values), step)]
    known = ([value for value in one if value is not None] for one in bins)
    return [sum(one) / len(one) if one else None for one in known]


def _stacked(records: Sequence[RequestRecord]) -> str:
    waits = [phase_seconds(record) for record in records]
    means = {name: _means([wait.get(name, 0.0) for wait in waits]) for name in WAIT_PHASES}
    columns = [[mean or 0.0 for mean in column] for column in zip(*means.values(), strict=True)]
    top = max(map(sum, columns)) or 1.0
    width, parts = _WIDTH / len(columns), []
    for number, column in enumerate(columns):
        y = float(_HEIGHT)
        for name, seconds in zip(WAIT_PHASES, column, strict=True):
            height = _HEIGHT * seconds / top
            if height >= _LEAST_HEIGHT:
                y -= height
                parts.append(_rect(name, number * width, y, width * 0.9, height))
    return _chart(parts, f"highest: {seconds_text(top)}")


def _window_series(windows: Sequence[WindowRecord]) -> list[str]:
    out = []
    for name, value, colour in _WINDOW_LINES:
        points = _means([value(window) for window in windows])
        top = max((point for point in points if point is not None), default=0.0)
        if top > 0:
            out.append(f"<h2>{text(name)}</h2>")
            out.append(_chart([_line(points, top, colour)], f"highest: {top:.4g}"))
    return out


def _line(points: Sequence[float | None], top: float, colour: str) -> str:
    step = _WIDTH / max(len(points) - 1, 1)
    path, pen = [], "M"
    for number, point in enumerate(points):
        if point is None:
            pen = "M"
            continue
        path.append(f"{pen}{number * step:.1f} {_HEIGHT * (1 - point / top):.1f}")
        pen = "L"
    return f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _chart(parts: Sequence[str], caption: str) -> str:
    return f"{_svg(parts, _HEIGHT, caption)}<small>{text(caption)}</small>"
