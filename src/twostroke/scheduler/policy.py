"""The scheduler's decisions as pure functions: order, limits, promises, chunk size."""

from __future__ import annotations

from collections.abc import Callable

from twostroke.errors import ContextTooLong, OutOfBlocks
from twostroke.request import SamplingParams
from twostroke.step import BLOCK_SIZE

PRIORITY_STEP_S = 60.0  # waiting that outweighs one level of priority, so that nobody starves
GROWTH_TOKENS = 256  # promised beyond a prompt without max_tokens (docs/laws.md, law 3)
MIN_CHUNK = 16  # tokens of a prompt that every step computes at least
UNKNOWN_CHUNK = 64  # prefill beside streams while no step has been measured
# Streams that miss the target by themselves are slowed by this factor, so that prompts progress.
DECODE_SLACK = 1.25


def order_key(priority: int, arrival_s: float) -> float:
    """Return the order of service, lowest first. Lower priorities are more urgent, as in vLLM."""
    return arrival_s + priority * PRIORITY_STEP_S


def max_total_tokens(
    params: SamplingParams, num_prompt: int, *, max_model_len: int, num_blocks: int
) -> int:
    """Return the most tokens, prompt and output, that the request may reach.

    Raises:
        ContextTooLong: the prompt, or prompt and declared max_tokens, exceed the context.
        OutOfBlocks: the whole KV pool could not hold it.
    """
    wanted = params.max_tokens
    total = num_prompt + (1 if wanted is None else wanted)
    if total > max_model_len:
        output = "at least 1" if wanted is None else str(wanted)
        raise ContextTooLong(
            f"{num_prompt} prompt tokens and {output} output tokens exceed the context by "
            f"{total - max_model_len}",
            value=total,
            limit=f"{max_model_len} tokens",
            remedy="Shorten the prompt, lower max_tokens, or raise --max-model-len.",
            param="max_tokens" if num_prompt < max_model_len else "prompt",
        )
    pool = num_blocks * BLOCK_SIZE
    cached = max(num_prompt, total - 1)  # the last token is never read back
    if cached > pool:
        raise OutOfBlocks(
            f"the request needs {-(-cached // BLOCK_SIZE)} KV blocks, the pool has {num_blocks}",
            value=f"{cached} tokens",
            limit=f"{pool} tokens",
            remedy="Raise --kv-memory, take a smaller --kv-type, or ask for fewer tokens.",
        )
    return total if wanted is not None else min(max_model_len, pool)


def longest_prompt(params: SamplingParams, max_model_len: int, num_blocks: int) -> int:
    """Return the longest prompt that fits the context and the pool with these parameters."""
    room = min(max_model_len, num_blocks * BLOCK_SIZE)
    return max(room - (params.max_tokens if params.max_tokens is not None else 1), 0)


def promised_tokens(
    *, num_tokens: int, max_num_tokens: int, is_declared: bool, num_preemptions: int, growth: int
) -> int:
    """Return for how many tokens memory is promised at admission.

    The growth doubles with each preemption, so that a sequence is preempted only a few times.
    """
    most = max(num_tokens, max_num_tokens - 1)
    if is_declared:
        return most
    return min(num_tokens + (growth << min(num_preemptions, 20)), most)


def step_budget_s(target_s: float, decode_s: float) -> float:
    """Return how long a step that also prefills may take."""
    return max(target_s, decode_s * DECODE_SLACK)


def largest_chunk(cost_s: Callable[[int], float], *, low: int, high: int, budget_s: float) -> int:
    """Return the most tokens in [low, high] whose step keeps the budget, `low` if none does.

    Cut chunks are whole blocks.
    """
    if low >= high or cost_s(high) <= budget_s:
        return high
    good, bad = low // MIN_CHUNK, -(-high // MIN_CHUNK)
    while bad - good > 1:
        middle = (good + bad) // 2
        if cost_s(middle * MIN_CHUNK) <= budget_s:
            good = middle
        else:
            bad = middle
    return max(good * MIN_CHUNK, low)
