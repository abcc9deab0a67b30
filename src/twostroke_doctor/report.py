"""A diagnosis as a page of text, and as plain data for JSON.

One sentence, a bar of the wait by phase, then each finding with its evidence and cures. Text
from a log is printed without control characters.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from twostroke.advice import Cure
from twostroke_doctor.finding import CODES, Diagnosis, EvidenceLine, Finding
from twostroke_doctor.parsed import Parsed

SCHEMA_VERSION = 1
WIDTH = 96
BAR_WIDTH = 44
_PHASE_NAMES = {"inference": "prefill and decode", "unaccounted": "not accounted for"}


def printable(text: str) -> str:
    """Return text without control characters and half code points: it may come from a log."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def phase_name(phase: str) -> str:
    """Return the name of a phase for people."""
    return _PHASE_NAMES.get(phase, phase)


def seconds_text(seconds: float) -> str:
    """Return seconds with three digits that mean something."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds:,.0f} s"


def share_text(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def sentence(diagnosis: Diagnosis) -> str:
    """Return the answer in one sentence: phase, share, seconds, cause."""
    first, total = diagnosis.findings[0], diagnosis.total_s
    if first.code == "UNKNOWN":
        return _unknown_sentence(diagnosis)
    cause = f"{first.code}: {CODES[first.code].meaning}"
    if first.share is None or not total:
        return f"{cause}."
    who = phase_name(first.phase).capitalize() if first.phase else "This"
    if first.seconds is None:
        return f"{who} holds {share_text(first.share)} of the wait. {cause}."
    return (
        f"{who} holds {share_text(first.share)} of the wait, {seconds_text(first.seconds)} of "
        f"{seconds_text(total)}. {cause}."
    )


def _unknown_sentence(diagnosis: Diagnosis) -> str:
    missing = diagnosis.findings[0].missing
    ask = f" Missing: {'; '.join(missing)}." if missing else ""
    if not diagnosis.wait:
        return f"UNKNOWN: nothing here tells where the time goes.{ask}"
    name = max(diagnosis.wait, key=lambda key: diagnosis.wait[key])
    share = share_text(diagnosis.wait[name] / diagnosis.total_s)
    return f"UNKNOWN: {share} of the wait is {phase_name(name)}, and no cause is proven.{ask}"


def saving_text(cure: Cure) -> str:
    """Return the saving of a cure in words."""
    if cure.saves_low_s is None or cure.saves_high_s is None:
        return "saving not predictable from this"
    if cure.is_exact:
        return f"saves {seconds_text(cure.saves_low_s)}"
    if cure.saves_low_s < 0.0005:
        return f"saves up to {seconds_text(cure.saves_high_s)}"
    return f"saves {seconds_text(cure.saves_low_s)} to {seconds_text(cure.saves_high_s)}"


def place_text(line: EvidenceLine) -> str:
    """Return where a fact stands: file and line."""
    if line.line is None:
        return printable(line.file or "")
    return printable(f"{line.file or 'line'}:{line.line}")


def text_page(diagnosis: Diagnosis, parsed: Parsed, *, ascii_only: bool = False) -> str:
    """Return the whole page."""
    lines = [*_wrap(sentence(diagnosis), ""), ""]
    if diagnosis.wait:
        lines += [*_bars(diagnosis, "#" if ascii_only else "█"), ""]
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += [*_finding_lines(number, finding), ""]
    lines += _wrap(read_text(parsed, diagnosis), "")
    return "\n".join(lines) + "\n"


def _bars(diagnosis: Diagnosis, mark: str) -> Iterator[str]:
    total = diagnosis.total_s
    width = max(len(phase_name(name)) for name in diagnosis.wait)
    for name, seconds in diagnosis.wait.items():
        share = seconds / total
        bar = mark * max(round(share * BAR_WIDTH), 1 if share > 0 else 0)
        yield (
            f"  {phase_name(name):<{width}}  {bar:<{BAR_WIDTH}}  "
            f"{seconds_text(seconds):>9}  {share_text(share):>6}"
        )


def measures(finding: Finding, of_the_wait: str = "") -> str:
    """Return share, seconds and confidence of a finding, as far as they are known."""
    facts = []
    if finding.share is not None:
        facts.append(share_text(finding.share) + of_the_wait)
    if finding.seconds is not None:
        facts.append(seconds_text(finding.seconds))
    return ", ".join([*facts, f"{finding.confidence} confidence"])


def _finding_lines(number: int, finding: Finding) -> Iterator[str]:
    yield f"{number}. {finding.code}  ({measures(finding, ' of the wait')})"
    yield from _wrap(_capital(printable(finding.says)) + ".", "   ")
    for line in finding.evidence:
        place = place_text(line)
        yield from _wrap(f"{place + '  ' if place else ''}{printable(line.text)}", "     | ")
    for cure in finding.cures:
        yield from _wrap(f"{printable(cure.what)} [{saving_text(cure)}]", "   > ", "     ")
        if cure.basis and cure.is_predicted:
            yield from _wrap(f"({printable(cure.basis)})", "     ")
    if finding.missing:
        yield from _wrap("Would prove more: " + "; ".join(finding.missing) + ".", "   ")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _wrap(text: str, first: str, rest: str | None = None) -> list[str]:
    after = first if rest is None else rest
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=after,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]


def read_text(parsed: Parsed, diagnosis: Diagnosis) -> str:
    """Return counts of the lines and items read, and the caveats of the diagnosis."""
    parts = [f"Read {parsed.num_lines:,} lines" if parsed.num_lines else "Judged records"]
    if parsed.engines:
        parts.append("of " + printable(", ".join(sorted(parsed.engines))))
    counts = (
        (len(parsed.records), "request"),
        (len(parsed.windows), "server window"),
        (len(parsed.facts), "set-up fact"),
    )
    told = ", ".join(f"{n:,} {name}{'s' if n > 1 else ''}" for n, name in counts if n)
    text = " ".join(parts) + (f": {told}" if told else "") + "."
    other = sum(parsed.unknown.values())
    if other:
        kinds = ", ".join(f"{n:,} {printable(kind)}" for kind, n in sorted(parsed.unknown.items()))
        text += f" {other:,} lines told nothing ({kinds})."
    if diagnosis.caveats:
        text += " Keep in mind: " + "; ".join(diagnosis.caveats) + "."
    return text


def document(diagnosis: Diagnosis, parsed: Parsed) -> dict[str, Any]:
    """Return everything as one document."""
    return {
        "version": SCHEMA_VERSION,
        "sentence": sentence(diagnosis),
        "wait": diagnosis.wait,
        "wait_s": diagnosis.total_s,
        "findings": [finding.to_dict() for finding in diagnosis.findings],
        "caveats": list(diagnosis.caveats),
        "read": {
            "lines": parsed.num_lines,
            "engines": parsed.engines,
            "unknown": parsed.unknown,
            "dropped": parsed.dropped,
        },
        "facts": [fact.to_dict() for fact in parsed.facts],
        "windows": [window.to_dict() for window in parsed.windows],
        "records": [record.to_dict() for record in parsed.records],
    }


def json_lines(diagnosis: Diagnosis, parsed: Parsed) -> Iterable[dict[str, Any]]:
    """Yield one object a line: the summary, then findings, facts, windows and records by `kind`."""
    whole = document(diagnosis, parsed)
    many = {name: whole.pop(name) for name in ("findings", "facts", "windows", "records")}
    yield {"kind": "summary", **whole}
    for name, items in many.items():
        for item in items:
            yield {"kind": name[:-1], **item}
