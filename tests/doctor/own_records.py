"""Records as our own engine makes them, and their findings."""

from __future__ import annotations

from twostroke.record import OutputTokens, PhaseTimes, PromptTokens, RequestRecord
from twostroke_doctor import Parsed
from twostroke_doctor.diagnose import diagnose
from twostroke_doctor.given import make_given


def own(**more):
    """A request of our engine; parts of the wait by keyword, the sum as its total."""
    parts = {k: more.pop(k) for k in list(more) if k in PhaseTimes.__dataclass_fields__}
    phases = PhaseTimes(**parts)
    output = more.pop("output", 101)
    decode = phases.decode_s
    fields = {
        "phases": phases,
        "e2e_s": phases.known_s(),
        "prompt": PromptTokens(total=1000, cached=0, new=1000),
        "output": OutputTokens(total=output),
        "prefill_tok_s": 1000 / phases.prefill_s if phases.prefill_s else None,
        "decode_tok_s": (output - 1) / decode if decode else None,
    }
    return RequestRecord(**{**fields, **more})


def findings_of(*records, facts=(), windows=(), **flags):
    parsed = Parsed()
    parsed.add_all([*facts, *windows, *records])
    return diagnose(parsed, make_given(**flags)).findings
