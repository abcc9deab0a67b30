"""All public reports that the doctor is tested on, read and diagnosed."""

from __future__ import annotations

from tests.doctor import cases_of_decode, cases_of_prefill, cases_of_waits
from twostroke_doctor import LogScanner, Parsed
from twostroke_doctor.diagnose import diagnose
from twostroke_doctor.given import make_given

CASES = [*cases_of_prefill.CASES, *cases_of_decode.CASES, *cases_of_waits.CASES]


def read(files, records=(), facts=()):
    """Parse log texts by file name, and add items that no log prints."""
    scanner, parsed = LogScanner(), Parsed()
    for name, text in files.items():
        parsed.add_all(scanner.scan(text, file=name))
    parsed.add_all([*facts, *records])
    return parsed


def examined(case):
    """Return the diagnosis of a case, and the logs as read."""
    parsed = read(case.files, case.records, case.facts)
    return diagnose(parsed, make_given(**case.flags)), parsed


def findings(case):
    """Return the findings of a case, the first one first."""
    return examined(case)[0].findings


def by_name(start):
    """Return the first case whose name starts so."""
    return next(case for case in CASES if case.name.startswith(start))
