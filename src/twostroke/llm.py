"""The offline entry point: a model by name, prompts in; text, ids and records of both phases out.

from twostroke import LLM, SamplingParams
llm = LLM("smollm2:135m")
for output in llm.generate(["The capital of France is"], SamplingParams(max_tokens=8)):
    print(output.text, output.record.prefill_tok_s)
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from twostroke.build import BuiltEngine, build_engine
from twostroke.config import EngineConfig
from twostroke.dataclass import dataclass
from twostroke.errors import RequestError
from twostroke.events import Observer
from twostroke.generation.answer import Answer, Delta, merged
from twostroke.generation.make_request import EncodedPrompt, check_token_ids, make_request
from twostroke.generation.offline import OfflineDriver
from twostroke.model.loaded import LoadedModel, load_model
from twostroke.record import RequestRecord
from twostroke.request import FinishReason, Request, SamplingParams, TokenLogprob
from twostroke.step import BLOCK_SIZE, BlockTable, Phase, Runner, Slice, StepPlan
from twostroke.text.stream import PlainText

__all__ = ["LLM", "Delta", "EncodedPrompt", "Generation"]

Message = Mapping[str, Any]
Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One whole answer."""

    text: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: tuple[TokenLogprob, ...]
    seed: int
    record: RequestRecord | None


class LLM:
    """A loaded model and its engine in this process. Not thread-safe: one caller at a time.

    `observers` see the engine's events, for progress displays.

    Raises:
        ModelError, ConfigError, CapacityError: the model cannot be found, read, run or held.
    """

    def __init__(
        self,
        model: str,
        config: EngineConfig | None = None,
        *,
        observers: Sequence[Observer] = (),
    ) -> None:
        start = time.monotonic()
        self.model: LoadedModel = load_model(model)
        self.built: BuiltEngine = build_engine(
            self.model,
            config or EngineConfig(),
            observers=observers,
            max_waiting=sys.maxsize,  # the caller waits for its own prompts
            max_wait_s=math.inf,
        )
        self.load_s = time.monotonic() - start
        self._driver = OfflineDriver(self.built.engine)
        self._numbers = itertools.count()
        self._scorer: Runner | None = None

    # Prompts

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Tokenise a raw prompt, with BOS if the tokenizer says so; ids pass as they are."""
        start = time.monotonic()
        if isinstance(prompt, str):
            ids = tuple(self.model.tokenizer.encode(prompt, add_special=True))
        else:
            ids = tuple(int(i) for i in prompt)
        return EncodedPrompt(token_ids=ids, init_s=time.monotonic() - start)

    def encode_chat(self, messages: Sequence[Message]) -> EncodedPrompt:
        """Render the model's chat template and tokenise; user content never becomes control tokens.

        Raises:
            TemplateError: the model has no template, or it refused the messages.
        """
        start = time.monotonic()
        ids, spans = self.model.encode_rendered(self.model.render_chat(messages))
        return EncodedPrompt(token_ids=ids, spans=spans, init_s=time.monotonic() - start)

    # Generation

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Generation]:
        """Continue raw prompts, all at once; answers come in the order of the prompts.

        Raises:
            RequestError, CapacityError: a prompt or parameter cannot be honoured; then none of the
            prompts runs.
        """
        return self._run([self.encode(p) for p in _as_list(prompts)], params)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Generation]:
        """Answer one conversation or several, through the model's chat template.

        Raises:
            TemplateError, RequestError, CapacityError: see `encode_chat` and `generate`.
        """
        is_one = bool(conversations) and isinstance(conversations[0], Mapping)
        many: Any = [conversations] if is_one else conversations
        return self._run([self.encode_chat(messages) for messages in many], params)

    def stream(
        self,
        prompt: Prompt | Sequence[Message] | EncodedPrompt,
        params: SamplingParams | None = None,
    ) -> Generator[Delta, None, None]:
        """Yield one answer as it is generated; closing the iterator cancels it.

        A sequence of messages goes through the chat template, a string or ids do not.
        """
        encoded = self._encoded(prompt)
        return self._driver.deltas([self._answer(0, encoded, params or SamplingParams())])

    def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability of each token but the first, given those before it.

        Raises:
            RequestError: fewer than two tokens, or ids outside the vocabulary.
        """
        ids = tuple(token_ids)
        check_token_ids(ids, self.model.config.vocab_size, "prompt")
        if len(ids) < 2:
            raise RequestError("scoring needs two tokens or more", value=len(ids))
        blocks = BlockTable(range(-(-len(ids) // BLOCK_SIZE)))
        scores: list[float] = []
        size = max(self.built.config.prefill_chunk, 2)
        runner = self._score_runner(len(ids))
        for start in range(0, len(ids) - 1, size - 1):
            # The last id of a chunk is only a target; the next chunk computes it as its first.
            chunk = Slice(
                "score", Phase.PREFILL, ids[start : start + size], start, blocks, score=True
            )
            plan = StepPlan(prefill=(chunk,), new_blocks=blocks if start == 0 else ())
            scores.extend(runner.run(plan).scores["score"])
        return tuple(scores)

    # Inside

    def _score_runner(self, num_tokens: int) -> Runner:
        """Return a runner with a cache of its own: scoring never touches the engine's blocks."""
        if self._scorer is None or self._scorer.num_blocks * BLOCK_SIZE < num_tokens:
            self._scorer = self.built.new_runner(num_tokens)
        return self._scorer

    def _encoded(self, prompt: Prompt | Sequence[Message] | EncodedPrompt) -> EncodedPrompt:
        if isinstance(prompt, EncodedPrompt):
            return prompt
        if not isinstance(prompt, str) and len(prompt) and isinstance(prompt[0], Mapping):
            return self.encode_chat(prompt)  # type: ignore[arg-type]
        return self.encode(prompt)  # type: ignore[arg-type]

    def _run(
        self,
        prompts: list[EncodedPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Generation]:
        many = _params_list(params, len(prompts))
        answers = [
            self._answer(i, p, q) for i, (p, q) in enumerate(zip(prompts, many, strict=True))
        ]
        deltas: list[list[Delta]] = [[] for _ in answers]
        for delta in self._driver.deltas(answers):
            deltas[delta.index].append(delta)
        return [
            _generation(answer.request, merged(own))
            for answer, own in zip(answers, deltas, strict=True)
        ]

    def _answer(self, index: int, prompt: EncodedPrompt, params: SamplingParams) -> Answer:
        request = make_request(f"llm-{next(self._numbers)}", prompt, params, self.model)
        return Answer(request, PlainText(self.model.tokenizer, params.stop), index=index)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _params_list(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(
            "one set of parameters a prompt is needed", value=len(params), limit=count
        )
    return list(params)


def _generation(request: Request, whole: Delta) -> Generation:
    assert whole.finish_reason is not None
    return Generation(
        text=whole.text,
        prompt_token_ids=request.prompt_token_ids,
        token_ids=whole.token_ids,
        finish_reason=whole.finish_reason,
        stop_reason=whole.stop_reason,
        logprobs=whole.logprobs,
        seed=request.seed,
        record=whole.record,
    )
