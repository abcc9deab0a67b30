"""Renders facts as the engines print them, for the doctor's cases."""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

import json


def llama_cpp(
    prompt: tuple[float, int] | None,
    decode: tuple[float, int] | None,
    *,
    load_ms: float | None = None,
    total_ms: float | None = None,
    prefix: str = "llama_print_timings",
    comma: bool = False,
) -> str:
    """One block of library timings; times in ms, decode counted in runs."""
    lines = []
    if load_ms is not None:
        lines.append(f"{prefix}:        load time = {load_ms:.2f} ms")
    if prompt is not None:
        ms, n = prompt
        lines.append(
            f"{prefix}: prompt eval time = {ms:.2f} ms / {n:5d} tokens ({ms / n:9.2f} ms per token)"
        )
    if decode is not None:
        ms, n = decode
        lines.append(
            f"{prefix}:        eval time = {ms:.2f} ms / {n:5d} runs   ({ms / n:9.2f} ms per token)"
        )
    if total_ms is None:
        total_ms = (prompt or (0, 0))[0] + (decode or (0, 0))[0]
    lines.append(f"{prefix}:       total time = {total_ms:.2f} ms")
    text = "\n".join(lines) + "\n"
    return text.replace(".", ",") if comma else text


def slot(
    task: int,
    prompt: tuple[float, int],
    decode: tuple[float, int],
    *,
    cached: int | None = None,
    total: int | None = None,
    end: int | None = None,
    extra: str = "",
) -> str:
    """One request of llama-server; times in ms."""
    head = f"slot print_timing: id  0 | task {task} | "
    lines = [f"slot launch_slot_: id  0 | task {task} | processing task"]
    if total is not None:
        lines.append(
            f"slot update_slots: id  0 | task {task} | new prompt, n_ctx_slot = 131072, n_keep = 0, task.n_tokens = {total}"
        )
    if cached is not None:
        lines.append(
            f"slot update_slots: id  0 | task {task} | cached n_tokens = {cached}, memory_seq_rm [{cached}, end)"
        )
    if extra:
        lines.append(f"slot update_slots: id  0 | task {task} | {extra}")
    (p_ms, p_n), (d_ms, d_n) = prompt, decode
    lines += [
        head,
        f"prompt eval time = {p_ms:10.2f} ms / {p_n:5d} tokens ({p_ms / p_n:8.2f} ms per token, {p_n / p_ms * 1000:8.2f} tokens per second)",
        f"       eval time = {d_ms:10.2f} ms / {d_n:5d} tokens ({d_ms / d_n:8.2f} ms per token, {d_n / d_ms * 1000:8.2f} tokens per second)",
        f"      total time = {p_ms + d_ms:10.2f} ms / {p_n + d_n:5d} tokens",
        f"slot      release: id  0 | task {task} | stop processing: n_past = {end or p_n + d_n + (cached or 0)}, truncated = 0",
    ]
    return "\n".join(lines) + "\n"


def ollama(
    *,
    prompt: tuple[int, float] | None = None,
    decode: tuple[int, float] | None = None,
    load_s: float = 0.0,
    total_s: float | None = None,
) -> str:
    """One `--verbose` block; counts and seconds."""
    parts = [load_s, (prompt or (0, 0.0))[1], (decode or (0, 0.0))[1]]
    lines = [f"total duration:       {(total_s or sum(parts)):.9f}s"]
    if load_s:
        lines.append(f"load duration:        {load_s:.9f}s")
    if prompt:
        n, s = prompt
        lines += [
            f"prompt eval count:    {n} token(s)",
            f"prompt eval duration: {s:.9f}s",
            f"prompt eval rate:     {n / s:.2f} tokens/s",
        ]
    if decode:
        n, s = decode
        lines += [
            f"eval count:           {n} token(s)",
            f"eval duration:        {s:.9f}s",
            f"eval rate:            {n / s:.2f} tokens/s",
        ]
    return "\n".join(lines) + "\n"


def vllm(
    prompt: float,
    gen: float,
    running: int,
    waiting: int,
    kv: float,
    hit: float,
    *,
    stamp: str = "10:00:00",
) -> str:
    """One V1 window."""
    return (
        f"(APIServer pid=3646) INFO 08-12 {stamp} [loggers.py:215] Engine 000: Avg prompt throughput: {prompt} tokens/s, "
        f"Avg generation throughput: {gen} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
        f"GPU KV cache usage: {kv}%, Prefix cache hit rate: {hit}%\n"
    )


def vllm_v0(prompt: float, gen: float, running: int, pending: int, kv: float) -> str:
    """One V0 window."""
    return (
        f"INFO 07-10 12:00:00 metrics.py:334] Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {gen} tokens/s, "
        f"Running: {running} reqs, Swapped: 0 reqs, Pending: {pending} reqs, GPU KV cache usage: {kv}%, CPU KV cache usage: 0.0%.\n"
    )


def vllm_request(
    prompt: int,
    output: int,
    *,
    ttft_s: float,
    decode_s: float,
    queue_s: float = 0.0,
    cached: int | None = None,
    drafts: tuple[int, int] | None = None,
    name: str = "cmpl-1",
) -> str:
    """One reply with per-request metrics."""
    usage: dict[str, object] = {"prompt_tokens": prompt, "completion_tokens": output}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    metrics: dict[str, object] = {
        "time_to_first_token_ms": ttft_s * 1000,
        "generation_time_ms": decode_s * 1000,
        "queue_time_ms": queue_s * 1000,
    }
    if drafts:
        metrics["speculative_decoding"] = {
            "num_draft_tokens": drafts[0],
            "num_accepted_draft_tokens": drafts[1],
        }
    return (
        json.dumps({"id": name, "object": "chat.completion", "usage": usage, "metrics": metrics})
        + "\n"
    )


def bench(**rows: str) -> str:
    """A result block of vLLM's benchmark."""
    body = "".join(f"{name + ':':<41}{value:<10}\n" for name, value in rows.items())
    return "============ Serving Benchmark Result ============\n" + body + "=" * 50 + "\n"


def sglang_request(
    new: int,
    output: int,
    *,
    prefill_s: float,
    decode_s: float,
    cached: int = 0,
    queue_s: float = 0.0,
) -> str:
    """One ReqTimeStats line."""
    return (
        f"ReqTimeStats(rid=r1, input_len={new + cached}, cached_input_len={cached}, output_len={output}, type=unified): "
        f"queue_duration={queue_s * 1000:.2f}ms, initial_prefill_elapsed={prefill_s * 1000:.2f}ms, post_prefill_elapsed={decode_s * 1000:.2f}ms, "
        f"forward_duration={(prefill_s + decode_s) * 1000:.2f}ms, entry_time=1736900000.123\n"
    )


def kobold(
    context: int, limit: int, process: tuple[float, float], generate: tuple[float, float]
) -> str:
    """One line of 2024-02: seconds and rates."""
    (p_s, p_rate), (g_s, g_rate) = process, generate
    return (
        f"CtxLimit: {context}/{limit}, Process:{p_s:.2f}s ({1000 / p_rate:.1f}ms/T = {p_rate:.2f}T/s), "
        f"Generate:{g_s:.2f}s ({1000 / g_rate:.1f}ms/T = {g_rate:.2f}T/s), Total:{p_s + g_s:.2f}s ({1:.2f}T/s)\n"
    )


def mlx(prompt: int, pp: float, output: int, tg: float) -> str:
    """Two lines of mlx-lm."""
    return f"Prompt: {prompt} tokens, {pp:.3f} tokens-per-sec\nGeneration: {output} tokens, {tg:.3f} tokens-per-sec\n"


def threads(decode: int, available: int) -> str:
    """llama.cpp's line on threads."""
    return f"system_info: n_threads = {decode} (n_threads_batch = {decode}) / {available} | AVX = 1 |\n"


def kv_types(name: str) -> str:
    """llama.cpp's line on the KV cache."""
    return f"llama_kv_cache: size =  544.00 MiB (  8192 cells,  34 layers,  1 seqs), K ({name}):  272.00 MiB, V ({name}):  272.00 MiB\n"


def layers(on_gpu: int, total: int) -> str:
    """llama.cpp's line on offloading."""
    return f"load_tensors: offloaded {on_gpu}/{total} layers to GPU\n"


def ollama_ps(size: str, processor: str, context: int, model: str = "deepseek-r1:70b") -> str:
    """`ollama ps` with one model."""
    return (
        "NAME               ID              SIZE      PROCESSOR          CONTEXT    UNTIL\n"
        f"{model}    0c1615a8ca32    {size}    {processor}    {context}    4 minutes from now\n"
    )
