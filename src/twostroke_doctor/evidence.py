"""The one object that every rule reads: requests, windows, runs, facts of the log and of the user.

Makes a finding of the seconds and lines that a rule proves. Draws no conclusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from twostroke.advice import Cure
from twostroke.dataclass import dataclass
from twostroke.record import RequestRecord, WindowRecord
from twostroke_doctor.evidence_lines import Shown, lines_of
from twostroke_doctor.finding import CODES, Finding
from twostroke_doctor.given import Given
from twostroke_doctor.parsed import Fact, Parsed
from twostroke_doctor.runs import Run, number_of, split_runs
from twostroke_doctor.wait import INFERENCE, wait_of

_NO_WAIT_FLAGS = frozenset({"no_output", "benchmark", "control"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything known.

    records: the requests whose wait is judged. windows: of servers; benchmarks: averages of
    benchmark runs. wait: seconds by phase over all requests.
    """

    parsed: Parsed
    given: Given
    records: tuple[RequestRecord, ...]
    windows: tuple[WindowRecord, ...]
    benchmarks: tuple[WindowRecord, ...]
    runs: tuple[Run, ...]
    wait: dict[str, float]

    @property
    def total_s(self) -> float:
        """Seconds of all requests' waits."""
        return sum(self.wait.values())

    def share(self, seconds: float | None) -> float | None:
        """Return a share of the wait, None where the wait is unknown."""
        if seconds is None or self.total_s <= 0:
            return None
        return min(seconds / self.total_s, 1.0)

    def is_enough(self, code: str, seconds: float) -> bool:
        """Whether these seconds are a share of the wait that makes a finding of this code."""
        share = self.share(seconds)
        return share is not None and share >= CODES[code].least_share

    def phase_s(self, phase: str) -> float:
        """Return the seconds of a phase over all requests."""
        return self.wait.get(phase, 0.0)

    def larger_phase(self) -> str:
        """Return which of prefill and decode takes longer."""
        return "prefill" if self.phase_s("prefill") > self.phase_s("decode") else "decode"

    def fact(self, name: str) -> Fact | None:
        """Return the last fact of that name."""
        return self.parsed.fact(name)

    def number(self, name: str) -> float | None:
        """Return the last fact of that name, where it is a number."""
        return number_of(self.parsed.fact(name))

    def facts(self, name: str) -> list[Fact]:
        """Return all facts of that name in order."""
        return [fact for fact in self.parsed.facts if fact.name == name]

    def finding(
        self,
        code: str,
        says: str,
        *,
        shown: Iterable[Shown],
        cures: tuple[Cure, ...],
        seconds: float | None = None,
        is_in_wait: bool = True,
        share: float | None = None,
        phase: str | None = None,
        explains: Mapping[str, float] | None = None,
        confidence: str = "medium",
        missing: tuple[str, ...] = (),
    ) -> Finding:
        """Return a finding of this code.

        The phase is the code's, the share that of the seconds, and the seconds the sum of
        `explains`, unless they are given. Seconds outside the judged wait have no share.
        """
        if seconds is None and explains is not None:
            seconds = sum(explains.values())
        return Finding(
            code=code,
            says=says,
            phase=phase or CODES[code].phase,
            share=self.share(seconds) if share is None and is_in_wait else share,
            seconds=seconds,
            confidence=confidence,
            evidence=lines_of(*shown),
            cures=cures,
            missing=missing,
            explains=dict(explains or {}),
        )


def gather(parsed: Parsed, given: Given) -> Evidence:
    """Return the evidence in parsed logs."""
    records = tuple(r for r in parsed.records if not _NO_WAIT_FLAGS & set(r.meter.flags))
    return Evidence(
        parsed=parsed,
        given=given,
        records=records,
        windows=tuple(w for w in parsed.windows if "benchmark" not in w.meter.flags),
        benchmarks=tuple(w for w in parsed.windows if "benchmark" in w.meter.flags),
        runs=tuple(split_runs(parsed)),
        wait=wait_of(records),
    )


def model_seconds(records: Iterable[RequestRecord]) -> dict[str, float]:
    """Return the seconds in which the model ran, by phase."""
    wait = wait_of(records)
    return {name: wait[name] for name in ("prefill", "decode", INFERENCE) if name in wait}
