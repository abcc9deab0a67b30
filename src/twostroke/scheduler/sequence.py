"""The progress of one request: its output, its blocks, its place in the queue."""

from __future__ import annotations

import enum

from twostroke.cache.lease import Lease
from twostroke.cache.radix import TOKEN_BYTES, common_tokens, token_key
from twostroke.request import FinishReason, Request
from twostroke.sampling import needs_history
from twostroke.scheduler.policy import GROWTH_TOKENS, order_key
from twostroke.step import BLOCK_SIZE, NO_BLOCKS, BlockTable, SampleSpec

MIN_SHARED_PREFIX = BLOCK_SIZE  # a shorter common prefix is not worth waiting for


class SequenceState(enum.Enum):
    """The stage a sequence is in; a preempted one waits for memory again."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Sequence:
    """One request between its arrival and its end. Sole writer: the scheduler.

    num_computed_tokens counts the tokens whose K and V are in the cache; a decode slice computes
    the last known token. num_cached_tokens is what the prompt found at its first admission.
    max_num_tokens bounds prompt and output together.

    Units: predicted_prefill_s is the predicted time of the whole prompt alone, in seconds.
    """

    __slots__ = (
        "_num_prompt",
        "end_ids",
        "finish_reason",
        "is_declared",
        "key",
        "lease",
        "max_num_tokens",
        "needs_history",
        "num_available_at_refusal",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "order",
        "output_token_ids",
        "predicted_prefill_s",
        "prompt_key",
        "request",
        "shared_prefixes",
        "state",
        "stop_ids",
    )

    def __init__(
        self, request: Request, prompt_key: bytes, *, max_num_tokens: int, serial: int
    ) -> None:
        params = request.params
        self.request = request
        self.order = (order_key(request.priority, request.arrival_s), serial)
        self.prompt_key = prompt_key
        self.key = prompt_key  # after a preemption: prompt and output
        self.max_num_tokens = max_num_tokens
        self.is_declared = params.max_tokens is not None
        self.end_ids = frozenset() if params.ignore_eos else request.end_token_ids
        self.stop_ids = frozenset(params.stop_token_ids)
        self.needs_history = needs_history(params)
        self.state = SequenceState.WAITING
        self.lease: Lease | None = None
        self.output_token_ids: list[int] = []
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.finish_reason: FinishReason | None = None
        self.predicted_prefill_s: float | None = None
        self.num_available_at_refusal: int | None = None  # blocks, when admission last failed
        self.shared_prefixes: dict[str, int] = {}  # request id -> tokens in common
        self._num_prompt = len(request.prompt_token_ids)

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def block_table(self) -> BlockTable:
        """A snapshot of the blocks; empty while the sequence holds none."""
        return self.lease.block_table if self.lease is not None else NO_BLOCKS

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return self._num_prompt + len(self.output_token_ids)

    @property
    def is_decoding(self) -> bool:
        """Whether exactly the last generated token is not computed yet: its next slice decodes."""
        num_output = len(self.output_token_ids)
        return num_output > 0 and self.num_computed_tokens == self._num_prompt + num_output - 1

    @property
    def num_prefill_left(self) -> int:
        """Known tokens that prefill must still compute; 0 for a decoding sequence."""
        return 0 if self.is_decoding else self.num_tokens - self.num_computed_tokens

    @property
    def num_output_left(self) -> int:
        """Tokens that may still come: up to the declared limit, else at most GROWTH_TOKENS."""
        left = self.max_num_tokens - self.num_tokens
        return left if self.is_declared else min(left, GROWTH_TOKENS)

    def token_ids(self, start: int, end: int) -> tuple[int, ...]:
        """Return tokens [start, end) of prompt and output together."""
        prompt, n = self.request.prompt_token_ids, self._num_prompt
        if end <= n:
            return prompt[start:end]
        if start >= n:
            return tuple(self.output_token_ids[start - n : end - n])
        return prompt[start:] + tuple(self.output_token_ids[: end - n])

    def full_key(self) -> bytes:
        """Return the key of prompt and output."""
        return self.prompt_key + token_key(self.output_token_ids)

    def computed_key(self) -> bytes:
        """Return the key of the computed tokens."""
        return self.full_key()[: self.num_computed_tokens * TOKEN_BYTES]

    def sample_spec(self) -> SampleSpec:
        """Return how to choose the next token; ids only where penalties read them."""
        r, output = self.request, self.output_token_ids
        position = self._num_prompt + len(output)
        mask = r.mask.bits(output) if r.mask is not None else None
        if not self.needs_history:
            return SampleSpec(r.params, r.seed, r.choice, position, mask=mask)
        ids = (r.prompt_token_ids, tuple(output))
        return SampleSpec(r.params, r.seed, r.choice, position, *ids, mask)


def waits_for_prefix(sequence: Sequence, running: list[Sequence]) -> bool:
    """Whether an older prompt is computing a prefix that this sequence can soon reuse."""
    for other in running:
        if other.num_computed_tokens >= len(other.key) // TOKEN_BYTES:
            continue  # its prompt is done
        if other.order > sequence.order or other.request.salt != sequence.request.salt:
            continue
        shared = sequence.shared_prefixes.get(other.id)
        if shared is None:
            shared = common_tokens(sequence.key, other.key)
            sequence.shared_prefixes[other.id] = shared
        if shared >= MIN_SHARED_PREFIX and other.num_computed_tokens < shared:
            return True
    return False
