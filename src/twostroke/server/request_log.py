"""One line a request on stderr: what it was, how it ended, what each phase took. No prompt text."""

from __future__ import annotations

import json
import sys
from dataclasses import field
from typing import Any, TextIO

from twostroke.dataclass import dataclass
from twostroke.record import PHASES, RequestRecord


@dataclass(slots=True)
class Facts:
    """What is known about one request; routes fill it in."""

    id: str
    route: str = ""
    caller: str = ""
    model: str | None = None
    user: str | None = None
    stream: bool = False
    status: int = 0
    error: str | None = None
    seconds: float = 0.0
    records: list[RequestRecord] = field(default_factory=list)


class RequestLog:
    """Writes the lines; format `text` for people, `json` for programs, `off` for nobody."""

    def __init__(self, form: str, target: TextIO | None = None) -> None:
        self._form = form
        self._target = target

    def write(self, facts: Facts) -> None:
        """Write one line."""
        if self._form == "off":
            return
        line = _json(facts) if self._form == "json" else _text(facts)
        print(line, file=self._target or sys.stderr, flush=True)


def _json(facts: Facts) -> str:
    document: dict[str, Any] = {
        name: getattr(facts, name) for name in Facts.__slots__ if name != "records"
    }
    document["records"] = [r.to_dict() for r in facts.records]
    return json.dumps(document, separators=(",", ":"))


def _text(facts: Facts) -> str:
    parts = [facts.id, facts.route, str(facts.status), f"{facts.seconds * 1e3:.0f} ms"]
    if facts.caller:
        parts.append(facts.caller)
    if facts.user is not None:
        parts.append(f"user={json.dumps(facts.user)}")
    if facts.error is not None:
        parts.append(f"error={facts.error}")
    parts.extend(_phases(record) for record in facts.records)
    return " ".join(parts)


def _phases(record: RequestRecord) -> str:
    known = ((name, getattr(record.phases, f"{name}_s")) for name in PHASES)
    times = " ".join(f"{name}={s * 1e3:.1f}" for name, s in known if s is not None and s >= 5e-5)
    prompt, output = record.prompt, record.output
    reason = f" miss={record.cache.reason}" if record.cache.reason else ""
    return (
        f"[prompt={prompt.cached}+{prompt.new} output={output.total} ms: {times}"
        f" finish={record.finish}{reason}]"
    )
