"""twostroke run: one prompt, one answer, and the report of both phases."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twostroke.cli import options, report
from twostroke.errors import RequestError
from twostroke.request import SamplingParams, TokenLogprob

if TYPE_CHECKING:
    from twostroke.llm import LLM, Delta, Encoded

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


def encode(llm: LLM, prompt: str, *, raw: bool, system: str | None) -> Encoded:
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


def _collect(llm: LLM, encoded: Encoded, params: SamplingParams, *, show: bool) -> list[Delta]:
    deltas = []
    for delta in llm.stream(encoded, params):
        if show and delta.text:
            print(delta.text, end="", flush=True)
        deltas.append(delta)
    if show:
        print(flush=True)
    return deltas


def _document(llm: LLM, encoded: Encoded, deltas: list[Delta], *, logprobs: bool) -> dict[str, Any]:
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


def command(
    model: options.Model,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The prompt; - reads stdin.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="No chat template; BOS as the tokenizer says.")
    ] = False,
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", help="Most output tokens; 0: prefill only.")
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", help="0 takes the likeliest token each time.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Keep the k likeliest; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", help="Keep this much probability.")] = 1.0,
    min_p: Annotated[float, typer.Option("--min-p", help="Least share of the best.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option("--repetition-penalty")] = 1.0,
    presence_penalty: Annotated[float, typer.Option("--presence-penalty")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option("--frequency-penalty")] = 0.0,
    seed: Annotated[int | None, typer.Option("--seed", help="Same seed, same text.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End before this text; may be repeated.")
    ] = None,
    logprobs: Annotated[
        int | None, typer.Option("--logprobs", help="Log-probabilities of the k best tokens.")
    ] = None,
    threads: options.Threads = None,
    prefill_chunk: options.PrefillChunk = 512,
    max_model_len: options.MaxModelLen = None,
    kv_memory: options.KvMemory = None,
    kv_type: options.KvTypeName = "bf16",
    backend: options.Backend = "auto",
    kernels: options.Kernels = None,
    as_json: options.Json = False,
) -> None:
    """Answer one prompt, streaming, and report what each phase cost.

    Example: twostroke run smollm2:135m --prompt "What is a KV cache?" --max-tokens 100
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
    config = options.engine_config(
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
    from twostroke.cli.progress import PrefillProgress
    from twostroke.llm import LLM

    progress = PrefillProgress()
    llm = LLM(model, config, observers=(progress,))
    encoded = encode(llm, text, raw=raw, system=system)
    deltas = _collect(llm, encoded, params, show=not as_json)
    progress.clear()
    if as_json:
        print(json.dumps(_document(llm, encoded, deltas, logprobs=logprobs is not None)))
    elif (record := deltas[-1].record) is not None:
        heading = f"twostroke: {model}, {llm.built.summary}, loaded in {llm.load_s:.2f} s"
        print("\n".join([heading, *report.phase_lines(record)]), file=sys.stderr)
