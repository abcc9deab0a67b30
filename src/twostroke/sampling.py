"""From sampling parameters to one row's sampler settings, and the reference sampler.

The order, the same in every backend: logit_bias; repetition penalty over prompt and output;
frequency and presence penalties over the output; then greedy takes the highest logit (ties: the
lowest id). Otherwise temperature, top_k, top_p over what top_k kept, min_p relative to the best
probability, and the inverse of the cumulative distribution over the kept ids in ascending order.
Penalties follow vLLM's definitions. Log-probabilities are those of the raw logits.

The uniform number is counter-based: with mix(z) = splitmix64 of Steele, Lea and Flood 2014
(doi:10.1145/2660193.2660195),
    u = (mix(mix(mix(seed) ^ choice) ^ position) >> 11) * 2**-53
so a seed gives the same text whatever requests share the batch. The reference backend draws the
number here, the native library by the same formula; goldens and tests hold the two equal.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from twostroke.dataclass import dataclass
from twostroke.errors import InvalidSampling, KernelError
from twostroke.request import SamplingParams, TokenLogprob
from twostroke.step import Sampled, SampleSpec

_MASK = 2**64 - 1


def mix(z: int) -> int:
    """Return splitmix64's output for the state z: a bijection of 64-bit integers."""
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, choice: int, position: int) -> float:
    """Return the number in [0, 1) for one token: 53 bits keyed by seed, choice and position."""
    return (mix(mix(mix(seed & _MASK) ^ choice) ^ position) >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSampling:
    """Everything a backend needs to choose one token from one row of logits.

    seen_ids: ids of prompt and output, ascending, for the repetition penalty; empty when it is 1.
    output_ids, output_counts: ids generated and how often, ascending; empty when not penalised.
    """

    is_greedy: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    bias_ids: tuple[int, ...]
    bias_values: tuple[float, ...]
    seen_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    output_counts: tuple[int, ...]
    uniform: float
    logprobs: int | None
    mask: bytes | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the logits are used as they are: no bias, no penalty, no mask."""
        return not (self.bias_ids or self.seen_ids or self.output_ids or self.mask)


def needs_history(p: SamplingParams) -> bool:
    """Whether penalties look at earlier ids, so that a SampleSpec must carry them."""
    return p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0


def row_sampling(spec: SampleSpec) -> RowSampling:
    """Return the sampler settings of one row."""
    p = spec.params
    bias = sorted(dict(p.logit_bias).items())
    seen: tuple[int, ...] = ()
    if p.repetition_penalty != 1.0:
        seen = tuple(sorted({*spec.prompt_ids, *spec.output_ids}))
    counts: list[tuple[int, int]] = []
    if p.presence_penalty != 0.0 or p.frequency_penalty != 0.0:
        counts = sorted(Counter(spec.output_ids).items())
    return RowSampling(
        is_greedy=p.is_greedy,
        temperature=p.temperature,
        top_k=p.top_k,
        top_p=p.top_p,
        min_p=p.min_p,
        repetition_penalty=p.repetition_penalty,
        presence_penalty=p.presence_penalty,
        frequency_penalty=p.frequency_penalty,
        bias_ids=tuple(i for i, _ in bias),
        bias_values=tuple(b for _, b in bias),
        seen_ids=seen,
        output_ids=tuple(i for i, _ in counts),
        output_counts=tuple(n for _, n in counts),
        uniform=0.0 if p.is_greedy else uniform(spec.seed, spec.choice, spec.position),
        logprobs=p.logprobs,
        mask=spec.mask,
    )


def sample(logits: NDArray[np.floating], row: RowSampling) -> Sampled:
    """Choose one token.

    Shapes:
        logits  [V], any float type; computed in float64
    Raises:
        KernelError: no logit is finite.
        InvalidSampling: logit_bias names an id outside the vocabulary.
    """
    raw = logits.astype(np.float64)
    raw[np.isnan(raw)] = -np.inf
    if not np.isfinite(raw.max()):
        raise KernelError(
            "no logit of the row is finite", remedy="Report it with the model's name."
        )
    changed = raw if row.is_plain else _penalised(raw, row)
    token_id = int(changed.argmax()) if row.is_greedy else _draw(changed, row)
    logprob = None if row.logprobs is None else _logprob(raw, token_id, row.logprobs)
    return Sampled(token_id, logprob)


def _penalised(raw: NDArray[np.float64], row: RowSampling) -> NDArray[np.float64]:
    x: NDArray[np.float64] = raw.copy()
    if row.bias_ids:
        if row.bias_ids[-1] >= len(x):
            raise InvalidSampling(
                "logit_bias names an id outside the vocabulary",
                value=row.bias_ids[-1],
                limit=f"< {len(x)}",
                param="logit_bias",
            )
        x[list(row.bias_ids)] += row.bias_values
    if row.seen_ids:
        ids = np.array(row.seen_ids)
        r = row.repetition_penalty
        x[ids] = np.where(x[ids] > 0, x[ids] / r, x[ids] * r)
    if row.output_ids:
        ids = np.array(row.output_ids)
        x[ids] -= row.frequency_penalty * np.array(row.output_counts)
        x[ids] -= row.presence_penalty
    if row.mask is not None:
        bits = np.unpackbits(np.frombuffer(row.mask, np.uint8), bitorder="little")
        x[bits[: len(x)] == 0] = -np.inf
    return x


def _draw(x: NDArray[np.float64], row: RowSampling) -> int:
    p = np.exp((x - x.max()) / row.temperature)
    order = np.argsort(-x, kind="stable")  # best first, ties by id
    kept = order[: row.top_k] if 0 < row.top_k < len(order) else order
    if row.top_p < 1.0:
        mass = np.cumsum(p[kept])
        kept = kept[: int(np.searchsorted(mass, row.top_p * mass[-1])) + 1]
    if row.min_p > 0.0:
        kept = kept[p[kept] >= row.min_p * p[kept[0]]]
    kept = np.sort(kept[p[kept] > 0.0])
    mass = np.cumsum(p[kept])
    i = int(np.searchsorted(mass, row.uniform * mass[-1], side="right"))
    return int(kept[min(i, len(kept) - 1)])


def _logprob(raw: NDArray[np.float64], token_id: int, num_top: int) -> TokenLogprob:
    best = raw.max()
    log_total = best + np.log(np.exp(raw - best).sum())
    top = np.argsort(-raw, kind="stable")[:num_top]
    return TokenLogprob(
        token_id,
        float(raw[token_id] - log_total),
        tuple((int(i), float(raw[i] - log_total)) for i in top),
    )
