"""A public report as data: log text, records where no engine prints the numbers, flags."""

from __future__ import annotations

from dataclasses import dataclass, field

from twostroke.record import Meter, OutputTokens, PhaseTimes, PromptTokens, RequestRecord
from twostroke_doctor import Fact


@dataclass(frozen=True)
class Case:
    """The facts of a report, and the code that they prove.

    files: name -> log text. records, facts: where no engine prints the posted numbers. flags: of
    `make_given`. next: codes that the rest still proves when a fact is taken away. share: of the
    wait, of the first finding. also: codes that follow it.
    """

    name: str
    code: str
    files: dict[str, str] = field(default_factory=dict)
    records: tuple[RequestRecord, ...] = ()
    facts: tuple[Fact, ...] = ()
    flags: dict[str, object] = field(default_factory=dict)
    next: tuple[str, ...] = ()
    share: float | None = None
    also: tuple[str, ...] = ()


def one(text, **more):
    """Fields of a case whose log is one file."""
    return {"files": {"a.log": text}, **more}


def request(new=None, prefill_s=None, output=None, decode_s=None, *, lines=(), **more):
    """A record with the rates that a parser would compute."""
    fields = {
        "engine": "client",
        "prompt": PromptTokens(
            new=new, total=more.pop("total", None), cached=more.pop("cached", None)
        ),
        "output": OutputTokens(total=output, reasoning=more.pop("reasoning", None)),
        "phases": PhaseTimes(prefill_s=prefill_s, decode_s=decode_s, **more.pop("phases", {})),
        "prefill_tok_s": new / prefill_s if new and prefill_s and new >= 32 else None,
        "decode_tok_s": (output - 1) / decode_s if output and output > 1 and decode_s else None,
        "meter": Meter(
            source="client",
            flags=more.pop("flags", ()),
            file=more.pop("file", "a.log"),
            lines=lines,
        ),
    }
    return RequestRecord(**{**fields, **more})
