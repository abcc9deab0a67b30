"""From an encoded prompt to a request: ids checked against the vocabulary, seed drawn, end tokens.

Knows no text and no scheduler. Limits of one server are not checked here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from twostroke.dataclass import dataclass
from twostroke.errors import RequestError
from twostroke.model.loaded import LoadedModel
from twostroke.request import MessageSpan, Request, SamplingParams, TokenMask


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPrompt:
    """The token ids of a prompt, the messages they came from, and the time that encoding took.

    is_reasoning_open: the chat template has already written the tag that opens the reasoning part.
    Units: init_s in seconds: template, tokeniser and grammar together.
    """

    token_ids: tuple[int, ...]
    spans: tuple[MessageSpan, ...] = ()
    init_s: float = 0.0
    is_reasoning_open: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids)


def make_request(
    request_id: str,
    prompt: EncodedPrompt,
    params: SamplingParams,
    model: LoadedModel,
    *,
    seed: int | None = None,
    salt: str = "",
    mask: TokenMask | None = None,
) -> Request:
    """Return the request for one answer; it arrives now.

    seed: used where the parameters have none. Without either a seed is drawn.

    Raises:
        RequestError: an id of the prompt, logit_bias or stop_token_ids outside the vocabulary.
    """
    vocab_size = model.config.vocab_size
    check_token_ids(prompt.token_ids, vocab_size, "prompt")
    check_token_ids([i for i, _ in params.logit_bias], vocab_size, "logit_bias")
    check_token_ids(params.stop_token_ids, vocab_size, "stop_token_ids")
    if params.seed is not None:
        seed = params.seed
    return Request(
        id=request_id,
        prompt_token_ids=prompt.token_ids,
        params=params,
        seed=_drawn_seed() if seed is None else seed,
        end_token_ids=frozenset() if params.ignore_eos else model.end_token_ids,
        arrival_s=time.monotonic(),
        salt=salt,
        spans=prompt.spans,
        init_s=prompt.init_s,
        mask=mask,
    )


def another_choice(
    first: Request, request_id: str, choice: int, *, mask: TokenMask | None = None
) -> Request:
    """Return the request for a further answer to the prompt of `first`, with the same seed.

    The generator is keyed by seed and choice, so that the answers differ.
    """
    return replace(first, id=request_id, choice=choice, mask=mask, arrival_s=time.monotonic())


def check_token_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Refuse ids outside the vocabulary. Takes time linear in their number.

    Raises:
        RequestError: names the first bad id and the parameter.
    """
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    raise RequestError(
        f"a token id of {param} is outside the vocabulary",
        value=next(i for i in token_ids if not 0 <= i < vocab_size),
        limit=f"[0, {vocab_size})",
        param=param,
    )


def _drawn_seed() -> int:
    """Return a random seed of 53 bits, which every reader of JSON keeps exactly."""
    return int.from_bytes(os.urandom(7), "little") >> 3
