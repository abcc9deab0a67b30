"""The answers of one HTTP request: started together, merged as they come, cancelled together.

Further choices of a prompt start at the first choice's first token, so that its prefill serves
them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import field
from typing import TYPE_CHECKING

from twostroke.dataclass import dataclass
from twostroke.engine.async_engine import AsyncEngine
from twostroke.generation.answer import Answer, Delta
from twostroke.generation.make_request import EncodedPrompt, another_choice, make_request
from twostroke.request import SamplingParams
from twostroke.server.errors import GenerationFailed

if TYPE_CHECKING:
    from twostroke.server.service import Service
    from twostroke.server.tools import Form


@dataclass(slots=True)
class _Choice:
    """One answer among others. follows: the choice whose prefill it waits for."""

    answer: Answer
    follows: _Choice | None = None
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)


class Answers:
    """Iterate to get the deltas of all choices; `close` cancels those that still run.

    on_end is called once, when none of them runs any more.
    """

    def __init__(
        self, engine: AsyncEngine, choices: Sequence[_Choice], on_end: Callable[[], None]
    ) -> None:
        self.first_request = choices[0].answer.request
        self.num_choices = len(choices)
        self._choices = tuple(choices)
        self._engine = engine
        self._on_end: Callable[[], None] | None = on_end
        self._deltas: asyncio.Queue[Delta | BaseException] = asyncio.Queue(len(choices))
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Hand the requests to the engine; return when the engine has taken the first ones.

        Raises:
            RequestError, CapacityError: the engine refused one; then none of them runs.
        """
        loop = asyncio.get_running_loop()
        leaders = []
        for choice in self._choices:
            added: asyncio.Future[None] = loop.create_future()
            if choice.follows is None:
                leaders.append(added)
            self._tasks.append(loop.create_task(self._run(choice, added)))
        try:
            await asyncio.gather(*leaders)
        except BaseException:
            await self.close()
            raise

    async def __aiter__(self) -> AsyncIterator[Delta]:
        num_open = self.num_choices
        while num_open:
            delta = await self._deltas.get()
            if isinstance(delta, BaseException):
                raise delta
            if delta.finish_reason is not None:
                num_open -= 1
            yield delta

    async def close(self) -> None:
        """Cancel the choices that have not ended and wait until the engine was told."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end()

    async def _run(self, choice: _Choice, added: asyncio.Future[None]) -> None:
        answer = choice.answer
        try:
            if choice.follows is not None:
                await choice.follows.has_begun.wait()
            outputs = self._engine.generate(answer.request, on_added=lambda: _settle(added))
            async with aclosing(outputs):
                async for output in outputs:
                    if output.error is not None:
                        raise GenerationFailed(
                            "the answer could not be computed", value=output.error
                        )
                    delta = answer.push(output)
                    choice.has_begun.set()
                    if delta is not None:
                        await self._deltas.put(delta)
                    elif stop_request := answer.take_stop_request():
                        self._engine.stop(answer.request.id, *stop_request)
        except Exception as error:
            if choice.follows is None and not added.done():
                added.set_exception(error)
                return
            await self._deltas.put(error)
        finally:
            choice.has_begun.set()


def _settle(added: asyncio.Future[None]) -> None:
    if not added.done():
        added.set_result(None)


async def start_answers(
    service: Service,
    request_id: str,
    prompts: Sequence[EncodedPrompt],
    params: SamplingParams,
    *,
    salt: str,
    count: int = 1,
    form: Form | None = None,
) -> Answers:
    """Start `count` answers to each prompt; return when the engine has taken them.

    form: the form that every answer keeps to; None: free text.

    Raises:
        RequestError, CapacityError, EngineStopped: refused; then none of them runs.
    """
    admission, num = service.admission, len(prompts) * count
    admission.reserve(num)
    try:
        choices = _choices(service, request_id, prompts, params, salt, count, form)
        answers = Answers(service.engine, choices, lambda: admission.release(num))
    except BaseException:
        admission.release(num)
        raise
    await answers.start()
    return answers


def _choices(
    service: Service,
    request_id: str,
    prompts: Sequence[EncodedPrompt],
    params: SamplingParams,
    salt: str,
    count: int,
    form: Form | None,
) -> list[_Choice]:
    choices: list[_Choice] = []
    seed: int | None = None
    for prompt in prompts:
        leader: _Choice | None = None
        for number in range(count):
            name = f"{request_id}-{len(choices)}"
            mask = form.new_mask() if form is not None else None
            if leader is None:
                request = make_request(
                    name, prompt, params, service.loaded.model, seed=seed, salt=salt, mask=mask
                )
                seed = request.seed  # all prompts of one HTTP request share a drawn seed
            else:
                request = another_choice(leader.answer.request, name, number, mask=mask)
            text = service.prompts.answer_text(prompt, params.stop, form)
            choice = _Choice(Answer(request, text, index=len(choices)), follows=leader)
            leader = leader or choice
            choices.append(choice)
    return choices
