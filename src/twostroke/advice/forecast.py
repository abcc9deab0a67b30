"""Cures by prediction: the same request with one thing changed, on this machine's fitted rates.

A saving is the difference of two predictions, so "quantise" helps a prefill-bound wait only where
the fitted rates of prefill say so. Cures that save less than a share of the wait are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from twostroke.advice.cure import Cure, exact, in_order, unpredicted
from twostroke.dataclass import dataclass
from twostroke.errors import ShapeError
from twostroke.predict.cost import CostModel
from twostroke.predict.kv import KvFormat
from twostroke.predict.predictor import Predictor
from twostroke.predict.shape import ModelShape, requantised

CHUNK_TOKENS = 500  # a retrieved chunk, where the caller does not say how long his are
FEWER_BITS = 4.5  # what Q4_0 takes a weight
BATCH = 8
LEAST_SHARE = 0.01  # of the wait; a cure that saves less is none
_LARGER_CHUNK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request as it is predicted. Units: tokens; seconds.

    lost: tokens after the cached ones that a stable head would have kept. drop: new tokens that the
    caller can do without; 0: half of them. The scales: measured /
    predicted of each phase, so that savings are of the wait that was measured. threads of cores:
    None where unknown.
    """

    prompt: int
    output: int
    cached: int = 0
    queue_s: float = 0.0
    lost: int = 0
    drop: int = 0
    batch: int = 1
    chunk: int = 512
    has_history: bool = False
    threads: int | None = None
    cores: int | None = None
    prefill_scale: float = 1.0
    decode_scale: float = 1.0


def cures_for(predictor: Predictor, asked: Asked) -> tuple[Cure, ...]:
    """Return what would shorten the wait, the most seconds first; empty where no time is known."""
    now = _times(predictor, asked)
    if now is None:
        return ()
    wait_s = asked.queue_s + sum(now)
    cures = [c for make in _CURES for c in make(predictor, asked, now)]
    kept = [c for c in cures if not c.is_predicted or (c.saves_high_s or 0) > LEAST_SHARE * wait_s]
    return in_order(kept)


def _times(
    predictor: Predictor, asked: Asked, *, prompt: int | None = None,
    cached: int | None = None, output: int | None = None, chunk: int | None = None,
) -> tuple[float, float] | None:  # fmt: skip
    """Return the seconds of both phases with some of it changed."""
    prompt = asked.prompt if prompt is None else max(prompt, 1)
    found = predictor.request(
        prompt,
        asked.output if output is None else output,
        cached=min(asked.cached if cached is None else cached, prompt - 1),
        batch=asked.batch,
        chunk=chunk or asked.chunk,
    )
    if found.ttft is None or found.decode is None:
        return None
    return found.ttft.value * asked.prefill_scale, found.decode.value * asked.decode_scale


def _saving(now: tuple[float, float], then: tuple[float, float] | None) -> float | None:
    return None if then is None else sum(now) - sum(then)


def _queue(_: Predictor, asked: Asked, now: tuple[float, float]) -> Iterator[Cure]:
    if asked.queue_s > 0:
        yield exact(
            "less_queue",
            "Send fewer requests at once, or add capacity.",
            asked.queue_s,
            f"{asked.queue_s:.2f} s of waiting before the first step",
            "lower throughput, or more machines",
        )


def _head(predictor: Predictor, asked: Asked, now: tuple[float, float]) -> Iterator[Cure]:
    if not asked.lost:
        return
    saving = _saving(now, _times(predictor, asked, cached=asked.cached + asked.lost))
    if saving is not None:
        yield exact(
            "stable_head",
            "Keep the head of the prompt unchanged: clocks and retrieved text go to the end.",
            saving,
            f"{asked.lost:,} tokens that were cached once are computed again: prefill "
            f"{now[0]:.2f} s - {now[0] - saving:.2f} s",
            "none on the answer if the model does not need the changed text early",
        )


def _chunks(predictor: Predictor, asked: Asked, now: tuple[float, float]) -> Iterator[Cure]:
    new = asked.prompt - asked.cached
    half = min(asked.drop or new // 2, new - 1)
    if half < 1:
        return
    one = min(CHUNK_TOKENS, half)
    how_much = f"{half:,}" if asked.drop else "half"
    each = _saving(now, _times(predictor, asked, prompt=asked.prompt - one))
    all_half = _saving(now, _times(predictor, asked, prompt=asked.prompt - half))
    if each is None or all_half is None:
        return
    yield exact(
        "fewer_chunks",
        f"Leave out {how_much} of the {new:,} new prompt tokens: fewer or shorter chunks.",
        all_half,
        f"each {one:,} tokens fewer save {each:.2f} s; {half:,} fewer save {all_half:.2f} s, "
        "attention's square included",
        "the model knows less; keep the best chunks",
    )
    if asked.has_history:
        yield exact(
            "trim_history",
            "Summarise old turns, rarely and in large cuts.",
            all_half,
            f"{half:,} tokens of history fewer; the turn of the cut prefills what it keeps",
            "old details are lost; the next turn misses the cache once",
        )


def _output(predictor: Predictor, asked: Asked, now: tuple[float, float]) -> Iterator[Cure]:
    fewer = asked.output // 2
    if fewer < 1:
        return
    saving = _saving(now, _times(predictor, asked, output=asked.output - fewer))
    if saving is not None:
        yield exact(
            "shorter_output",
            "Ask for less output: a limit on tokens, a stop string, a terser answer.",
            saving,
            f"{fewer:,} of {asked.output:,} tokens fewer at {1e3 * saving / fewer:.1f} ms each",
            "a shorter answer",
        )


def _with_cost(predictor: Predictor, cost: CostModel) -> Predictor:
    return Predictor(cost, predictor.speed)


def _bits(predictor: Predictor, asked: Asked, now: tuple[float, float]) -> Iterator[Cure]:
    shape, kv = predictor.cost.shape, predictor.cost.kv
    weights, values = shape.weights, shape.num_values
    if weights is None or not values:
        return
    read = weights.body.num_bytes + weights.lm_head.num_bytes + weights.experts.num_bytes
    bits = 8.0 * read / values
    if bits > FEWER_BITS * 1.1:
        other = CostModel(requantised(shape, FEWER_BITS), kv)
        then = _times(_with_cost(predictor, other), asked)
        saving = _saving(now, then)
        if saving is not None and then is not None:
            yield exact(
                "fewer_bits",
                f"Take {FEWER_BITS:g} bits a weight instead of {bits:.1f}.",
                saving,
                f"decode {now[1] - then[1]:+.2f} s of {now[1]:.2f}, prefill "
                f"{now[0] - then[0]:+.2f} s of {now[0]:.2f} on this device's fitted rates",
                "some quality; measure it with `twostroke perplexity`",
            )
    small = CostModel(_halved(predictor.cost), kv)
    saving = _saving(now, _times(_with_cost(predictor, small), asked))
    if saving is not None:
        yield exact(
            "smaller_weights",
            "Take a model with half the weights.",
            saving,
            f"half of {values / 1e6:,.0f} M weights to read and to multiply, attention as it is",
            "another, weaker model",
        )


def _halved(cost: CostModel) -> ModelShape:
    from dataclasses import replace

    shape = cost.shape
    w = shape.weights
    assert w is not None, "a cost model has weights"
    half = replace(
        w, body=w.body.scaled(0.5), lm_head=w.lm_head.scaled(0.5), experts=w.experts.scaled(0.5)
    )
    return replace(shape, weights=half)


def _kv(predictor: Predictor, asked: Asked, now: tuple[float, float]) -> Iterator[Cure]:
    cost = predictor.cost
    if cost.kv.name not in ("bf16", "f16"):
        return
    try:
        other = CostModel(cost.shape, KvFormat("q8"))
    except ShapeError:
        return
    then = _times(_with_cost(predictor, other), asked)
    if then is not None:
        yield exact(
            "kv_8bit",
            "Store K and V in 8 bits: --kv-type q8.",
            now[1] - then[1],
            f"{other.kv_bytes_per_token:,} bytes a token instead of "
            f"{cost.kv_bytes_per_token:,} are read in each step of decode",
            "K and V are rounded more coarsely; nearly twice the context fits",
        )


def _chunk_size(predictor: Predictor, asked: Asked, now: tuple[float, float]) -> Iterator[Cure]:
    if asked.prompt - asked.cached <= asked.chunk:
        return
    larger = asked.chunk * _LARGER_CHUNK
    then = _times(predictor, asked, chunk=larger)
    if then is not None:
        yield exact(
            "larger_chunk",
            f"Prefill in chunks of {larger:,} tokens: --prefill-chunk {larger}.",
            now[0] - then[0],
            "weights are read once a chunk, not more often",
            "running streams wait longer for each other's prompts; larger buffers",
        )


def _batch(predictor: Predictor, asked: Asked, now: tuple[float, float]) -> Iterator[Cure]:
    context = asked.prompt + max(asked.output // 2, 1)
    one, many = predictor.decode(context), predictor.decode(context, batch=BATCH)
    if one is None or many is None or asked.output < 2:
        return
    yield unpredicted(
        "batch",
        "Serve several requests at once: one weight read serves them all.",
        f"{BATCH} streams: {BATCH / many.value:,.0f} tok/s together instead of "
        f"{1 / one.value:,.0f}, each at {1 / many.value:,.0f}; this request alone gains nothing",
    )


def _threads(_: Predictor, asked: Asked, now: tuple[float, float]) -> Iterator[Cure]:
    threads, cores = asked.threads, asked.cores
    if threads is None or cores is None or threads == cores:
        return
    more = threads < cores
    saving = now[0] * (1 - threads / cores) if more else 0.0
    if more:
        yield Cure(
            key="more_threads",
            what=f"Use all {cores} cores: --threads {cores}.",
            saves_low_s=0.0,
            saves_high_s=saving,
            basis=f"prefill is arithmetic: at most {threads}/{cores} of its time; decode little",
            side_effect="other programs get less",
        )
    else:
        yield unpredicted(
            "fewer_threads",
            f"Use {cores} threads: more than cores wait for each other at every layer.",
        )


_CURES = (_queue, _head, _chunks, _output, _bits, _kv, _chunk_size, _batch, _threads)
