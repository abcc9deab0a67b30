"""One generation that a route was asked for: who asks, since when, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from starlette.requests import Request

from twostroke.dataclass import dataclass
from twostroke.record import RequestRecord
from twostroke.request import FinishReason
from twostroke.server.answers import Piece
from twostroke.server.auth import Caller
from twostroke.server.history import Trimmed
from twostroke.server.request_log import Facts
from twostroke.server.service import Service
from twostroke.server.timings import timings, unix_now


@dataclass(slots=True)
class Asked:
    """Gathered while a request is answered. Units: start_s on the monotonic clock."""

    service: Service
    facts: Facts
    caller: Caller
    start_s: float
    created: int = field(default_factory=unix_now)
    bound: str | None = None
    seed: int | None = None
    trimmed: Trimmed | None = None
    records: list[RequestRecord] = field(default_factory=list)
    num_output: int = 0

    def take(self, piece: Piece) -> None:
        """Count one piece."""
        self.num_output += len(piece.token_ids)
        if piece.record is not None:
            self.records.append(piece.record)
            self.facts.records.append(piece.record)

    def report(self) -> dict[str, Any]:
        """Return our own block of a reply: the records, and what the server decided."""
        return {
            "records": [record.to_dict() for record in self.records],
            "seed": self.seed,
            "max_tokens_from": self.bound,
            "history": self.trimmed.report() if self.trimmed is not None else None,
        }

    def timings(self) -> dict[str, Any] | None:
        """Return llama.cpp's block for the first answer."""
        return timings(self.records[0] if self.records else None)


def asked_by(request: Request, *, model: str | None, user: str | None, stream: bool) -> Asked:
    """Begin to answer a request whose body has been read.

    Raises:
        UnknownModel, NotReady: it cannot be answered here, or now.
    """
    service: Service = request.app.state.service
    facts: Facts = request.state.facts
    service.check_ready()
    facts.model, facts.user, facts.stream = service.check_model(model), user, stream
    facts.caller = request.state.caller.name
    return Asked(service, facts, request.state.caller, time.monotonic())


def finish_name(reason: FinishReason | None) -> str | None:
    """Return OpenAI's word for a finish reason."""
    if reason is None:
        return None
    return "stop" if reason is FinishReason.STOP else reason.value


def plain_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Return checked messages as the templates expect them: content is one string."""
    return [_plain(m.model_dump(exclude_none=True)) for m in messages]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    return {**message, "content": content if content is not None else ""}
