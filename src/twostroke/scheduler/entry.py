"""What the scheduler keeps about a request beside the request itself."""

from __future__ import annotations

from twostroke.cache.radix import TOKEN_BYTES, common_tokens, token_key
from twostroke.request import Request
from twostroke.sampling import needs_history
from twostroke.scheduler.policy import GROWTH_TOKENS, order_key
from twostroke.step import BLOCK_SIZE, SampleSpec

MIN_SHARED_HEAD = BLOCK_SIZE  # a shorter common head is not worth waiting for


class Entry:
    """One request in the scheduler's hands."""

    __slots__ = (
        "end_ids",
        "failed_at",
        "is_declared",
        "key",
        "limit",
        "needs_history",
        "order",
        "prompt_key",
        "request",
        "shared_with",
        "stop_ids",
        "table",
    )

    def __init__(self, request: Request, prompt_key: bytes, limit: int, serial: int) -> None:
        params = request.params
        self.request = request
        self.order = (order_key(request.priority, request.arrival_s), serial)
        self.prompt_key = prompt_key
        self.key = prompt_key  # prompt and, after a preemption, output
        self.limit = limit  # most tokens, prompt and output
        self.is_declared = params.max_tokens is not None
        self.end_ids = frozenset() if params.ignore_eos else request.end_token_ids
        self.stop_ids = frozenset(params.stop_token_ids)
        self.needs_history = needs_history(params)
        self.table: tuple[int, ...] = ()  # request.block_table, frozen
        self.failed_at: int | None = None  # blocks available when admission last failed
        self.shared_with: dict[str, int] = {}  # request id -> tokens of common head

    def full_key(self) -> bytes:
        """Return the key of prompt and output."""
        return self.prompt_key + token_key(self.request.output_token_ids)

    def sample_spec(self) -> SampleSpec:
        """Return how to choose the next token; ids only where penalties look at them."""
        r = self.request
        position = r.num_tokens
        mask = r.mask.bits(r.output_token_ids) if r.mask is not None else None
        if not self.needs_history:
            return SampleSpec(r.params, r.seed, r.choice, position, mask=mask)
        output = tuple(r.output_token_ids)
        return SampleSpec(r.params, r.seed, r.choice, position, r.prompt_token_ids, output, mask)

    @property
    def num_output_left(self) -> int:
        """Tokens that may still come: up to the declared limit, or a guess of GROWTH_TOKENS."""
        left = self.limit - self.request.num_tokens
        return left if self.is_declared else min(left, GROWTH_TOKENS)

    @property
    def num_prefill_left(self) -> int:
        """Tokens that are known and not computed."""
        return self.request.num_tokens - self.request.num_computed_tokens


def waits_for_head(entry: Entry, running: list[Entry]) -> bool:
    """Whether an older prompt in flight will soon have cached a head that this one shares."""
    for other in running:
        computing = other.request
        if computing.num_computed_tokens >= len(other.key) // TOKEN_BYTES:
            continue  # its prompt is done
        if other.order > entry.order or computing.salt != entry.request.salt:
            continue
        shared = entry.shared_with.get(computing.id)
        if shared is None:
            shared = common_tokens(entry.key, other.key)
            entry.shared_with[computing.id] = shared
        if shared >= MIN_SHARED_HEAD and computing.num_computed_tokens < shared:
            return True
    return False
