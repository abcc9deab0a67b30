"""A request's wait before it runs, predicted from the scheduler's present state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twostroke.advice.brief import MIN_NEW_TOKENS
from twostroke.advice.explain import Explanation, explain_request
from twostroke.advice.predicted_cures import cures_for
from twostroke.advice.workload import Workload
from twostroke.dataclass import dataclass
from twostroke.errors import TwoStrokeError
from twostroke.predict.cost import Span
from twostroke.predict.predictor import Predictor
from twostroke.predict.speed import Seconds
from twostroke.scheduler.outlook import Outlook, prefill_beside_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPrediction:
    """A request's predicted phases. None: unknown, and `missing` says why. Units: tokens; seconds;
    bytes.

    ttft is queue and prefill; the first token belongs to prefill. max_tokens None: no limit was
    given, so decode and total are unknown.
    """

    outlook: Outlook
    max_tokens: int | None
    prefill: Seconds | None
    tpot: Seconds | None
    missing: tuple[str, ...]
    advice: Explanation | None

    @property
    def fits(self) -> str:
        """Whether the engine would admit the request: yes, or no (see the outlook's refusal)."""
        return "yes" if self.outlook.refusal is None else "no"

    @property
    def ttft(self) -> Seconds | None:
        """Queue and prefill."""
        queue_s = self.outlook.queue_s
        if self.prefill is None or queue_s is None:
            return None
        return self.prefill + Seconds(queue_s, 0.0, 2.0 * queue_s)

    @property
    def decode(self) -> Seconds | None:
        """All tokens after the first."""
        if self.tpot is None or self.max_tokens is None:
            return None
        return self.tpot.scaled(max(self.max_tokens - 1, 0))

    @property
    def total(self) -> Seconds | None:
        """The whole wait."""
        return self.ttft + self.decode if self.ttft and self.decode else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        look, ttft, decode, total = self.outlook, self.ttft, self.decode, self.total
        share = ttft.value / total.value if ttft and total and total.value else None
        named = {"ttft_s": ttft, "tpot_s": self.tpot, "total_s": total}
        refusal = look.refusal
        return {
            "prompt": {
                "total": look.num_prompt,
                "cached": look.num_cached,
                "new": look.num_prompt - look.num_cached,
            },
            "max_tokens": self.max_tokens,
            "queue_s": look.queue_s,
            "waiting": look.num_waiting,
            "streams": len(look.streams),
            "prefill_s": self.prefill.value if self.prefill else None,
            "decode_s": decode.value if decode else None,
            **{name: time.value if time else None for name, time in named.items()},
            "prefill_share": share,
            "decode_share": None if share is None else 1.0 - share,
            "intervals": {name: time.to_dict() if time else None for name, time in named.items()},
            "kv_bytes": look.kv_bytes,
            "fits": self.fits,
            "refusal": str(refusal) if refusal is not None else None,
            "refusal_code": refusal.code if isinstance(refusal, TwoStrokeError) else None,
            "missing": list(self.missing),
            "advice": self.advice.to_dict() if self.advice is not None else None,
        }


def predict_request(
    predictor: Predictor,
    outlook: Outlook,
    *,
    max_tokens: int | None,
    prefill_chunk: int,
    target_tpot_s: float,
    has_history: bool = False,
) -> RequestPrediction:
    """Predict a request from an outlook; pure, so that any thread may call it."""
    prediction = RequestPrediction(
        outlook=outlook,
        max_tokens=max_tokens,
        prefill=_prefill(predictor, outlook, prefill_chunk, target_tpot_s),
        tpot=_tpot(predictor, outlook, max_tokens),
        missing=predictor.missing,
        advice=None,
    )
    if prediction.prefill is None or prediction.tpot is None or not max_tokens:
        return prediction
    workload = Workload(
        prompt=outlook.num_prompt,
        output=max_tokens,
        cached=outlook.num_cached,
        queue_s=outlook.queue_s or 0.0,
        batch=len(outlook.streams) + 1,
        chunk=prefill_chunk,
        has_history=has_history,
    )
    advice = _advice(predictor, workload, prediction.prefill, prediction.tpot)
    return replace(prediction, advice=advice)


def _advice(
    predictor: Predictor, workload: Workload, prefill: Seconds, tpot: Seconds
) -> Explanation | None:
    phases = {
        "queue": workload.queue_s,
        "prefill": prefill.value,
        "decode": tpot.value * (workload.output - 1),
    }
    notes = ["predicted, not measured"]
    if workload.num_new < MIN_NEW_TOKENS:
        notes.append(f"fewer than {MIN_NEW_TOKENS} new tokens: fixed costs rule prefill")
    return explain_request(phases, cures_for(predictor, workload), notes)


def _prefill(predictor: Predictor, look: Outlook, chunk: int, target_s: float) -> Seconds | None:
    alone = predictor.prefill(look.num_cached, look.num_prompt, chunk=chunk)
    if not look.streams or alone is None or not alone.value:
        return alone
    beside_s = prefill_beside_s(
        predictor,
        look.streams,
        look.num_cached,
        look.num_prompt,
        target_s=target_s,
        prefill_chunk=chunk,
    )
    return None if beside_s is None else alone.scaled(beside_s / alone.value)


def _tpot(predictor: Predictor, look: Outlook, max_tokens: int | None) -> Seconds | None:
    own = look.num_prompt + max((max_tokens or 1) // 2, 1)
    contexts = (*look.streams, own)
    work = predictor.cost.spans_work(Span(c - 1, c, 1) for c in contexts)
    return predictor.step(work, has_prefill=False)
