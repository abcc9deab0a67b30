"""Cures by prediction: the same request with one thing changed, at this machine's fitted speed.

A saving is the difference of two predictions, so "quantise" helps a prefill-bound wait only where
the fitted rates of prefill say so. Cures that save less than a share of the wait are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from twostroke.advice.cure import Cure, exact, in_order, unpredicted
from twostroke.advice.workload import Comparison, Workload
from twostroke.errors import ShapeError
from twostroke.predict.cost import CostModel
from twostroke.predict.kv import KvFormat
from twostroke.predict.predictor import Predictor
from twostroke.predict.shape import ModelShape, requantised

CHUNK_TOKENS = 500  # a retrieved chunk, where its length is not known
FEWER_BITS = 4.5  # bits a weight of Q4_0
BATCH = 8
LEAST_SHARE = 0.01  # of the wait; a cure that saves less is none
_LARGER_CHUNK = 4


def cures_for(predictor: Predictor, workload: Workload) -> tuple[Cure, ...]:
    """Return the cures of the wait, the most seconds first; empty where no time is known."""
    compared = Comparison.of(predictor, workload)
    if compared is None:
        return ()
    wait_s = workload.queue_s + compared.now.total
    cures = [c for make in _CURES for c in make(compared)]
    kept = [c for c in cures if not c.is_predicted or (c.saves_high_s or 0) > LEAST_SHARE * wait_s]
    return in_order(kept)


def _queue(c: Comparison) -> Iterator[Cure]:
    queue_s = c.workload.queue_s
    if queue_s > 0:
        yield exact(
            "less_queue",
            "Send fewer requests at once, or add capacity.",
            queue_s,
            f"{queue_s:.2f} s of waiting before the first step",
            "lower throughput, or more machines",
        )


def _prefix(c: Comparison) -> Iterator[Cure]:
    lost = c.workload.lost
    if not lost:
        return
    saving = c.now.total - c.changed(cached=c.workload.cached + lost).total
    yield exact(
        "stable_head",
        "Keep the beginning of the prompt unchanged: clocks and retrieved text go to the end.",
        saving,
        f"{lost:,} tokens that were cached once are computed again: prefill "
        f"{c.now.prefill:.2f} s - {c.now.prefill - saving:.2f} s",
        "none on the answer if the model does not need the changed text early",
    )


def _retrieval(c: Comparison) -> Iterator[Cure]:
    new, prompt, dropped = c.workload.num_new, c.workload.prompt, c.workload.dropped
    fewer = min(dropped or new // 2, new - 1)
    if fewer < 1:
        return
    one = min(CHUNK_TOKENS, fewer)
    each = c.now.total - c.changed(prompt=prompt - one).total
    saving = c.now.total - c.changed(prompt=prompt - fewer).total
    how_many = f"{fewer:,}" if dropped else "half"
    yield exact(
        "fewer_chunks",
        f"Leave out {how_many} of the {new:,} new prompt tokens: fewer or shorter chunks.",
        saving,
        f"each {one:,} tokens fewer save {each:.2f} s; {fewer:,} fewer save {saving:.2f} s, "
        "attention's square included",
        "the model knows less; keep the best chunks",
    )
    if c.workload.has_history:
        yield exact(
            "trim_history",
            "Summarise old turns, rarely and in large cuts.",
            saving,
            f"{fewer:,} tokens of history fewer; the turn of the cut prefills what it keeps",
            "old details are lost; the next turn misses the cache once",
        )


def _output(c: Comparison) -> Iterator[Cure]:
    output = c.workload.output
    fewer = output // 2
    if fewer < 1:
        return
    saving = c.now.total - c.changed(output=output - fewer).total
    yield exact(
        "shorter_output",
        "Ask for less output: a limit on tokens, a stop string, a terser answer.",
        saving,
        f"{fewer:,} of {output:,} tokens fewer at {1e3 * saving / fewer:.1f} ms each",
        "a shorter answer",
    )


def _bits(c: Comparison) -> Iterator[Cure]:
    shape, kv, now = c.cost.shape, c.cost.kv, c.now
    weights, values = shape.weights, shape.num_values
    if weights is None or not values:
        return
    read = weights.body.num_bytes + weights.lm_head.num_bytes + weights.experts.num_bytes
    bits = 8.0 * read / values
    if bits > FEWER_BITS * 1.1:
        then = c.changed(cost=CostModel(requantised(shape, FEWER_BITS), kv))
        yield exact(
            "fewer_bits",
            f"Take {FEWER_BITS:g} bits a weight instead of {bits:.1f}.",
            now.total - then.total,
            f"decode {now.decode - then.decode:+.2f} s of {now.decode:.2f}, prefill "
            f"{now.prefill - then.prefill:+.2f} s of {now.prefill:.2f} on this device's fitted "
            "rates",
            "some quality; measure it with `twostroke perplexity`",
        )
    yield exact(
        "smaller_weights",
        "Take a model with half the weights.",
        now.total - c.changed(cost=CostModel(_halved(shape), kv)).total,
        f"half of {values / 1e6:,.0f} M weights to read and to multiply, attention as it is",
        "another, weaker model",
    )


def _halved(shape: ModelShape) -> ModelShape:
    w = shape.weights
    assert w is not None, "a cost model has weights"
    half = replace(
        w, body=w.body.scaled(0.5), lm_head=w.lm_head.scaled(0.5), experts=w.experts.scaled(0.5)
    )
    return replace(shape, weights=half)


def _kv(c: Comparison) -> Iterator[Cure]:
    if c.cost.kv.name not in ("bf16", "f16"):
        return
    try:
        other = CostModel(c.cost.shape, KvFormat("q8"))
    except ShapeError:
        return
    yield exact(
        "kv_8bit",
        "Store K and V in 8 bits: --kv-type q8.",
        c.now.decode - c.changed(cost=other).decode,
        f"{other.kv_bytes_per_token:,} bytes a token instead of "
        f"{c.cost.kv_bytes_per_token:,} are read in each step of decode",
        "K and V are rounded more coarsely; nearly twice the context fits",
    )


def _chunk_size(c: Comparison) -> Iterator[Cure]:
    if c.workload.num_new <= c.workload.chunk:
        return
    larger = c.workload.chunk * _LARGER_CHUNK
    yield exact(
        "larger_chunk",
        f"Prefill in chunks of {larger:,} tokens: --prefill-chunk {larger}.",
        c.now.prefill - c.changed(chunk=larger).prefill,
        "weights are read once a chunk, not more often",
        "running streams wait longer for each other's prompts; larger buffers",
    )


def _batch(c: Comparison) -> Iterator[Cure]:
    context = c.workload.prompt + max(c.workload.output // 2, 1)
    one, many = c.predictor.decode(context), c.predictor.decode(context, batch=BATCH)
    if one is None or many is None or c.workload.output < 2:
        return
    yield unpredicted(
        "batch",
        "Serve several requests at once: one weight read serves them all.",
        f"{BATCH} streams: {BATCH / many.value:,.0f} tok/s together instead of "
        f"{1 / one.value:,.0f}, each at {1 / many.value:,.0f}; this request alone gains nothing",
    )


def _threads(c: Comparison) -> Iterator[Cure]:
    threads, cores = c.workload.threads, c.workload.cores
    if threads is None or cores is None or threads == cores:
        return
    if threads > cores:
        yield unpredicted(
            "fewer_threads",
            f"Use {cores} threads: more than cores wait for each other at every layer.",
        )
        return
    yield Cure(
        key="more_threads",
        what=f"Use all {cores} cores: --threads {cores}.",
        saves_low_s=0.0,
        saves_high_s=c.now.prefill * (1 - threads / cores),
        basis=f"prefill is arithmetic: at most {threads}/{cores} of its time; decode little",
        side_effect="other programs get less",
    )


_CURES = (_queue, _prefix, _retrieval, _output, _bits, _kv, _chunk_size, _batch, _threads)
