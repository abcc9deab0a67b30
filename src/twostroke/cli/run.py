"""twostroke run: its flags and its help."""

from __future__ import annotations

from typing import Annotated

import typer

from twostroke.cli import options
from twostroke.cli.answer import answer


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
    explain: options.Explain = False,
    as_json: options.Json = False,
) -> None:
    """Answer one prompt, streaming, and report what each phase cost.

    Example: twostroke run smollm2:135m --prompt "What is a KV cache?" --max-tokens 100
    """
    answer(
        model,
        prompt=prompt,
        raw=raw,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        stop=stop,
        logprobs=logprobs,
        threads=threads,
        prefill_chunk=prefill_chunk,
        max_model_len=max_model_len,
        kv_memory=kv_memory,
        kv_type=kv_type,
        backend=backend,
        kernels=kernels,
        explain=explain,
        as_json=as_json,
    )
