"""twostroke chat: a conversation whose KV cache lives from turn to turn, metered after each
answer.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twostroke.cli import report
from twostroke.cli.options import CHAT_SAMPLING, ENGINE, EXPLAIN, MODEL, SYSTEM
from twostroke.config import EngineConfig
from twostroke.errors import CapacityError, RequestError, TemplateError, TwoStrokeError
from twostroke.request import SamplingParams

if TYPE_CHECKING:
    from twostroke.llm import LLM, EncodedPrompt

PROMPT = "> "
HELP = "/reset starts anew, /quit or Ctrl-D ends, Ctrl-C stops an answer"


class Conversation:
    """The turns so far and the ids they became. Sole writer of both.

    The ids that were generated stay as they are: re-tokenising an answer can give others, and the
    cache would miss from there on.
    """

    def __init__(self, llm: LLM, system: str | None) -> None:
        self._llm = llm
        self._system = system
        self.reset()

    def reset(self) -> None:
        """Forget every turn."""
        self.messages: list[dict[str, Any]] = (
            [{"role": "system", "content": self._system}] if self._system is not None else []
        )
        self._text = ""  # the prompt and the answers so far, as the model read and wrote them
        self._ids: tuple[int, ...] = ()
        self._before: tuple[list[dict[str, Any]], str, tuple[int, ...]] = (self.messages, "", ())

    def ask(self, text: str) -> EncodedPrompt:
        """Add the user's turn and return the whole prompt, the ids of earlier turns unchanged.

        Raises:
            TemplateError, RequestError: the turn is refused; the conversation stays as it was.
        """
        from twostroke.llm import EncodedPrompt

        start = time.monotonic()
        messages = [*self.messages, {"role": "user", "content": text}]
        rendered = self._llm.model.render_chat(messages)
        if self._text and rendered.text.startswith(self._text):
            ids = (*self._ids, *self._llm.model.encode_after(rendered, len(self._text)))
        else:  # the first turn, or the template rewrote history: the cache will say so
            ids = self._llm.model.encode_rendered(rendered)[0]
        self._before = (self.messages, self._text, self._ids)
        self.messages = messages
        self._text, self._ids = rendered.text, ids
        return EncodedPrompt(token_ids=ids, init_s=time.monotonic() - start)

    def undo(self) -> None:
        """Take the last turn back: the engine refused it."""
        self.messages, self._text, self._ids = self._before

    def answered(self, text: str, token_ids: tuple[int, ...]) -> None:
        """Add the assistant's turn, as far as it went."""
        self.messages.append({"role": "assistant", "content": text})
        self._text += text
        self._ids += token_ids


def _answer(
    llm: LLM, conversation: Conversation, text: str, params: SamplingParams, *, explain: bool
) -> str | None:
    """Stream one answer and return the meter's line; Ctrl-C ends the answer, not the chat."""
    encoded = conversation.ask(text)
    texts: list[str] = []
    ids: list[int] = []
    line = None
    try:
        with closing(llm.stream(encoded, params)) as stream:
            for delta in stream:
                texts.append(delta.text)
                ids.extend(delta.token_ids)
                print(delta.text, end="", flush=True)
                if delta.record is not None:
                    line = f"  [{report.chat_line(delta.record)}]"
                    if explain:
                        turns = sum(m["role"] == "user" for m in conversation.messages)
                        more = report.explain_lines(llm.built, delta.record, turns)
                        line = "\n".join([line, *(f"  {text}" for text in more if text)])
    except KeyboardInterrupt:
        line = "  [stopped]"
    except TwoStrokeError:
        conversation.undo()
        raise
    print(flush=True)
    conversation.answered("".join(texts), tuple(ids))
    return line


def _read_line(is_terminal: bool) -> str | None:
    try:
        return input(PROMPT if is_terminal else "")
    except EOFError:
        return None
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return ""


def converse(
    llm: LLM, system: str | None, params: SamplingParams, *, explain: bool = False
) -> None:
    """Read turns until the end of the input; a refused turn is reported and the chat goes on."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        import readline  # noqa: F401  (gives input() editing and history)

        print(f"twostroke: {HELP}", file=sys.stderr)
    conversation = Conversation(llm, system)
    while (text := _read_line(is_terminal)) is not None and text.strip() != "/quit":
        if text.strip() == "/reset":
            conversation.reset()
        elif text.strip():
            try:
                line = _answer(llm, conversation, text, params, explain=explain)
            except (RequestError, TemplateError, CapacityError) as error:
                print(f"twostroke: {error}", file=sys.stderr)
                continue
            if line:
                print(line, file=sys.stderr, flush=True)


OPTIONS = (
    MODEL,
    SYSTEM,
    *CHAT_SAMPLING,
    *ENGINE,
    EXPLAIN,
)


def command(
    model: str,
    *,
    system: str | None,
    params: SamplingParams,
    config: EngineConfig,
    explain: bool,
) -> None:
    """Talk to a model; each turn prefills only its new tokens.

    Example: twostroke chat smollm2:135m --system "Answer in one sentence."
    """
    config = replace(config, max_num_seqs=2)
    from twostroke.cli.progress import PrefillBar
    from twostroke.llm import LLM

    llm = LLM(model, config, observers=(PrefillBar(),))
    print(f"twostroke: {model}, {llm.built.summary}", file=sys.stderr)
    converse(llm, system, params, explain=explain)
