"""Chat messages to a prompt, by the template that the model brings.

User text never becomes a control token: see provenance.py. Knows nothing of engines.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from twostroke.errors import RequestError, TemplateError
from twostroke.request import MessageSpan
from twostroke.text.messages import (
    ALLOWED_KWARGS,
    Message,
    checked_kwargs,
    checked_messages,
    checked_tools,
    texts,
)
from twostroke.text.provenance import (
    MessagePart,
    Rendered,
    Standins,
    is_apart,
    parts_of,
    spelt_control_text,
)
from twostroke.text.segments import Segment
from twostroke.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import jinja2

    from twostroke.text.sandbox import Sandbox
    from twostroke.text.sandbox_bounds import TemplateRun

__all__ = ["ChatTemplate", "MessagePart", "Rendered", "encode_chat"]


class ChatTemplate:
    """One model's chat template, compiled when first used.

    control_texts: the spellings of the model's control tokens.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        control_texts: frozenset[str] = frozenset(),
    ) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._control_texts = frozenset(t for t in control_texts if t and not t.isspace())
        self._compiled: tuple[jinja2.Template, tuple[str, ...]] | None = None

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], tokenizer: Tokenizer) -> ChatTemplate:
        """Return the template of a GGUF file.

        Raises:
            TemplateError: the file has none.
        """
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str) or not source.strip():
            raise TemplateError(
                "this model brings no chat template, so it cannot take chat messages",
                remedy="Give it plain text: `twostroke run MODEL --raw --prompt TEXT`.",
            )
        return cls(
            source,
            bos_token=tokenizer.token_text(tokenizer.bos_id),
            eos_token=tokenizer.token_text(tokenizer.eos_id),
            control_texts=tokenizer.control_texts,
        )

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **allowed: object,
    ) -> Rendered:
        """Return the prompt of these messages.

        allowed: variables of ALLOWED_KWARGS that some templates read.

        Raises:
            RequestError: messages, tools or variables of the wrong shape or size.
            TemplateError: the template refused, failed or broke a bound; says at which message.
        """
        checked = checked_messages(messages)
        variables: dict[str, object] = {
            **checked_kwargs(allowed),
            **self._tokens,
            "add_generation_prompt": add_generation_prompt,
            "tools": checked_tools(tools),
        }
        self._refuse_control_text(variables)
        now = datetime.datetime.now()
        plain = self._run(checked, variables, now)
        standins = Standins(self.source + plain, self._template()[1])
        marked = self._run([standins.replaced(m) for m in checked], variables, now)
        if standins.restored(marked) == plain:
            return standins.split(marked, plain, checked)
        return self._without_standins(plain, checked)

    def _without_standins(self, plain: str, messages: list[Message]) -> Rendered:
        """Return the prompt of a template that rewrites user text; refuse control text in it."""
        for index, message in enumerate(messages):
            for text in texts(message):
                if spelt := spelt_control_text(text, self._control_texts):
                    raise TemplateError(
                        "this chat template rewrites messages, so control text in them is refused",
                        value=f"{spelt!r} in message {index + 1}",
                        remedy=f"Take {spelt!r} out of the message.",
                    )
        ends: dict[int, int] = {}
        place = 0
        for index, message in enumerate(messages):
            content = message.get("content")
            text = content.strip() if isinstance(content, str) else ""
            found = plain.find(text, place) if text else -1
            if found >= 0:
                ends[index] = place = found + len(text)
        return Rendered((Segment(plain, True),), parts_of(ends, messages, len(plain)))

    def _refuse_control_text(self, variables: Mapping[str, object]) -> None:
        """Refuse control text in tools and variables, which templates write as they are."""
        given = {name: variables.get(name) for name in ("tools", *ALLOWED_KWARGS)}
        for text in texts(given):
            if spelt := spelt_control_text(text, self._control_texts):
                raise RequestError(
                    "a tool or template variable spells a control token",
                    value=repr(spelt),
                    remedy="Take it out.",
                    param="tools",
                )

    def _template(self) -> tuple[jinja2.Template, tuple[str, ...]]:
        """Return the compiled template, and its literals that are apart from control tokens."""
        if self._compiled is None:
            template, literals = _compile(self.source)
            apart = [text for text in literals if is_apart(text, self._control_texts)]
            self._compiled = template, tuple(sorted(apart, key=len, reverse=True))
        return self._compiled

    def _run(
        self,
        messages: list[Message],
        variables: Mapping[str, object],
        now: datetime.datetime,
    ) -> str:
        from twostroke.text.sandbox import render
        from twostroke.text.sandbox_bounds import BoundExceeded, TemplateRun
        from twostroke.text.sandbox_functions import RaisedByTemplate

        run = TemplateRun(messages, now)
        try:
            return render(self._template()[0], run, {**variables, "messages": messages})
        except RaisedByTemplate as error:
            raise TemplateError(
                f"the model's chat template refused: {error}{_turn(run)}", param="messages"
            ) from None
        except BoundExceeded as error:
            raise TemplateError(
                f"the chat template was stopped: {error}{_turn(run)}", param="messages"
            ) from None
        except TemplateError:
            raise
        except Exception as error:  # any error that a template can make Python raise
            raise TemplateError(
                f"the chat template failed{_turn(run)}",
                value=f"{type(error).__name__}: {str(error)[:300]}",
                param="messages",
            ) from None


def encode_chat(
    tokenizer: Tokenizer, rendered: Rendered
) -> tuple[list[int], tuple[MessageSpan, ...]]:
    """Return the prompt's ids, and the span of them that each message became.

    BOS is added where the model asks for it and the template has not written it itself.
    """
    cuts = [part.end for part in rendered.parts]
    token_ids, cut_tokens = tokenizer.encode_with_cuts(rendered.segments, cuts)
    bos = tokenizer.bos_id
    if tokenizer.add_bos and bos is not None and token_ids[:1] != [bos]:
        token_ids.insert(0, bos)
        cut_tokens = [place + 1 for place in cut_tokens]
    if cut_tokens:
        cut_tokens[-1] = len(token_ids)  # the mark-up before the answer is the last message's
    starts = [0, *cut_tokens][: len(cut_tokens)]
    spans = tuple(
        MessageSpan(
            index=part.index, role=part.role, start=start, end=end, text_hash=part.text_hash
        )
        for part, start, end in zip(rendered.parts, starts, cut_tokens, strict=True)
    )
    return token_ids, spans


def _turn(run: TemplateRun) -> str:
    from twostroke.text.sandbox_bounds import message_reached

    index = message_reached(run)
    return "" if index is None else f" (at message {index + 1})"


@lru_cache(maxsize=1)
def _sandbox() -> Sandbox:
    from twostroke.text.sandbox import Sandbox

    return Sandbox()


def _compile(source: str) -> tuple[jinja2.Template, frozenset[str]]:
    """Return the compiled template and the string literals of its expressions.

    Raises:
        TemplateError: too long, or not a template.
    """
    from twostroke.text.sandbox_bounds import MAX_SOURCE_CHARS

    if len(source) > MAX_SOURCE_CHARS:
        raise TemplateError(
            "the model's chat template is too long",
            value=f"{len(source)} characters",
            limit=MAX_SOURCE_CHARS,
        )
    try:
        return _sandbox().compile_source(source)
    except Exception as error:  # of jinja, or of Python's compiler on jinja's code
        raise TemplateError(
            "the model's chat template cannot be compiled",
            value=f"{type(error).__name__}: {str(error)[:300]}",
        ) from None
