"""The parts of `twostroke run`: the prompt read and tokenised, the answer collected and written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from twostroke.errors import RequestError
from twostroke.request import SamplingParams, TokenLogprob

if TYPE_CHECKING:
    from twostroke.llm import LLM, Delta, EncodedPrompt

MAX_STDIN_BYTES = 64 << 20


def read_prompt(text: str) -> str:
    """Return the prompt; `-` reads stdin.

    Raises:
        RequestError: stdin is larger than the limit, or no UTF-8.
    """
    if text != "-":
        return text
    data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(data) > MAX_STDIN_BYTES:
        raise RequestError("the prompt on stdin is too long", limit=f"{MAX_STDIN_BYTES} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError("the prompt on stdin is no UTF-8", value=str(error)) from error


def encode(llm: LLM, prompt: str, *, raw: bool, system: str | None) -> EncodedPrompt:
    """Tokenise a prompt as it is (raw) or as the user's turn of a chat."""
    if raw:
        return llm.encode(prompt)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return llm.encode_chat([*messages, {"role": "user", "content": prompt}])


def logprob_json(llm: LLM, entry: TokenLogprob) -> dict[str, Any]:
    """Return one token's log-probabilities with its bytes, ready for JSON."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        raw = llm.model.tokenizer.token_bytes(token_id, with_control=True)
        return {
            "token_id": token_id,
            "token": raw.decode("utf-8", "replace"),
            "bytes": list(raw),
            "logprob": logprob,
        }

    return {**one(entry.token_id, entry.logprob), "top": [one(i, p) for i, p in entry.top]}


def collect(llm: LLM, encoded: EncodedPrompt, params: SamplingParams, *, show: bool) -> list[Delta]:
    deltas = []
    for delta in llm.stream(encoded, params):
        if show and delta.text:
            print(delta.text, end="", flush=True)
        deltas.append(delta)
    if show:
        print(flush=True)
    return deltas


def document(
    llm: LLM, encoded: EncodedPrompt, deltas: list[Delta], *, logprobs: bool
) -> dict[str, Any]:
    last = deltas[-1]
    return {
        "text": "".join(d.text for d in deltas),
        "prompt_token_ids": list(encoded.token_ids),
        "token_ids": [i for d in deltas for i in d.token_ids],
        "finish_reason": last.finish_reason.value if last.finish_reason else None,
        "stop_reason": last.stop_reason,
        "logprobs": [logprob_json(llm, p) for d in deltas for p in d.logprobs]
        if logprobs
        else None,
        "record": last.record.to_dict() if last.record else None,
    }


def explanation(llm: LLM, last: Delta) -> dict[str, Any] | None:
    from twostroke.cli import report

    found = report.explanation(llm.built, last.record) if last.record is not None else None
    return found.to_dict() if found is not None else None
