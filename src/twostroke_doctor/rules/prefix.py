"""PREFIX_MISS: a prefix of a prompt that was computed before is computed again."""

from __future__ import annotations

from twostroke.advice import cures
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import CODES, Finding
from twostroke_doctor.remedies import unpriced
from twostroke_doctor.rules.prefix_inferred import flagged, repeated, slid, turns, windowed
from twostroke_doctor.rules.prefix_stated import forced, probed, stated

_SIGNS = (probed, stated, forced, windowed, slid, repeated, turns, flagged)
_ZERO_CURES = (
    *unpriced("cache_on", "smaller_blocks", "without_drafts", "same_salt"),
    cures.stable_head(None, None, "last: the text itself may differ"),
)


def prefix_miss(e: Evidence) -> Finding | None:
    """PREFIX_MISS: by the first of the signs that shows one."""
    found = next((finding for sign in _SIGNS if (finding := sign(e)) is not None), None)
    if found is None:
        return _rate_of_zero(e)
    is_large = found.share is None or found.share >= CODES["PREFIX_MISS"].least_share
    return found if is_large else None


def _rate_of_zero(e: Evidence) -> Finding | None:
    """A server's own hit rate stays at nothing while prompts are computed."""
    rates = [w.prefix_hit_rate for w in e.windows if w.prefix_hit_rate is not None]
    zero = [w for w in e.windows if w.prefix_hit_rate == 0 and w.prompt_tok_s]
    if not zero or (e.records and not e.given.shared_head):
        return None
    hits_elsewhere = _hits_elsewhere(e)
    if any(rates) and not hits_elsewhere:
        return None
    is_proven = e.given.shared_head or hits_elsewhere
    says = "the prefix cache gave 0.0 % of the prompt tokens"
    if hits_elsewhere:
        says += f"; under another set-up the same server reached {max(rates):.1%}"
    return e.finding(
        "PREFIX_MISS",
        says,
        confidence="medium" if is_proven else "low",
        shown=(zero,),
        cures=_ZERO_CURES,
        missing=() if is_proven else ("that the prompts share a prefix (--shared-head)",),
    )


def _hits_elsewhere(e: Evidence) -> bool:
    """Whether one run never hit and another did."""
    known = [
        [w.prefix_hit_rate for w in run.windows if w.prefix_hit_rate is not None] for run in e.runs
    ]
    best = [max(rates) for rates in known if rates]
    return len(best) > 1 and min(best) == 0.0 and max(best) > 0.0
