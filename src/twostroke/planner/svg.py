"""A plan as one SVG: roofline with both phases, wait against prompt, throughput against batch.

Plain text in, plain text out: no library, no script, nothing fetched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from twostroke.errors import ConfigError
from twostroke.planner.plan import Plan
from twostroke.predict.cost import Span, Work
from twostroke.predict.predictor import Predictor

_WIDTH, _HEIGHT, _PAD = 360, 260, 46
_PREFILL, _DECODE, _ROOF = "#c2410c", "#1d4ed8", "#525252"
Points = Sequence[tuple[float, float]]


def plan_svg(plan: Plan) -> str:
    """Return the three charts.

    Raises:
        ConfigError: the device's rates or the model's shape are unknown: nothing can be drawn.
    """
    predictor = plan.predictor
    if predictor is None or predictor.missing:
        missing = plan.memory.missing + (predictor.missing if predictor else ())
        raise ConfigError("nothing to plot: speed is unknown", value=", ".join(missing))
    charts = (
        _roofline(plan, predictor),
        _wait(plan, predictor),
        _throughput(plan, predictor),
    )
    body = "".join(
        f'<g transform="translate({i * (_WIDTH + 20)},0)">{chart}</g>'
        for i, chart in enumerate(charts)
    )
    width = 3 * _WIDTH + 40
    title = escape(f"{plan.shape.name} on {plan.target.name}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT + 30}" '
        f'font-family="sans-serif" font-size="11"><title>{title}</title>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<g transform="translate(0,20)">{body}</g></svg>\n'
    )


class _Axes:
    """Logarithmic axes that hold all points given."""

    def __init__(self, title: str, x_label: str, y_label: str, points: Points) -> None:
        xs, ys = [x for x, _ in points], [y for _, y in points]
        self._x = (math.log10(min(xs)), math.log10(max(xs)))
        self._y = (math.log10(min(ys)), math.log10(max(ys)))
        self.parts = [_text(_WIDTH / 2, 0, title, bold=True)]
        self.parts.append(_text(_WIDTH / 2, _HEIGHT - 6, x_label))
        self.parts.append(_text(_PAD, 14, y_label, anchor="start"))
        self._ticks()

    def place(self, x: float, y: float) -> tuple[float, float]:
        def at(value: float, span: tuple[float, float]) -> float:
            return (math.log10(value) - span[0]) / ((span[1] - span[0]) or 1.0)

        inner = _WIDTH - 2 * _PAD
        height = _HEIGHT - 2 * _PAD
        return _PAD + at(x, self._x) * inner, _HEIGHT - _PAD - at(y, self._y) * height

    def _ticks(self) -> None:
        bottom = _HEIGHT - _PAD
        self.parts.append(
            f'<path d="M{_PAD} {_PAD}V{bottom}H{_WIDTH - _PAD}" fill="none" stroke="{_ROOF}"/>'
        )
        for span, is_x in ((self._x, True), (self._y, False)):
            for power in range(math.ceil(span[0]), math.floor(span[1]) + 1):
                value = 10.0**power
                low = 10.0 ** (self._y if is_x else self._x)[0]
                x, y = self.place(value, low) if is_x else self.place(low, value)
                shown = _number(value)
                self.parts.append(
                    _text(x, y + 14, shown) if is_x else _text(x - 4, y + 4, shown, anchor="end")
                )

    def line(self, points: Points, color: str, label: str = "") -> None:
        places = [self.place(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        )
        if label:
            x, y = places[len(places) // 2]
            self.parts.append(_text(x, y - 6, label, color=color))

    def dot(self, x: float, y: float, color: str, label: str) -> None:
        at_x, at_y = self.place(x, y)
        self.parts.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="4" fill="{color}"/>')
        self.parts.append(_text(at_x, at_y + 16, label, color=color))

    def svg(self) -> str:
        return "".join(self.parts)


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "middle",
    color: str = "#171717",
    bold: bool = False,
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}"{weight}>'
        f"{escape(text)}</text>"
    )


def _number(value: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _roofline(plan: Plan, predictor: Predictor) -> str:
    """Operations per second against operations per byte, with the two phases on the roof."""
    cost, speed = predictor.cost, predictor.speed
    prompt = plan.ask.prompt
    prefill = cost.spans_work((Span(0, prompt, 1),)).total
    decode = cost.spans_work((Span(prompt, prompt + 1, 1),)).total
    working_set = max(decode.weight_bytes, 1.0)
    bandwidth = speed.bandwidth_at(working_set)
    arithmetic_s = speed.arithmetic_s(prefill)
    assert bandwidth is not None and arithmetic_s is not None
    peak = prefill.num_ops / arithmetic_s

    def on_roof(work: Work) -> tuple[float, float]:
        intensity = work.num_ops / work.num_bytes
        return intensity, min(peak, intensity * bandwidth)

    marks = (on_roof(prefill), on_roof(decode))
    ridge = peak / bandwidth
    left = min(0.3, marks[1][0] / 2)
    right = max(ridge, marks[0][0]) * 3
    roof = ((left, left * bandwidth), (ridge, peak), (right, peak))
    axes = _Axes("roofline", "operations per byte", "operations per second", roof)
    axes.line(roof, _ROOF)
    axes.dot(*marks[0], _PREFILL, f"prefill of {prompt:,}")
    axes.dot(*marks[1], _DECODE, "decode")
    return axes.svg()


def _wait(plan: Plan, predictor: Predictor) -> str:
    """Time to the first token and total wait against the prompt's length."""
    most = max(plan.ask.context, 2048)
    prompts = _powers(64, most)
    first, total = [], []
    for prompt in prompts:
        one = predictor.request(prompt, plan.ask.output, chunk=plan.setup.batch_tokens)
        assert one.ttft is not None and one.total is not None
        first.append((float(prompt), one.ttft.value))
        total.append((float(prompt), one.total.value))
    axes = _Axes("wait", "prompt tokens", "seconds", first + total)
    axes.line(first, _PREFILL, "first token")
    axes.line(total, _DECODE, f"and {plan.ask.output} tokens")
    return axes.svg()


def _throughput(plan: Plan, predictor: Predictor) -> str:
    """Tokens per second of all streams and of each against the batch."""
    both: list[list[tuple[float, float]]] = [[], []]
    for batch in _powers(1, 128):
        step = predictor.decode(plan.ask.prompt + 1, batch=batch)
        assert step is not None
        both[0].append((float(batch), batch / step.value))
        both[1].append((float(batch), 1.0 / step.value))
    axes = _Axes("decode throughput", "streams at once", "tokens per second", both[0] + both[1])
    axes.line(both[0], _PREFILL, "all streams")
    axes.line(both[1], _DECODE, "each")
    return axes.svg()


def _powers(low: int, high: int) -> list[int]:
    values = []
    while low < high:
        values.append(low)
        low *= 2
    return [*values, high]
