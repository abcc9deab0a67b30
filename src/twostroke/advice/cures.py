"""The cures by phase, each with its arithmetic.

A caller gives measured seconds and counts. Where it leaves one None, the saving becomes a range or
None. Where nothing can be predicted, cures of a phase stand in the order of
docs/where-does-the-time-go.md.
"""

from __future__ import annotations

from twostroke.advice import arithmetic
from twostroke.advice.cure import Cure, between, exact, in_order, unpredicted
from twostroke.record import RequestRecord

HALF = 0.5
CPU_LAYER_SLOWDOWN = (5.0, 15.0)  # a layer on the CPU over one on the GPU; llama.cpp's table: 13
GRAPH_SPEEDUP = (1.03, 1.26)  # arXiv:2605.30571: L4 and H100


def shorter_prompt(new_tokens: int | None, prefill_s: float) -> Cure:
    """Send half of the prompt: time is linear with a quadratic part, so half to three quarters."""
    what = "Send less prompt: fewer or shorter retrieved chunks, shorter history."
    if not new_tokens:
        return unpredicted("shorter_prompt", what)
    rate = new_tokens / prefill_s
    basis = (
        f"{new_tokens:,} new tokens in {prefill_s:.2f} s: each 1,000 fewer save "
        f"{1000 / rate:.2f} s; half of them, between 1/2 (linear) and 3/4 (quadratic) of the time"
    )
    return between(
        "shorter_prompt", what, prefill_s * HALF, prefill_s * (1 - (1 - HALF) ** 2), basis
    )


def stable_head(lost_s: float | None, lost_tokens: int | None, where: str = "") -> Cure:
    """Keep the prefix of the prompt unchanged, so that the cache has it."""
    what = (
        "Keep the beginning of the prompt the same from turn to turn: documents once and early, "
        "only append; time stamps and retrieved text at the end."
    )
    if lost_s is None:
        return unpredicted("stable_head", what, where)
    tokens = f"{lost_tokens:,} tokens were" if lost_tokens else "a known prefix was"
    basis = f"{tokens} computed again in {lost_s:.2f} s{where}"
    return exact("stable_head", what, lost_s, basis)


def trim_history() -> Cure:
    """Summarise the middle of a long chat, rarely and in large cuts."""
    return unpredicted(
        "trim_history", "Trim or summarise history in rare, large cuts rather than every turn."
    )


def faster_prefill() -> Cure:
    """More arithmetic, when nothing else is left."""
    return unpredicted("faster_prefill", "Then more arithmetic: a faster device or better kernels.")


def shorter_output(output_tokens: int | None, decode_s: float) -> Cure:
    """Ask for half as many tokens."""
    what = "Ask for less output: a limit on tokens, a terser answer."
    if not output_tokens or output_tokens < 2:
        return unpredicted("shorter_output", what)
    each = decode_s / (output_tokens - 1)
    fewer = output_tokens // 2
    basis = f"{each * 1000:.1f} ms a token: {fewer:,} fewer of {output_tokens:,} save this"
    return exact("shorter_output", what, each * fewer, basis)


def fewer_bits(decode_s: float, weight_bytes: float | None, utilisation: float | None) -> Cure:
    """Store the weights in half the bytes: saves at most half, at least half of the memory part."""
    what = "Fewer bytes a token: a smaller quantisation, a smaller model, or one with experts."
    if not weight_bytes or utilisation is None:
        return unpredicted("fewer_bits", what)
    basis = (
        f"{weight_bytes / 1e9:.1f} GB are read a token at {100 * utilisation:.0f} % of the "
        "bandwidth; with half the bytes the memory part halves"
    )
    return between(
        "fewer_bits", what, decode_s * HALF * min(utilisation, 1.0), decode_s * HALF, basis
    )


def speculate() -> Cure:
    """Draft tokens; pays only above the break-even accepted length."""
    return unpredicted(
        "speculate",
        "Speculative decoding, if drafts are accepted.",
        "pays when the accepted length exceeds 1 + k * draft cost / target cost",
    )


def batch() -> Cure:
    """Share a weight read among requests: throughput, not this request's speed."""
    return unpredicted("batch", "Serve several requests at once: one weight read serves them all.")


def move_layers(decode_s: float, on_gpu: float, total: float) -> Cure:
    """Bring the layers on the CPU to the GPU."""
    low, high = (arithmetic.offload_saving(decode_s, on_gpu, total, r) for r in CPU_LAYER_SLOWDOWN)
    return between(
        "offload_all",
        "Make the whole model fit on the GPU: smaller context, 8-bit KV, fewer slots, fewer bits.",
        low,
        high,
        f"{on_gpu:g} of {total:g} on the GPU; a layer on the CPU takes "
        f"{CPU_LAYER_SLOWDOWN[0]:g} to {CPU_LAYER_SLOWDOWN[1]:g} times as long",
    )


def use_graphs(decode_s: float) -> Cure:
    """Launch whole steps, not kernels."""
    low, high = (decode_s * (1 - 1 / s) for s in GRAPH_SPEEDUP)
    return between(
        "graphs",
        "Capture steps as graphs or compile the model: launches, not bytes, take the time.",
        low,
        high,
        f"graphs gave {GRAPH_SPEEDUP[0]} to {GRAPH_SPEEDUP[1]} times on measured GPUs",
    )


def less_queue(queue_s: float | None) -> Cure:
    """Arrive slower than served, or serve faster."""
    what = "Send fewer requests at once, or add capacity: replicas, a larger batch limit."
    if queue_s is None:
        return unpredicted("less_queue", what)
    return between("less_queue", what, 0.0, queue_s, f"at most the {queue_s:.2f} s of waiting")


def for_record(record: RequestRecord) -> tuple[Cure, ...]:
    """Return the cures of one request, the largest sure saving first."""
    phases, cures = record.phases, list[Cure]()
    if phases.queue_s:
        cures.append(less_queue(phases.queue_s))
    if phases.load_s:
        what = "Keep the model loaded between requests."
        cures.append(exact("keep_loaded", what, phases.load_s, "the load inside this wait"))
    if record.cache.price_s:
        lost = _lost_tokens(record)
        cures.append(stable_head(record.cache.price_s, lost, _where(record)))
    if phases.prefill_s:
        cures.append(shorter_prompt(record.prompt.new, phases.prefill_s))
    if phases.decode_s:
        cures.append(shorter_output(record.output.total, phases.decode_s))
        if record.decode_ceiling_tok_s:
            cures.append(_fewer_bits_of(record, phases.decode_s))
        else:
            cures.append(fewer_bits(phases.decode_s, None, None))
        cures.append(speculate())
    return in_order(cures)


def _fewer_bits_of(record: RequestRecord, decode_s: float) -> Cure:
    """Judge by the record's own ceiling; its utilisation is the share that memory takes."""
    assert record.decode_ceiling_tok_s
    used = (record.decode_tok_s or 0.0) / record.decode_ceiling_tok_s
    what = "Fewer bytes a token: a smaller quantisation, a smaller model, or one with experts."
    basis = f"decode runs at {100 * used:.0f} % of its ceiling; half the bytes halve that part"
    return between("fewer_bits", what, decode_s * HALF * min(used, 1.0), decode_s * HALF, basis)


def _lost_tokens(record: RequestRecord) -> int | None:
    """Tokens that could have been reused, where the rate of this prefill tells."""
    rate, price = record.prefill_tok_s, record.cache.price_s
    return round(rate * price) if rate and price else None


def _where(record: RequestRecord) -> str:
    token = record.cache.diverged_token
    message = record.cache.diverged_message
    if token is None:
        return ""
    in_message = f", in message {message}" if message is not None else ""
    return f"; the prompt first differs at token {token:,}{in_message}"
