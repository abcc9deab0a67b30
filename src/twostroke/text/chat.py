"""Chat messages to a prompt, by the template that the model brings.

What a user wrote never becomes a control token: each message is rendered with its characters
replaced by private-use ones that stand for them, so that afterwards every character of the prompt
is known to come from the template or from a user. Knows nothing of engines.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from twostroke.errors import RequestError, TemplateError
from twostroke.request import MessageSpan
from twostroke.text.tokenizer import Segment, Tokenizer

if TYPE_CHECKING:
    import jinja2

    from twostroke.text.sandbox import Run, Sandbox

ROLES = ("system", "developer", "user", "assistant", "tool")
ALLOWED_KWARGS = (
    "enable_thinking",
    "thinking",
    "preserve_thinking",
    "reasoning_effort",
    "date_string",
)
MAX_MESSAGES = 10_000
MAX_TOOLS = 1_000
MAX_INPUT_CHARS = 1 << 24
MAX_DEPTH = 32
_MAX_KWARG_CHARS = 256
# Values by which templates choose what to write; they are checked, not replaced.
_CHOOSING_KEYS = frozenset({"role", "type"})
# Private use: one plane stands for characters, one for the first and last of each text.
_CHARACTERS = range(0xF0000, 0xFFFFD)
_OVERFLOW = 0xFFFFD  # when a prompt has more distinct characters: it restores to nothing right
_EDGES = range(0x100000, 0x10FFFE)
# White space between stand-ins counts as user text too: one segment a message, not one a word.
_USER_TEXT = re.compile("[\U000f0000-\U0010fffd]+(?:\\s+[\U000f0000-\U0010fffd]+)*")
_EDGE = re.compile("[\U00100000-\U0010fffd]")


@dataclass(frozen=True, slots=True)
class MessagePart:
    """Where one message stands in the prompt: [start, end) in characters.

    A part ends with the message's own text; the mark-up before it belongs to it, so that the parts
    cover the prompt without gaps. A message that the template left out has no part.
    """

    index: int
    role: str
    start: int
    end: int
    text_hash: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt in segments: control tokens count in the template's, not in the users'."""

    segments: tuple[Segment, ...]
    parts: tuple[MessagePart, ...]

    @property
    def text(self) -> str:
        """The whole prompt."""
        return "".join(segment.text for segment in self.segments)


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
        """Return the template that a GGUF file brings.

        Raises:
            TemplateError: it brings none.
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
            RequestError: messages, tools or variables that are not what they should be.
            TemplateError: the template refused (with its message and the turn) or broke a bound.
        """
        checked = _checked_messages(messages)
        variables: dict[str, object] = {
            **_checked_kwargs(allowed),
            **self._tokens,
            "add_generation_prompt": add_generation_prompt,
            "tools": _checked_tools(tools),
        }
        self._refuse_control_text(variables)
        now = datetime.datetime.now()
        plain = self._run(checked, variables, now)
        standins = _Standins(self.source + plain, self._template()[1])
        marked = self._run([standins.replaced(m) for m in checked], variables, now)
        if standins.restored(marked) == plain:
            return standins.split(marked, plain, checked)
        return self._without_standins(plain, checked)

    def _without_standins(self, plain: str, messages: list[dict[str, Any]]) -> Rendered:
        """Accept a template that rewrites what users wrote, if no control text is in it."""
        for index, message in enumerate(messages):
            for text in _texts(message):
                if spelt := _spelt_control_text(text, self._control_texts):
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
        return Rendered((Segment(plain, True),), _parts(ends, messages, len(plain)))

    def _refuse_control_text(self, variables: Mapping[str, object]) -> None:
        """Refuse control text in tools and variables, which templates write as they are."""
        given = {name: variables.get(name) for name in ("tools", *ALLOWED_KWARGS)}
        for text in _texts(given):
            if spelt := _spelt_control_text(text, self._control_texts):
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
            apart = [text for text in literals if _is_apart(text, self._control_texts)]
            self._compiled = template, tuple(sorted(apart, key=len, reverse=True))
        return self._compiled

    def _run(
        self,
        messages: list[dict[str, Any]],
        variables: Mapping[str, object],
        now: datetime.datetime,
    ) -> str:
        from twostroke.text import sandbox

        run = sandbox.Run(messages, now)
        try:
            return sandbox.render(self._template()[0], run, {**variables, "messages": messages})
        except sandbox.RaisedByTemplate as error:
            raise TemplateError(
                f"the model's chat template refused: {error}{_turn(run)}", param="messages"
            ) from None
        except sandbox.BoundExceeded as error:
            raise TemplateError(
                f"the chat template was stopped: {error}{_turn(run)}", param="messages"
            ) from None
        except TemplateError:
            raise
        except Exception as error:  # whatever a stranger's template makes Python raise
            raise TemplateError(
                f"the chat template failed{_turn(run)}",
                value=f"{type(error).__name__}: {str(error)[:300]}",
                param="messages",
            ) from None


def encode_chat(
    tokenizer: Tokenizer, rendered: Rendered
) -> tuple[list[int], tuple[MessageSpan, ...]]:
    """Return the prompt's ids and which of them each message became.

    BOS is added where the model asks for it and the template has not written it itself.
    """
    cuts = [part.end for part in rendered.parts]
    token_ids, cut_tokens = tokenizer.encode_with_cuts(rendered.segments, cuts)
    bos = tokenizer.bos_id
    if tokenizer.add_bos and bos is not None and token_ids[:1] != [bos]:
        token_ids.insert(0, bos)
        cut_tokens = [place + 1 for place in cut_tokens]
    if cut_tokens:
        cut_tokens[-1] = len(token_ids)  # what opens the answer belongs to the last message
    starts = [0, *cut_tokens][: len(cut_tokens)]
    spans = tuple(
        MessageSpan(
            index=part.index, role=part.role, start=start, end=end, text_hash=part.text_hash
        )
        for part, start, end in zip(rendered.parts, starts, cut_tokens, strict=True)
    )
    return token_ids, spans


class _Standins:
    """Private-use characters for what users wrote, one for each distinct character.

    The first and the last character of each message have stand-ins of their own, by which the
    message is found again. White space stays, so that templates can trim. Literals of the template
    that share nothing with a control token stay too, so that it can look for `</think>`.
    """

    def __init__(self, taken: str, literals: tuple[str, ...]) -> None:
        used = {ord(character) for character in set(taken)}
        self._free = (code for code in _CHARACTERS if code not in used)
        self._free_edges = (code for code in _EDGES if code not in used)
        self._of: dict[int, str] = {}
        self._original: dict[int, str] = {}
        self._message: dict[str, int] = {}
        self._num_messages = 0
        self._literals = literals

    def replaced(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the next message with stand-ins in every text but its choosing keys."""
        index, self._num_messages = self._num_messages, self._num_messages + 1
        return {
            key: value if key in _CHOOSING_KEYS else self._inside(value, index)
            for key, value in message.items()
        }

    def restored(self, text: str) -> str:
        """Return the text with the original characters."""
        return text.translate(self._original)

    def split(self, marked: str, plain: str, messages: list[dict[str, Any]]) -> Rendered:
        """Return the segments and message parts of a prompt, known from it with stand-ins."""
        segments: list[Segment] = []
        done = 0
        for found in _USER_TEXT.finditer(marked):
            segments.append(Segment(plain[done : found.start()], True))
            segments.append(Segment(plain[found.start() : found.end()], False))
            done = found.end()
        segments.append(Segment(plain[done:], True))
        ends: dict[int, int] = {}
        for found in _EDGE.finditer(marked):
            index = self._message.get(found.group())
            if index is not None:
                ends[index] = found.end()
        filled = tuple(segment for segment in segments if segment.text)
        return Rendered(filled, _parts(ends, messages, len(marked)))

    def _inside(self, value: Any, index: int) -> Any:
        if isinstance(value, str):
            return self._text(value, index)
        if isinstance(value, dict):
            return {
                key: found if key in _CHOOSING_KEYS else self._inside(found, index)
                for key, found in value.items()
            }
        if isinstance(value, list):
            return [self._inside(found, index) for found in value]
        return value

    def _text(self, text: str, index: int) -> str:
        pieces = [text]
        for literal in self._literals:
            if literal in text:
                pieces = [part for piece in pieces for part in _cut(piece, literal)]
        shown = [piece if piece in self._literals else self._mapped(piece) for piece in pieces]
        joined = "".join(shown)
        first, last = _edges(joined, self._original)
        if first is None or last is None:
            return joined
        characters = list(joined)
        for place in {first, last}:
            code = next(self._free_edges, None)
            if code is None:
                break
            self._original[code] = self._original[ord(characters[place])]
            self._message[chr(code)] = index
            characters[place] = chr(code)
        return "".join(characters)

    def _mapped(self, text: str) -> str:
        for character in set(text):
            if ord(character) not in self._of and not character.isspace():
                standin = next(self._free, _OVERFLOW)
                self._of[ord(character)] = chr(standin)
                self._original[standin] = character
        return text.translate(self._of)


def _edges(text: str, standins: Mapping[int, str]) -> tuple[int | None, int | None]:
    first = next((i for i, c in enumerate(text) if ord(c) in standins), None)
    last = next((i for i in range(len(text) - 1, -1, -1) if ord(text[i]) in standins), None)
    return first, last


def _cut(text: str, literal: str) -> Iterator[str]:
    """Yield the text in pieces, each the literal or without it."""
    first, *rest = text.split(literal)
    if first:
        yield first
    for piece in rest:
        yield literal
        if piece:
            yield piece


def _parts(
    ends: Mapping[int, int], messages: list[dict[str, Any]], length: int
) -> tuple[MessagePart, ...]:
    """Return the parts of the messages found in order; a message that stands elsewhere has none."""
    parts: list[MessagePart] = []
    start = 0
    for index in sorted(ends):
        if ends[index] <= start:
            continue
        message = messages[index]
        parts.append(MessagePart(index, message["role"], start, ends[index], _text_hash(message)))
        start = ends[index]
    if parts:
        last = parts[-1]
        parts[-1] = MessagePart(last.index, last.role, last.start, length, last.text_hash)
    return tuple(parts)


def _is_apart(literal: str, control_texts: frozenset[str]) -> bool:
    """Whether no control token can hold, be in, or overlap a literal."""
    if len(literal) < 2 or literal.isspace():
        return False
    for control in control_texts:
        if literal in control or control in literal:
            return False
        for size in range(1, min(len(literal), len(control))):
            if literal[:size] == control[-size:] or literal[-size:] == control[:size]:
                return False
    return True


def _spelt_control_text(text: str, control_texts: frozenset[str]) -> str | None:
    """Return a control token that a text spells, or half spells at one of its ends."""
    if not any(control[0] in text or control[-1] in text for control in control_texts):
        return None
    stripped = text.strip()
    for control in control_texts:
        if control in text:
            return control
        for size in range(2, len(control)):
            if stripped.endswith(control[:size]) or stripped.startswith(control[-size:]):
                return control
    return None


def _texts(value: object) -> Iterator[str]:
    """Yield every string inside a value that was checked for depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, found in value.items():
            yield from _texts(key)
            yield from _texts(found)
    elif isinstance(value, (list, tuple)):
        for found in value:
            yield from _texts(found)


def _text_hash(message: Mapping[str, object]) -> str:
    digest = hashlib.sha256()
    for text in _texts(message):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _turn(run: Run) -> str:
    from twostroke.text.sandbox import message_reached

    index = message_reached(run)
    return "" if index is None else f" (at message {index + 1})"


def _checked_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RequestError("messages must be a list of at least one message", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(
            "too many messages", value=len(messages), limit=MAX_MESSAGES, param="messages"
        )
    budget = [MAX_INPUT_CHARS]
    checked = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise RequestError(f"{where} is not an object", param=where)
        role = message.get("role")
        if role not in ROLES:
            raise RequestError(
                f"{where} has an unknown role",
                value=repr(role)[:64],
                limit=", ".join(ROLES),
                param=f"{where}.role",
            )
        checked.append(_checked_value(message, where, budget, MAX_DEPTH))
    return checked


def _checked_tools(tools: Sequence[Mapping[str, object]] | None) -> object:
    if tools is None:
        return None
    if not isinstance(tools, (list, tuple)) or len(tools) > MAX_TOOLS:
        raise RequestError("tools must be a list", limit=f"{MAX_TOOLS} tools", param="tools")
    return _checked_value(tools, "tools", [MAX_INPUT_CHARS], MAX_DEPTH)


def _checked_kwargs(allowed: Mapping[str, object]) -> dict[str, object]:
    for name, value in allowed.items():
        if name not in ALLOWED_KWARGS:
            raise RequestError(
                "unknown chat template variable",
                value=repr(name)[:64],
                limit=", ".join(ALLOWED_KWARGS),
                param="chat_template_kwargs",
            )
        is_long = isinstance(value, str) and len(value) > _MAX_KWARG_CHARS
        if is_long or not (value is None or isinstance(value, (str, bool, int, float))):
            raise RequestError(
                f"chat template variable {name} must be a short text, a number or a boolean",
                value=type(value).__name__,
                param="chat_template_kwargs",
            )
    return dict(allowed)


def _checked_value(value: object, where: str, budget: list[int], depth: int) -> Any:
    """Return a copy of JSON data in plain types, within the budget of characters and depth."""
    if depth == 0:
        raise RequestError(f"{where} is nested too deeply", limit=MAX_DEPTH, param=where)
    budget[0] -= len(value) if isinstance(value, str) else 1
    if budget[0] < 0:
        raise RequestError(
            "the messages are too long",
            limit=f"{MAX_INPUT_CHARS} characters and values",
            param=where.partition("[")[0],
        )
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        copy = {}
        for key, found in value.items():
            if not isinstance(key, str):
                raise RequestError(f"{where} has a key that is not a string", param=where)
            budget[0] -= len(key)
            copy[key] = _checked_value(found, f"{where}.{key[:64]}", budget, depth - 1)
        return copy
    if isinstance(value, (list, tuple)):
        return [
            _checked_value(found, f"{where}[{place}]", budget, depth - 1)
            for place, found in enumerate(value)
        ]
    raise RequestError(f"{where} is not JSON data", value=type(value).__name__, param=where)


@lru_cache(maxsize=1)
def _sandbox() -> Sandbox:
    from twostroke.text.sandbox import Sandbox

    return Sandbox()


def _compile(source: str) -> tuple[jinja2.Template, frozenset[str]]:
    """Return the compiled template and the string literals of its expressions.

    Raises:
        TemplateError: too long, or not a template.
    """
    from twostroke.text.sandbox import MAX_SOURCE_CHARS

    if len(source) > MAX_SOURCE_CHARS:
        raise TemplateError(
            "the model's chat template is too long",
            value=f"{len(source)} characters",
            limit=MAX_SOURCE_CHARS,
        )
    try:
        return _sandbox().compile_source(source)
    except Exception as error:  # jinja, and Python's compiler on what jinja wrote
        raise TemplateError(
            "the model's chat template cannot be compiled",
            value=f"{type(error).__name__}: {str(error)[:300]}",
        ) from None
