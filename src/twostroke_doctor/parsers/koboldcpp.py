"""KoboldCpp: the line at the end of a generation, in its four shapes, and `/api/extra/perf`.

Counts are not printed before 2024-10; they follow from time and rate, which a version of 2024-05
computed from the requested count (koboldcpp#852). `Total` leaves the `Init` time out.
"""

from __future__ import annotations

import re
from typing import Any

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft, Sources
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import (
    NUMBER,
    derived_count,
    json_count,
    json_positive,
    positive,
)

ENGINE = "koboldcpp"
_OLD = re.compile(
    rf"Time Taken - Processing:\s?({NUMBER})s \(({NUMBER})ms/T\), Generation:\s?({NUMBER})s"
    rf" \(({NUMBER})ms/T\)(?:, Total:\s?({NUMBER})s)?"
)
_WHOLE = re.compile(  # the order that every version prints
    r"(?:CtxLimit:\s?(?P<used>\d{1,9})/\d{1,9}, )(?:Amt:\s?(?P<amount>\d{1,9})/\d{1,9}, )?"
    rf"(?:Init:\s?(?P<init>{NUMBER})s, )?"
    rf"Process:\s?(?P<process>{NUMBER})s \((?:{NUMBER}ms/T = )?(?P<pp>{NUMBER})T/s\), "
    rf"Generate:\s?(?P<generate>{NUMBER})s \((?:{NUMBER}ms/T = )?(?P<tg>{NUMBER})T/s\), "
    rf"Total:\s?(?P<total>{NUMBER})s"
)
_CONTEXT = re.compile(r"CtxLimit:\s?(\d{1,9})/(\d{1,9}),|^\s{0,8}(\d{1,9})/(\d{1,9}), Process:")
_AMOUNT = re.compile(r"Amt:\s?(\d{1,9})/(\d{1,9}),")
_INIT = re.compile(rf"Init:\s?({NUMBER})s,")
_PHASE = rf":\s?({NUMBER})s \((?:{NUMBER}ms/T = )?({NUMBER})T/s\)"
_PROCESS = re.compile(f"Process{_PHASE}")
_GENERATE = re.compile(f"Generate{_PHASE}")
_TOTAL = re.compile(rf"Total:\s?({NUMBER})s")
_PROGRESS = re.compile(r"Generating \((\d{1,9}) / (\d{1,9}) tokens\)")


class KoboldcppParser:
    """Holds each line back until the next, which may tell the count that was really generated."""

    engine = ENGINE
    signatures = ("CtxLimit", "Time Taken - Processing", "Generating (", ", Process:")

    def __init__(self) -> None:
        self._held = Sources()
        self._before: dict[str, tuple[int, int]] = {}

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line completes, or None when it is not this engine's."""
        progress = _PROGRESS.findall(line.text) if "Generating (" in line.text else None
        if progress:
            return self._generating(line, int(progress[-1][0]), int(progress[-1][1]))
        if (match := _OLD.search(line.text)) is not None:
            return self._hold(line, _old_shape(match))
        draft = _new_shape(line.text)
        return None if draft is None else self._hold(line, draft)

    def flush(self) -> list[Item]:
        """Return the lines held back."""
        self._before.clear()
        return [draft.build() for draft in self._held.drain()]

    def _hold(self, line: Line, draft: Draft) -> list[Item]:
        draft.see(line)
        before = self._before.pop(line.source, None)
        if before is not None:
            _correct_count(draft, *before)
        return [old.build() for old in self._held.put(line.source, draft)]

    def _generating(self, line: Line, done: int, asked: int) -> list[Item]:
        """Give the count to the line before, when its rate used `asked`; else to the one after."""
        held = self._held.get(line.source)
        if held is not None and done < asked and held.output == asked:
            held.see(line)
            _correct_count(held, done, asked)
            return []
        if len(self._before) < 64:
            self._before[line.source] = (done, asked)
        return []


def _old_shape(match: re.Match[str]) -> Draft:
    draft = Draft(engine=ENGINE)
    process, per_prompt, generate, per_token, total = match.groups()
    draft.prefill_s, draft.decode_s = positive(process), positive(generate)
    draft.e2e_s = positive(total)
    draft.prompt_new = _count_by_ms(draft.prefill_s, per_prompt)
    draft.output = _count_by_ms(draft.decode_s, per_token)
    if draft.prompt_new is not None or draft.output is not None:
        draft.flag("count_derived")
    for name, ms in (
        ("prefill_tok_s", positive(per_prompt)),
        ("decode_tok_s", positive(per_token)),
    ):
        if ms is not None:
            draft.reported[name] = 1000 / ms
    return draft


def _count_by_ms(seconds: float | None, ms_text: str) -> int | None:
    """Return time over whole milliseconds a token, where the rounding leaves 5 % at most."""
    ms = positive(ms_text)
    if seconds is None or ms is None or ms < 10:
        return None
    return round(seconds * 1000 / ms)


def _new_shape(text: str) -> Draft | None:
    """Read a line since 2024, as printed or with its parts in another order."""
    match = _WHOLE.search(text)
    if match is not None:
        return _from_parts(*match.groups())
    process, generate = _PROCESS.search(text), _GENERATE.search(text)
    if process is None and generate is None:
        return None
    context, amount = _CONTEXT.search(text), _AMOUNT.search(text)
    init, total = _INIT.search(text), _TOTAL.search(text)
    return _from_parts(
        context.group(1) or context.group(3) if context else None,
        amount.group(1) if amount else None,
        init.group(1) if init else None,
        process.group(1) if process else None,
        process.group(2) if process else None,
        generate.group(1) if generate else None,
        generate.group(2) if generate else None,
        total.group(1) if total else None,
    )


def _from_parts(
    used: str | None,
    amount: str | None,
    init: str | None,
    process: str | None,
    prefill_rate: str | None,
    generate: str | None,
    decode_rate: str | None,
    total: str | None,
) -> Draft:
    draft = Draft(engine=ENGINE)
    draft.prefill_s, draft.decode_s = positive(process), positive(generate)
    pp, tg = positive(prefill_rate), positive(decode_rate)
    draft.prompt_new = derived_count(draft.prefill_s, pp, process, prefill_rate)
    draft.output = derived_count(draft.decode_s, tg, generate, decode_rate)
    if draft.prompt_new is not None or draft.output is not None:
        draft.flag("count_derived")
    draft.ctx_end = None if used is None else int(used)
    if amount is not None:
        draft.output = int(amount)
    if pp is not None:
        draft.reported["prefill_tok_s"] = pp
    exact = draft.output if amount is not None else None
    draft.report("decode_tok_s", decode_rate, exact, draft.decode_s, generate)
    if exact is not None and draft.ctx_end is not None:
        draft.prompt_total = max(draft.ctx_end - exact, 0) or None
    if draft.prompt_total is not None and draft.prompt_new is not None:
        draft.prompt_new = min(draft.prompt_new, draft.prompt_total)
    draft.init_s = positive(init)
    total_s = positive(total)
    draft.e2e_s = None if total_s is None else total_s + (draft.init_s or 0.0)
    return draft


def _correct_count(draft: Draft, done: int, asked: int) -> None:
    """Replace a count that was the requested one by the generated one."""
    if draft.output is None or done >= asked or draft.output != asked:
        return
    draft.output = done
    draft.flag("requested_count")
    draft.flag("meter_inconsistent")


def is_perf(obj: dict[str, Any]) -> bool:
    """Tell whether a JSON object is that of /api/extra/perf."""
    return "last_process" in obj and "last_eval" in obj


def draft_from_perf(obj: dict[str, Any]) -> Draft:
    """Return a draft from /api/extra/perf: `last_process` and `last_eval` are ms per token."""
    draft = Draft(engine=ENGINE)
    draft.output = json_count(obj.get("last_token_count"))
    per_prompt, per_token = (json_positive(obj.get(key)) for key in ("last_process", "last_eval"))
    if per_prompt is not None:
        draft.reported["prefill_tok_s"] = 1000 / per_prompt
    if per_token is not None:
        draft.reported["decode_tok_s"] = 1000 / per_token
        if draft.output:
            draft.decode_s = per_token * draft.output / 1000
            draft.flag("time_derived")
    return draft
