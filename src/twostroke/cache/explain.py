"""Why the cache did not cover more of a prompt: one reason, the first differing token, the price.

Compares the prompt with recent token sequences of the same caller. Knows ids and message spans,
never text, and never looks outside the caller's own salts.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from twostroke.cache.radix import TOKEN_BYTES, common_tokens
from twostroke.dataclass import dataclass
from twostroke.record import CacheOutcome
from twostroke.request import MessageSpan, Request

MAX_RECENT = 32  # sequences remembered per salt
MAX_SALTS = 1024
MAX_REMEMBERED_BYTES = 64 << 20
MIN_SHARED_TOKENS = 16  # below it two prompts of other salts only share a template's first words
WINDOW_TOKENS = 16  # tokens that must agree for "matches again"
MAX_GAP_TOKENS = 256  # how far into the new prompt a gap is searched
MAX_OLD_GAP_TOKENS = 4096  # how far into the old one
MAX_RETOKENISED_GAP = 32  # a longer gap on one side is a dropped part, not another spelling
OWNER_SEPARATOR = "\x00"

PriceOf = Callable[[int, int], float | None]  # (start, tokens) -> seconds of prefill, None: unknown


def join_salt(owner: str, caller_salt: str) -> str:
    """Return one salt from an owner's (an API key's) and the caller's own."""
    return f"{owner.replace(OWNER_SEPARATOR, '')}{OWNER_SEPARATOR}{caller_salt}"


@dataclass(frozen=True, slots=True)
class _Remembered:
    key: bytes
    num_prompt_tokens: int
    spans: tuple[MessageSpan, ...]


class CacheExplainer:
    """Recent sequences by salt, bounded in number and bytes. Sole writer: the scheduler."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, deque[_Remembered]] = OrderedDict()
        self._salts_of: dict[str, set[str]] = {}
        self._num_bytes = 0

    def remember(self, request: Request, key: bytes) -> None:
        """Keep the computed tokens of a request (as `token_key`) for later comparisons."""
        if not key:
            return
        recent = self._recent.setdefault(request.salt, deque())
        self._recent.move_to_end(request.salt)
        self._salts_of.setdefault(_owner(request.salt), set()).add(request.salt)
        for old in [r for r in recent if key.startswith(r.key)]:
            recent.remove(old)
            self._num_bytes -= len(old.key)
        recent.append(_Remembered(key, request.num_prompt_tokens, request.spans))
        self._num_bytes += len(key)
        if len(recent) > MAX_RECENT:
            self._num_bytes -= len(recent.popleft().key)
        while len(self._recent) > MAX_SALTS or self._num_bytes > MAX_REMEMBERED_BYTES:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        salt, recent = next(iter(self._recent.items()))
        self._num_bytes -= len(recent.popleft().key)
        if recent and len(self._recent) <= MAX_SALTS:
            return
        self._num_bytes -= sum(len(r.key) for r in recent)
        del self._recent[salt]
        salts = self._salts_of[_owner(salt)]
        salts.discard(salt)
        if not salts:
            del self._salts_of[_owner(salt)]

    def explain(
        self, request: Request, key: bytes, num_cached: int, price_s: PriceOf
    ) -> CacheOutcome:
        """Return why only num_cached tokens of the prompt were reused, and what the rest costs.

        Cost: compares the prompt with at most MAX_RECENT sequences of its salt.
        """
        last = request.num_prompt_tokens - 1
        if num_cached >= last:
            return CacheOutcome()
        old, shared = self._closest(request.salt, key)
        if old is None:
            return CacheOutcome(reason=self._reason_without_history(request.salt, key))
        reusable = min(shared, last)
        if reusable > num_cached:
            return CacheOutcome(
                reason="evicted", price_s=price_s(num_cached, reusable - num_cached)
            )
        if shared == len(old.key) // TOKEN_BYTES:
            return CacheOutcome()
        return _diverged(request, key, old, shared, lambda lost: price_s(num_cached, lost))

    def _closest(self, salt: str, key: bytes) -> tuple[_Remembered | None, int]:
        best: tuple[_Remembered | None, int] = (None, -1)
        for old in self._recent.get(salt, ()):
            shared = common_tokens(old.key, key)
            if shared >= best[1]:
                best = (old, shared)
        return best

    def _reason_without_history(self, salt: str, key: bytes) -> str:
        if OWNER_SEPARATOR in salt:
            for other in self._salts_of.get(_owner(salt), ()):
                if self._closest(other, key)[1] >= MIN_SHARED_TOKENS:
                    return "caller_changed_salt"
        return "first_request"


def _owner(salt: str) -> str:
    return salt.partition(OWNER_SEPARATOR)[0]


def _diverged(
    request: Request,
    key: bytes,
    old: _Remembered,
    at: int,
    price_s: Callable[[int], float | None],
) -> CacheOutcome:
    again = find_again(key, old.key, at)
    num_lost = 0
    if again is not None:
        new_at, old_at = again
        num_lost = common_tokens(key[new_at * TOKEN_BYTES :], old.key[old_at * TOKEN_BYTES :])
    message = _span_at(request.spans, at)
    return CacheOutcome(
        reason=_reason(message, old, at, again),
        diverged_token=at,
        diverged_message=message.index if message is not None else None,
        diverged_char=request.char_at(at) if request.char_at is not None else None,
        matches_again_at_token=again[0] if again is not None else None,
        price_s=price_s(num_lost) if num_lost else None,
    )


def _reason(
    message: MessageSpan | None, old: _Remembered, at: int, again: tuple[int, int] | None
) -> str:
    if message is None:
        return "prefix_diverged"
    if at < old.num_prompt_tokens:
        before = _span_at(old.spans, at)
        is_same_text = before is not None and (before.index, before.role, before.text_hash) == (
            message.index,
            message.role,
            message.text_hash,
        )
        return "template_rewrote_history" if is_same_text else "prefix_diverged"
    if message.role != "assistant" or again is None:
        return "prefix_diverged"
    is_dropped = max(again[0] - at, again[1] - at) > MAX_RETOKENISED_GAP
    return "template_rewrote_history" if is_dropped else "retokenised"


def _span_at(spans: tuple[MessageSpan, ...], token: int) -> MessageSpan | None:
    """Return the message that holds the token, or the last one before it."""
    found = None
    for span in spans:
        if span.start > token:
            break
        found = span
    return found


def find_again(new: bytes, old: bytes, at: int) -> tuple[int, int] | None:
    """Return the first (new token, old token) from which both agree again for a whole window.

    Cost: at most MAX_GAP_TOKENS searches through MAX_OLD_GAP_TOKENS tokens.
    """
    low = at * TOKEN_BYTES
    high = low + (MAX_OLD_GAP_TOKENS + WINDOW_TOKENS) * TOKEN_BYTES
    size = WINDOW_TOKENS * TOKEN_BYTES
    for start in range(at, at + MAX_GAP_TOKENS):
        window = new[start * TOKEN_BYTES : start * TOKEN_BYTES + size]
        if len(window) < size:
            return None
        place = old.find(window, low, high)
        while place >= 0 and place % TOKEN_BYTES:
            place = old.find(window, place + 1, high)
        if place >= 0:
            return start, place // TOKEN_BYTES
    return None
