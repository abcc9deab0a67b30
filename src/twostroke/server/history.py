"""Conversations that outgrow the context: drop the oldest turns, or have the model summarise them.

System messages and the last turn always stay, and a turn is never cut in two.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twostroke.dataclass import dataclass
from twostroke.errors import ContextTooLong
from twostroke.generation.make_request import EncodedPrompt
from twostroke.request import SamplingParams
from twostroke.server.answers import start_answers
from twostroke.server.prompts import ChatPrompt

if TYPE_CHECKING:
    from twostroke.server.generate import GenerationRequest, ReplyState

Message = dict[str, Any]
Encode = Callable[[Sequence[Message]], Awaitable[EncodedPrompt]]
Summarise = Callable[[Sequence[Message]], Awaitable[str]]

ANSWER_RESERVE = 256  # tokens kept for an answer of undeclared length
MAX_SUMMARY_TOKENS = 160
_SYSTEM_ROLES = ("system", "developer")
_ASK = "Summarise our conversation so far in at most 100 words. Keep names, numbers and decisions."


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """The messages left out of a conversation. Units: saved_s is predicted prefill, in seconds."""

    policy: str
    dropped_messages: tuple[int, ...] = ()
    dropped_turns: int = 0
    tokens_before: int | None = None
    tokens_after: int | None = None
    saved_s: float | None = None
    summary_tokens: int | None = None

    def report(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def turns_of(messages: Sequence[Message]) -> list[list[int]]:
    """Return the indices of each turn: a user message and all that follows it up to the next.

    System messages belong to no turn.
    """
    turns: list[list[int]] = []
    for index, message in enumerate(messages):
        if message["role"] in _SYSTEM_ROLES:
            continue
        if message["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(index)
    return turns


async def fit(
    messages: Sequence[Message],
    *,
    policy: str,
    encode: Encode,
    summarise: Summarise,
    room: int,
    predicted_s: Callable[[int], float | None],
) -> tuple[EncodedPrompt, Trimmed]:
    """Return a prompt of at most `room` tokens, and the messages that were left out for it.

    Cost: one rendering for the whole, then one for each halving of the number of turns.

    Raises:
        ContextTooLong: even the last turn alone does not fit.
    """
    whole = await _encoded_or_none(messages, encode)
    if whole is not None and whole.num_tokens <= room:
        return whole, Trimmed(policy=policy, tokens_before=whole.num_tokens)
    turns = turns_of(messages)
    space = room - (MAX_SUMMARY_TOKENS + 64 if policy == "summarize" else 0)
    count, prompt = await _fewest_dropped(messages, turns, encode, space)
    dropped = tuple(index for turn in turns[:count] for index in turn)
    summary_tokens = None
    if policy == "summarize":
        shorter = await _with_summary(messages, dropped, encode, summarise)
        if shorter.num_tokens <= room:
            summary_tokens, prompt = shorter.num_tokens - prompt.num_tokens, shorter
    before = whole.num_tokens if whole is not None else None
    saved = before - prompt.num_tokens if before is not None else None
    trimmed = Trimmed(
        policy=policy,
        dropped_messages=dropped,
        dropped_turns=count,
        tokens_before=before,
        tokens_after=prompt.num_tokens,
        saved_s=predicted_s(saved) if saved is not None and saved > 0 else None,
        summary_tokens=summary_tokens,
    )
    return prompt, trimmed


async def _with_summary(
    messages: Sequence[Message], dropped: Sequence[int], encode: Encode, summarise: Summarise
) -> EncodedPrompt:
    """Return the prompt in which a question and its answer stand for the dropped messages."""
    summary = await summarise([messages[i] for i in dropped])
    pair = [{"role": "user", "content": _ASK}, {"role": "assistant", "content": summary}]
    return await encode(_without(messages, set(dropped), pair))


async def _encoded_or_none(messages: Sequence[Message], encode: Encode) -> EncodedPrompt | None:
    """Return the whole conversation's prompt, None where its bytes alone are too many."""
    try:
        return await encode(messages)
    except ContextTooLong:
        return None


async def _fewest_dropped(
    messages: Sequence[Message], turns: list[list[int]], encode: Encode, room: int
) -> tuple[int, EncodedPrompt]:
    """Return the least number of oldest turns to drop for a prompt that fits, and that prompt."""
    low, high = 1, len(turns) - 1
    found: tuple[int, EncodedPrompt] | None = None
    while low <= high:
        count = (low + high) // 2
        dropped = {index for turn in turns[:count] for index in turn}
        prompt = await _encoded_or_none(_without(messages, dropped, []), encode)
        if prompt is not None and prompt.num_tokens <= room:
            found, high = (count, prompt), count - 1
        else:
            low = count + 1
    if found is None:
        raise ContextTooLong(
            "the last turn alone does not fit the context",
            limit=f"{room} tokens of prompt",
            remedy="Shorten the last message or ask for fewer tokens.",
            param="messages",
        )
    return found


def _without(
    messages: Sequence[Message], dropped: set[int], instead: Sequence[Message]
) -> list[Message]:
    """Return the messages that were not dropped; `instead` stands before the first turn kept."""
    kept: list[Message] = []
    is_before_turns = True
    for index, message in enumerate(messages):
        if index in dropped:
            continue
        if is_before_turns and message["role"] not in _SYSTEM_ROLES:
            kept.extend(instead)
            is_before_turns = False
        kept.append(message)
    return kept


async def fitted_prompt(
    reply: ReplyState, asked: GenerationRequest, params: SamplingParams
) -> EncodedPrompt:
    """Return the prompt of a conversation, shortened by its policy; the reply gets the report.

    Raises:
        ContextTooLong: even the last turn alone does not fit. Whatever `Prompts.encode` raises.
    """
    (conversation,) = asked.prompts
    assert isinstance(conversation, ChatPrompt)
    messages = [dict(message) for message in conversation.messages]
    offered, status = asked.tools.offered, reply.service.engine.status

    async def summarise(some: Sequence[Message]) -> str:
        return await _summary(reply, some)

    reserve = params.max_tokens if params.max_tokens is not None else ANSWER_RESERVE
    prompt, trimmed = await fit(
        messages,
        policy=asked.history,
        encode=lambda some: reply.service.prompts.encode(
            replace(conversation, messages=some), offered, reply.start_s
        ),
        summarise=summarise,
        room=status.max_prompt_tokens(SamplingParams(max_tokens=reserve)),
        predicted_s=lambda num_tokens: status.predicted_prefill_s(0, num_tokens),
    )
    reply.trimmed = trimmed.report()
    return prompt


async def _summary(reply: ReplyState, messages: Sequence[Message]) -> str:
    """Have the model summarise messages; the oldest are left out where they are too many."""
    service, status = reply.service, reply.service.engine.status
    params = SamplingParams(temperature=0.0, max_tokens=MAX_SUMMARY_TOKENS)

    async def no_summary(_: Sequence[Message]) -> str:
        return ""

    prompt, _ = await fit(
        [*messages, {"role": "user", "content": _ASK}],
        policy="drop_oldest",
        encode=lambda some: service.prompts.encode(ChatPrompt(messages=some), (), time.monotonic()),
        summarise=no_summary,
        room=status.max_prompt_tokens(params),
        predicted_s=lambda num_tokens: status.predicted_prefill_s(0, num_tokens),
    )
    answers = await start_answers(
        service, f"{reply.facts.id}-summary", [prompt], params, salt=reply.salt("")
    )
    texts = []
    try:
        async for delta in answers:
            texts.append(delta.text)
            if delta.record is not None:
                reply.facts.records.append(delta.record)
    finally:
        await answers.close()
    return "".join(texts).strip() or "(nothing)"
