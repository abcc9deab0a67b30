"""Public reports of slow answers: posted facts in, the proven code first out.

Facts stand in the engine's own log format where a user posted such; where the thread only tells
numbers they are records, and the case says so. Without one fact (a log line, a flag, a field of
a record) the answer is the same code, one that the rest still proves (`next`), or UNKNOWN.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.doctor.public_cases import CASES, by_name, examined, findings

IDS = [case.name.split(":")[0] for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_proven_code_comes_first(case):
    first, *rest = findings(case)
    assert first.code == case.code, [(f.code, f.share) for f in (first, *rest)]
    assert set(case.also) <= {f.code for f in rest}
    assert first.evidence, "a code without evidence is a guess"
    assert first.cures or first.code == "UNKNOWN"
    if case.share is not None:
        assert first.share == pytest.approx(case.share, rel=2e-3)


def without_one(case):
    """Yield the case with each line, flag, record, fact and field taken away in turn."""
    for name, text in case.files.items():
        lines = text.splitlines(keepends=True)
        for n in range(len(lines)):
            rest = {**case.files, name: "".join(lines[:n] + lines[n + 1 :])}
            yield f"{name} line {n + 1}", replace(case, files=rest)
    for flag in case.flags:
        yield flag, replace(case, flags={k: v for k, v in case.flags.items() if k != flag})
    for n in range(len(case.facts)):
        yield f"fact {n}", replace(case, facts=case.facts[:n] + case.facts[n + 1 :])
    for n, record in enumerate(case.records):
        others = (case.records[:n], case.records[n + 1 :])
        yield f"record {n}", replace(case, records=others[0] + others[1])
        for field_name, poorer in poorer_records(record):
            yield (
                f"record {n} {field_name}",
                replace(case, records=(*others[0], poorer, *others[1])),
            )


def poorer_records(record):
    for part in ("phases", "prompt", "output"):
        value = getattr(record, part)
        for name in value.__dataclass_fields__:
            if getattr(value, name) is not None:
                poorer = replace(record, **{part: replace(value, **{name: None})})
                yield f"{part}.{name}", recomputed(poorer)
    for name in ("e2e_s", "t_arrival_s", "ctx_end", "model"):
        if getattr(record, name) is not None:
            yield name, replace(record, **{name: None})
    if record.meter.flags:
        yield "flags", replace(record, meter=replace(record.meter, flags=()))
    if record.reported:
        yield "reported", replace(record, reported={})


def recomputed(record):
    """Rates are derived: they go with what they are derived from."""
    p, new, n = record.phases, record.prompt.new, record.output.total
    return replace(
        record,
        prefill_tok_s=new / p.prefill_s if new and p.prefill_s else None,
        decode_tok_s=(n - 1) / p.decode_s if n and p.decode_s else None,
    )


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_fact_taken_away_never_gives_a_wrong_code(case):
    allowed = {case.code, *case.next, "UNKNOWN"}
    for what, poorer in without_one(case):
        first = findings(poorer)[0]
        assert first.code in allowed, f"without {what}: {first.code}, {first.says}"
        if first.code == "UNKNOWN":
            assert first.missing, f"without {what}: nothing is named as missing"


def test_never_advises_from_little_without_saying_so():
    assert "from 1 request only" in examined(by_name("D25"))[0].caveats
