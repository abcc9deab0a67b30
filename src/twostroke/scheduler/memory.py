"""The KV blocks of the sequences: promised at admission, grown in decode, taken back at the end."""

from __future__ import annotations

from collections.abc import Callable

from twostroke.cache.explain import CacheExplainer
from twostroke.cache.lease import Allocation
from twostroke.cache.manager import KVCacheManager
from twostroke.record import CacheOutcome
from twostroke.scheduler.policy import promised_tokens
from twostroke.scheduler.sequence import Sequence, SequenceState
from twostroke.step import BLOCK_SIZE, BlockCopy

PrefillPrice = Callable[[int, int], float | None]  # (start, tokens) -> seconds, None: unknown


class SequenceMemory:
    """Sole caller of the cache manager. Collects the new blocks and copies of the step in planning.

    Units: growth_tokens in tokens, promised beyond the prompt where no length is declared.
    """

    def __init__(
        self, cache: KVCacheManager, *, growth_tokens: int, prefill_price_s: PrefillPrice
    ) -> None:
        self.cache = cache
        self.new_blocks: list[int] = []
        self.copies: list[BlockCopy] = []
        self._growth_tokens = growth_tokens
        self._prefill_price_s = prefill_price_s
        self._explainer = CacheExplainer()

    def begin_plan(self) -> None:
        """Start to collect the blocks of another step."""
        self.new_blocks = []
        self.copies = []

    def promise_for(self, sequence: Sequence) -> int:
        """Return for how many tokens memory is promised at the sequence's admission."""
        return promised_tokens(
            num_tokens=sequence.num_tokens,
            max_num_tokens=sequence.max_num_tokens,
            is_declared=sequence.is_declared,
            num_preemptions=sequence.num_preemptions,
            growth=self._growth_tokens,
        )

    def admit(self, sequence: Sequence, *, is_pool_in_use: bool) -> CacheOutcome | None:
        """Lease blocks for a waiting sequence; None: there is no room now, nothing changed.

        A refusal is remembered: until more blocks are available the prompt is not looked up again.
        """
        available = self.cache.num_available
        refused_at = sequence.num_available_at_refusal
        if refused_at is not None and available <= refused_at and is_pool_in_use:
            return None
        match = self.cache.match(sequence.request.salt, sequence.key)
        allocation = self.cache.allocate(match, self.promise_for(sequence))
        if allocation is None:
            assert is_pool_in_use, "a request that fits the empty pool was not admitted to it"
            sequence.num_available_at_refusal = available
            return None
        self._take(sequence, allocation)
        is_first = sequence.state is SequenceState.WAITING
        if not is_first:
            return CacheOutcome()
        sequence.num_cached_tokens = allocation.num_cached_tokens
        return self._explained(sequence)

    def _take(self, sequence: Sequence, allocation: Allocation) -> None:
        sequence.lease = allocation.lease
        sequence.num_computed_tokens = allocation.num_cached_tokens
        sequence.num_available_at_refusal = None
        self.new_blocks.extend(allocation.new_blocks)
        self.copies.extend(allocation.copies)

    def _explained(self, sequence: Sequence) -> CacheOutcome:
        if not self.cache.is_enabled:
            return CacheOutcome(reason="disabled")
        return self._explainer.explain(
            sequence.request, sequence.key, sequence.num_cached_tokens, self._prefill_price_s
        )

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Promise a growing sequence room for num_tokens and, if possible, for its next growth."""
        assert sequence.lease is not None
        if num_tokens <= sequence.lease.num_reserved_tokens:
            return True
        most = max(num_tokens, sequence.max_num_tokens - 1)
        generous = min(num_tokens + self._growth_tokens, most)
        reserve = self.cache.reserve
        return reserve(sequence.lease, generous) or reserve(sequence.lease, num_tokens)

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Add the blocks that num_tokens tokens need to the step's new blocks."""
        assert sequence.lease is not None
        self.new_blocks.extend(self.cache.extend(sequence.lease, num_tokens))

    def has_slot(self, sequence: Sequence) -> bool:
        """Whether the next token's slot lies in a block that the sequence already holds."""
        assert sequence.lease is not None
        return sequence.num_computed_tokens < len(sequence.lease.blocks) * BLOCK_SIZE

    def commit(self, sequence: Sequence, *, with_tail: bool = False) -> None:
        """Let other requests reuse the computed blocks."""
        assert sequence.lease is not None
        self.cache.commit(sequence.lease, sequence, with_tail=with_tail)

    def remember_prompt(self, sequence: Sequence) -> None:
        """Keep the tokens of a computed prompt, to explain later misses."""
        self._explainer.remember(sequence.request, sequence.prompt_key)

    def preempt(self, sequence: Sequence) -> None:
        """Take the blocks of a sequence that is to be computed again."""
        assert sequence.lease is not None
        self.cache.free(sequence.lease, sequence)
        sequence.lease = None
        sequence.key = sequence.full_key()
        sequence.num_available_at_refusal = None
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1

    def release(self, sequence: Sequence, *, is_trusted: bool) -> int:
        """Take back the blocks of a sequence that ends; return how many it held.

        Not is_trusted: its last step failed, so only blocks committed before stay reusable.
        """
        lease = sequence.lease
        if lease is None:
            return 0
        num_blocks = len(lease.blocks)
        self._explainer.remember(sequence.request, sequence.computed_key())
        self.cache.free(lease, sequence if is_trusted else None)
        sequence.lease = None
        return num_blocks
