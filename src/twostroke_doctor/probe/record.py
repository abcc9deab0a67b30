"""From the moments of replies to records: the phases of each wait, as seen from outside."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from twostroke.record import (
    MIN_TOKENS_FOR_PREFILL_RATE,
    InterTokenLatency,
    Meter,
    OutputTokens,
    PhaseTimes,
    PromptTokens,
    RequestRecord,
)
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.json_meters import LLAMA_SERVER, OLLAMA
from twostroke_doctor.parsers.openai_usage import add_usage
from twostroke_doctor.probe.plan import PAIR, Step
from twostroke_doctor.probe.reply import TimedReply

CONTROL = "control"
ID_PREFIX = "probe/"
_MIN_EXCESS_S = 0.2  # smaller excesses are noise
_EXCESS_RATIO = 2.0
_EARLY = 0.5  # an empty chunk that comes in the first half of the wait for text
_MIN_EARLY_S = 0.05
_TOKENS_A_CHUNK = 4


def record_of(step: Step, reply: TimedReply, model: str | None) -> RequestRecord | None:
    """Return the record of one reply, None when it held neither text nor an end.

    The time to the first text is booked as prefill until `settle` takes load and queue out of it.
    Where the first token ended the reply, the end stands for the first text.
    """
    first, last = reply.first_text_s, reply.last_text_s
    if first is None or last is None:
        first = last = reply.finish_s
    if first is None or last is None:
        return None
    server = _server_side(reply)
    output, new = server.output, _new_tokens(step, server)
    decode_s = last - first
    rate = (output - 1) / decode_s if output and output > 1 and decode_s > 0 else None
    return RequestRecord(
        id=ID_PREFIX + step.name,
        engine="endpoint",
        model=model,
        t_arrival_s=reply.started_s,
        phases=PhaseTimes(
            load_s=server.load_s,
            prefill_s=max(first - (server.load_s or 0.0), 0.0),
            decode_s=decode_s or None,
            tail_s=max(reply.end_s - last, 0.0),
        ),
        e2e_s=reply.end_s,
        prompt=PromptTokens(total=server.prompt_total, cached=server.prompt_cached, new=new),
        output=OutputTokens(total=output, reasoning=server.output_reasoning),
        ttft_any_s=first,
        ttft_visible_s=reply.first_visible_s,
        tpot_s=1 / rate if rate else None,
        itl=_gaps(reply),
        prefill_tok_s=new / first if new and new >= MIN_TOKENS_FOR_PREFILL_RATE else None,
        decode_tok_s=rate,
        meter=Meter(source="client", flags=_flags(reply, output)),
    )


def _gaps(reply: TimedReply) -> InterTokenLatency:
    if not reply.gaps:
        return InterTokenLatency()
    return InterTokenLatency(p50_s=median(reply.gaps), max_s=max(reply.gaps))


def _server_side(reply: TimedReply) -> Draft:
    """Return the server's own figures of the request: counts, load, cached tokens."""
    timings, ollama = reply.final.get("timings"), reply.final.get("ollama")
    if isinstance(timings, dict) and LLAMA_SERVER.fits(timings):
        draft = LLAMA_SERVER.draft(timings)
    elif isinstance(ollama, dict):
        draft = OLLAMA.draft(ollama)
        draft.prompt_total = draft.prompt_total or draft.prompt_new
        draft.prompt_new = None  # this engine may count cached tokens
    else:
        draft = Draft(engine="endpoint")
    usage = reply.final.get("usage")
    if isinstance(usage, dict):
        add_usage(draft, usage)
    draft.complete_prompt()
    return draft


def _new_tokens(step: Step, server: Draft) -> int | None:
    """Return the tokens that had to be computed: all of an unseen prompt, else only if stated."""
    if server.prompt_new is not None:
        return server.prompt_new
    return None if step.same_as else server.prompt_total


def _flags(reply: TimedReply, output: int | None) -> tuple[str, ...]:
    flags = ["ttft_as_prefill"]
    early, first = reply.first_empty_s, reply.first_text_s or 0.0
    if early is not None and early < _EARLY * first and first - early > _MIN_EARLY_S:
        flags.append("empty_first_chunk")
    if output and output >= _TOKENS_A_CHUNK * max(reply.num_text_chunks, 1):
        flags.append("buffered_stream")
    return tuple(flags)


def settle(records: dict[str, RequestRecord]) -> dict[str, RequestRecord]:
    """Move load, warm-up and queue out of `prefill`, as far as the controls prove them."""
    out = dict(records)
    short = records.get("short") or records.get("long")
    floor = short.ttft_any_s if short is not None else None
    if floor is None:
        return out
    if (first := records.get("first")) is not None and first.phases.load_s is None:
        out["first"] = _moved(first, "load_s", floor)
    pair = [records[name] for name in PAIR if name in records]
    if len(pair) == len(PAIR):
        late = max(pair, key=lambda r: r.ttft_any_s or 0.0)
        out[late.id.removeprefix(ID_PREFIX)] = _moved(late, "queue_s", floor)
    return out


def _moved(record: RequestRecord, phase: str, floor: float) -> RequestRecord:
    """Book the seconds above the floor of the first token under another phase."""
    ttft = record.ttft_any_s or 0.0
    excess = ttft - floor
    if excess < _MIN_EXCESS_S or ttft < _EXCESS_RATIO * floor:
        return record
    phases = replace(record.phases, **{phase: excess, "prefill_s": floor})
    flags = (*record.meter.flags, "time_derived")
    meter = replace(record.meter, flags=flags)
    return replace(record, phases=phases, prefill_tok_s=None, meter=meter)
