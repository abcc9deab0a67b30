"""What `twostroke run` does: one prompt, one answer, and the report of both phases.

Free of Typer, so that a start need not wait for it (see quick_run).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from twostroke.cli.engine_options import engine_config
from twostroke.cli.start import leave_blas_alone, without_garbage_collection
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


def _collect(
    llm: LLM, encoded: EncodedPrompt, params: SamplingParams, *, show: bool
) -> list[Delta]:
    deltas = []
    for delta in llm.stream(encoded, params):
        if show and delta.text:
            print(delta.text, end="", flush=True)
        deltas.append(delta)
    if show:
        print(flush=True)
    return deltas


def _document(
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


def _explanation(llm: LLM, last: Delta) -> dict[str, Any] | None:
    from twostroke.cli import report

    found = report.explanation(llm.built, last.record) if last.record is not None else None
    return found.to_dict() if found is not None else None


def answer(
    model: str,
    *,
    prompt: str,
    raw: bool = False,
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    seed: int | None = None,
    stop: list[str] | None = None,
    logprobs: int | None = None,
    threads: int | None = None,
    prefill_chunk: int = 512,
    max_model_len: int | None = None,
    kv_memory: str | None = None,
    kv_type: str = "bf16",
    backend: str = "auto",
    kernels: str | None = None,
    explain: bool = False,
    as_json: bool = False,
) -> None:
    """Answer one prompt on stdout; the report goes to stderr. Parameters: see cli.run.

    Raises:
        TwoStrokeError: anything that cannot be done as asked.
    """
    if raw and system is not None:
        raise RequestError(
            "--system needs the chat template", remedy="Leave out --raw or --system."
        )
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        logprobs=logprobs,
    )
    config = engine_config(
        threads=threads,
        max_model_len=max_model_len,
        kv_memory=kv_memory,
        kv_type=kv_type,
        backend=backend,
        kernels=kernels,
        prefill_chunk=prefill_chunk,
        max_num_seqs=1,
    )
    text = read_prompt(prompt)
    if backend != "reference":
        leave_blas_alone()
    with without_garbage_collection():
        from twostroke.cli.progress import PrefillProgress
        from twostroke.llm import LLM

        progress = PrefillProgress()
        llm = LLM(model, config, observers=(progress,))
    encoded = encode(llm, text, raw=raw, system=system)
    deltas = _collect(llm, encoded, params, show=not as_json)
    progress.clear()
    if as_json:
        import json

        document = _document(llm, encoded, deltas, logprobs=logprobs is not None)
        if explain:
            document["explanation"] = _explanation(llm, deltas[-1])
        print(json.dumps(document))
    elif (record := deltas[-1].record) is not None:
        from twostroke.cli import report

        heading = f"twostroke: {model}, {llm.built.summary}, loaded in {llm.load_s:.2f} s"
        lines = report.phase_lines(record)
        if explain:
            lines += report.explain_lines(llm.built, record)
        print("\n".join([heading, *lines]), file=sys.stderr)
