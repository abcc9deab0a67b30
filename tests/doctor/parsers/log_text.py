"""Renderers: the same drawn numbers as each engine would print them, and what must come back.

Numbers are drawn at the printed precision, so that reading them back is exact.
"""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from twostroke.record import OutputTokens, PhaseTimes, PromptTokens, RequestRecord, WindowRecord


@dataclass(frozen=True)
class Numbers:
    """One request or window. Units: `_cs` hundredths of a millisecond, `_ds` hundredths of a second."""

    prompt: int = 1520
    cached: int = 400
    output: int = 31
    prefill_cs: int = 19314600
    decode_cs: int = 890704
    queue_cs: int = 1250
    running: int = 18
    waiting: int = 43
    percent: int = 959  # tenths
    rate: int = 10553  # tenths

    @property
    def prefill_s(self) -> float:
        return self.prefill_cs / 1e5

    @property
    def decode_s(self) -> float:
        return self.decode_cs / 1e5

    @property
    def queue_s(self) -> float:
        return self.queue_cs / 1e5


NUMBERS = st.builds(
    Numbers,
    prompt=st.integers(40, 200_000),
    cached=st.integers(1, 200_000),
    output=st.integers(3, 30_000),
    prefill_cs=st.integers(100, 10**8),
    decode_cs=st.integers(100, 10**8),
    queue_cs=st.integers(1, 10**8),
    running=st.integers(0, 500),
    waiting=st.integers(0, 5000),
    percent=st.integers(0, 1000),
    rate=st.integers(0, 10**6),
)


@dataclass(frozen=True)
class Format:
    """One engine's shape. `expect` gives attribute paths and values of the one item read back."""

    name: str
    render: Callable[[Numbers], str]
    expect: Callable[[Numbers], dict[str, Any]]
    kind: str = "records"
    comma: bool = False  # printed with a decimal comma in some locales
    reorder: Callable[[str, int], str] | None = None
    ends_open: bool = False  # the last characters are a number: a cut there cannot be seen


def ms(hundredths: int) -> str:
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def phases(n: Numbers, *, output: int | None = None) -> dict[str, Any]:
    return {
        "phases.prefill_s": n.prefill_s,
        "phases.decode_s": n.decode_s,
        "prompt.new": n.prompt,
        "output.total": n.output if output is None else output,
    }


def times(n: Numbers, head: str, runs: str, count: int) -> list[str]:
    pp, tg = n.prompt / n.prefill_s, count / n.decode_s
    return [
        f"{head}prompt eval time = {ms(n.prefill_cs):>10} ms / {n.prompt:5d} tokens ({n.prefill_s * 1000 / n.prompt:8.2f} ms per token, {pp:8.2f} tokens per second)",
        f"{head}       eval time = {ms(n.decode_cs):>10} ms / {count:5d} {runs} ({n.decode_s * 1000 / count:8.2f} ms per token, {tg:8.2f} tokens per second)",
        f"{head}      total time = {ms(n.prefill_cs + n.decode_cs):>10} ms / {n.prompt + count:5d} tokens",
    ]


def library(prefix: str) -> Callable[[Numbers], str]:
    def render(n: Numbers) -> str:
        lines = [f"{prefix}:        load time = {ms(4242)} ms"]
        return "\n".join(lines + times(n, f"{prefix}: ", "runs  ", n.output - 1)) + "\n"

    return render


def server_block(n: Numbers) -> str:
    head = "slot print_timing: id  3 | task 2188 | \n"
    tail = f"slot      release: id  3 | task 2188 | stop processing: n_past = {n.prompt + n.output}, truncated = 0\n"
    return head + "\n".join(times(n, "", "tokens", n.output)) + "\n" + tail


def server_prefixed(n: Numbers) -> str:
    head = "4.12.345.678 I slot print_timing: id  3 | task 2188 | "
    tail = f"4.12.345.700 I slot      release: id  3 | task 2188 | stop processing: n_tokens = {n.prompt + n.output}, truncated = 0\n"
    return "\n".join(times(n, head, "tokens", n.output)) + "\n" + tail


def server_text_era(n: Numbers) -> str:
    tail = ' | tid="1" timestamp=1725600000 id_slot=0 id_task=4 \n'
    return "".join(
        "INFO [           print_timings] " + line.strip() + tail
        for line in times(n, "", "tokens", n.output)
    )


def server_json(n: Numbers) -> str:
    timings = {
        "cache_n": n.cached,
        "prompt_n": n.prompt,
        "prompt_ms": n.prefill_cs / 100,
        "prompt_per_second": n.prompt / n.prefill_s,
        "predicted_n": n.output,
        "predicted_ms": n.decode_cs / 100,
        "predicted_per_second": n.output / n.decode_s,
    }
    return json.dumps({"content": "", "stop": True, "timings": timings}) + "\n"


def ollama_verbose(n: Numbers) -> str:
    total = n.prefill_cs + n.decode_cs + n.queue_cs
    return (
        f"total duration:       {ms(total)}ms\nload duration:        {ms(n.queue_cs)}ms\nprompt eval count:    {n.prompt} token(s)\n"
        f"prompt eval duration: {ms(n.prefill_cs)}ms\nprompt eval rate:     {n.prompt / n.prefill_s:.2f} tokens/s\n"
        f"eval count:           {n.output} token(s)\neval duration:        {ms(n.decode_cs)}ms\neval rate:            {n.output / n.decode_s:.2f} tokens/s\n"
    )


def ollama_json(n: Numbers) -> str:
    ns = {
        "total_duration": n.prefill_cs + n.decode_cs + n.queue_cs,
        "load_duration": n.queue_cs,
        "prompt_eval_duration": n.prefill_cs,
        "eval_duration": n.decode_cs,
    }
    fields = {key: value * 10_000 for key, value in ns.items()}
    return (
        json.dumps(
            {
                "model": "m",
                "done": True,
                **fields,
                "prompt_eval_count": n.prompt,
                "eval_count": n.output,
            }
        )
        + "\n"
    )


def ollama_expect(n: Numbers) -> dict[str, Any]:
    out = phases(n)
    if n.prompt / n.prefill_s > 50_000:
        out["prompt.new"] = None
    return {**out, "phases.load_s": n.queue_s}


def vllm_v1(n: Numbers) -> str:
    return (
        f"(APIServer pid=3646) INFO 08-12 10:00:00 [loggers.py:215] Engine 000: Avg prompt throughput: {n.rate / 10} tokens/s, Avg generation throughput: {n.rate / 10} tokens/s, "
        f"Running: {n.running} reqs, Waiting: {n.waiting} reqs, GPU KV cache usage: {n.percent / 10}%, Prefix cache hit rate: {n.percent / 10}%\n"
    )


def vllm_v0(n: Numbers) -> str:
    return (
        f"INFO 07-10 12:00:00 metrics.py:334] Avg prompt throughput: {n.rate / 10} tokens/s, Avg generation throughput: {n.rate / 10} tokens/s, "
        f"Running: {n.running} reqs, Swapped: 0 reqs, Pending: {n.waiting} reqs, GPU KV cache usage: {n.percent / 10}%, CPU KV cache usage: 0.0%.\n"
    )


def window(n: Numbers) -> dict[str, Any]:
    return {
        "prompt_tok_s": n.rate / 10,
        "output_tok_s": n.rate / 10,
        "running": n.running,
        "waiting": n.waiting,
        "kv_usage": n.percent / 1000,
    }


def vllm_metrics(n: Numbers) -> str:
    metrics = {
        "time_to_first_token_ms": n.prefill_cs / 100,
        "generation_time_ms": n.decode_cs / 100,
        "queue_time_ms": n.queue_cs / 100,
        "mean_itl_ms": n.decode_cs / 100 / (n.output - 1),
    }
    usage = {"prompt_tokens": n.prompt, "completion_tokens": n.output}
    return json.dumps({"object": "chat.completion", "usage": usage, "metrics": metrics}) + "\n"


def sglang_decode(n: Numbers) -> str:
    return f"[2025-01-15 10:00:00 TP0] Decode batch. #running-req: {n.running}, #token: {n.prompt}, token usage: {n.percent / 1000}, gen throughput (token/s): {n.rate / 10}, #queue-req: {n.waiting}, \n"


def sglang_prefill(n: Numbers) -> str:
    return f"Prefill batch, #new-seq: 1, #new-token: {n.prompt}, #cached-token: {n.cached}, full token usage: {n.percent / 1000}, #running-req: {n.running}, #queue-req: {n.waiting}, #pending-token: 0, cuda graph: False, input throughput (token/s): {n.rate / 10}\n"


def sglang_stats(n: Numbers) -> str:
    return f"ReqTimeStats(rid=ab1, input_len={n.prompt + n.cached}, cached_input_len={n.cached}, output_len={n.output}, type=unified): queue_duration={ms(n.queue_cs)}ms, initial_prefill_elapsed={ms(n.prefill_cs)}ms, post_prefill_elapsed={ms(n.decode_cs)}ms, forward_duration={ms(n.prefill_cs + n.decode_cs)}ms, entry_time=1736900000.1\n"


def tgi_span(n: Numbers) -> str:
    total, inference = n.queue_cs + n.prefill_cs + n.output * 1000, n.output * 1000
    return f'2024-01-01T00:00:00.000000Z  INFO generate{{total_time="{ms(total)}ms" validation_time="{ms(n.prefill_cs)}ms" queue_time="{ms(n.queue_cs)}ms" inference_time="{ms(inference)}ms" time_per_token="10ms" seed="None"}}: router: router/src/server.rs:325: Success\n'


def lm_studio_v0(n: Numbers) -> str:
    stats = {
        "tokens_per_second": n.output / n.decode_s,
        "time_to_first_token": n.prefill_s,
        "generation_time": n.decode_s,
        "stop_reason": "eosFound",
    }
    return (
        json.dumps(
            {"usage": {"prompt_tokens": n.prompt, "completion_tokens": n.output}, "stats": stats}
        )
        + "\n"
    )


def lm_studio_v1(n: Numbers) -> str:
    stats = {
        "input_tokens": n.prompt,
        "total_output_tokens": n.output,
        "reasoning_output_tokens": 0,
        "tokens_per_second": n.output / n.decode_s,
        "time_to_first_token_seconds": n.prefill_s,
        "model_load_time_seconds": n.queue_s,
    }
    return json.dumps({"result": {"stats": stats}}) + "\n"


def webui(n: Numbers) -> str:
    return f"12:00:00-123456 INFO     Output generated in {ms(n.decode_cs)} seconds ({n.output / (n.decode_cs / 100):.2f} tokens/s, {n.output} tokens, context {n.prompt}, seed 42)\n"


def tabby(n: Numbers) -> str:
    pp, tg = (n.rate + 1) / 100, (n.rate + 7) / 100
    total = n.queue_cs / 100 + n.prompt / pp + n.output / tg
    return f"2025-06-01 10:00:00.123 INFO:     Metrics (ID: 1f2e): {n.output} tokens generated in {total:.2f} seconds (Queue: {ms(n.queue_cs)} s, Process: {n.cached} cached tokens and {n.prompt} new tokens at {pp} T/s, Generate: {tg} T/s, Context: {n.prompt + n.cached} tokens, Draft: {n.running} / {n.waiting} tokens accepted (75.0%))\n"


def tabby_expect(n: Numbers) -> dict[str, Any]:
    pp, tg = (n.rate + 1) / 100, (n.rate + 7) / 100
    return {
        "prompt.cached": n.cached,
        "prompt.new": n.prompt,
        "output.total": n.output,
        "phases.queue_s": n.queue_cs / 100,
        "phases.prefill_s": n.prompt / pp,
        "phases.decode_s": n.output / tg,
        "speculation.accepted": n.running,
        "speculation.drafted": n.waiting,
    }


def mlx(n: Numbers) -> str:
    return f"Prompt: {n.prompt} tokens, {(n.rate + 1) / 100} tokens-per-sec\nGeneration: {n.output} tokens, {(n.rate + 3) / 100} tokens-per-sec\n"


def kobold(n: Numbers) -> str:
    process, generate = n.prefill_cs / 100, n.decode_cs / 100
    return f"[16:08:12] CtxLimit:{n.prompt + n.output}/999999, Amt:{n.output}/99999, Init:{ms(n.queue_cs)}s, Process:{process:.2f}s ({n.prompt / process:.2f}T/s), Generate:{generate:.2f}s ({n.output / generate:.2f}T/s), Total:{process + generate:.2f}s\n"


def kobold_expect(n: Numbers) -> dict[str, Any]:
    return {
        "phases.prefill_s": n.prefill_cs / 100,
        "phases.decode_s": n.decode_cs / 100,
        "phases.init_s": n.queue_cs / 100,
        "output.total": n.output,
        "prompt.total": n.prompt,
        "ctx_end": n.prompt + n.output,
    }


def own(n: Numbers) -> str:
    record = RequestRecord(
        id="r",
        phases=PhaseTimes(queue_s=n.queue_s, prefill_s=n.prefill_s, decode_s=n.decode_s),
        prompt=PromptTokens(new=n.prompt),
        output=OutputTokens(total=n.output),
    )
    return json.dumps(record.to_dict()) + "\n"


def server_json_era(n: Numbers) -> str:
    head = {"function": "print_timings", "level": "INFO", "line": 313, "slot_id": 0, "task_id": 7}
    lines = [line.strip() for line in times(n, "", "runs  ", n.output)]
    rows = [
        {
            "msg": lines[0],
            "n_prompt_tokens_processed": n.prompt,
            "n_tokens_second": n.prompt / n.prefill_s,
            "t_prompt_processing": n.prefill_cs / 100,
        },
        {
            "msg": "generation " + lines[1],
            "n_decoded": n.output,
            "n_tokens_second": n.output / n.decode_s,
            "t_token_generation": n.decode_cs / 100,
        },
        {"msg": lines[2]},
    ]
    return "".join(json.dumps({**head, **row}) + "\n" for row in rows)


def server_progress(n: Numbers) -> str:
    return f"0.05.001.000 I slot print_timing: id  0 | task 3 | prompt processing, n_tokens = {n.prompt:6d}, progress = 0.69, t = {n.prefill_cs / 100:.2f} s / {n.prompt / (n.prefill_cs / 100):.6f} tokens per second\n"


def vllm_spec(n: Numbers) -> str:
    return f"INFO 09-01 10:00:00 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 1.74, Accepted throughput: {n.rate / 10} tokens/s, Drafted throughput: {n.rate / 10} tokens/s, Accepted: {n.output} tokens, Drafted: {n.prompt} tokens, Per-position acceptance rate: 0.738, 0.5, Avg Draft acceptance rate: {n.percent / 10}%\n"


def sglang_prefill_old(n: Numbers) -> str:
    return f"[2025-01-15 10:00:00] Prefill batch. #new-seq: 1, #new-token: {n.prompt}, #cached-token: {n.cached}, token usage: {n.percent / 1000}, #running-req: {n.running}, #queue-req: {n.waiting}\n"


def sglang_decode_new(n: Numbers) -> str:
    return f"Decode batch, #running-req: {n.running}, #full token: {n.prompt}, full token usage: {n.percent / 1000}, mamba num: 20, mamba usage: 1.00, cuda graph: True, gen throughput (token/s): {n.rate / 10}, #queue-req: {n.waiting}\n"


def tgi_json(n: Numbers) -> str:
    inference = n.output * 1000
    span = {
        "total_time": f"{ms(n.queue_cs + n.prefill_cs + inference)}ms",
        "validation_time": f"{ms(n.prefill_cs)}ms",
        "queue_time": f"{ms(n.queue_cs)}ms",
        "inference_time": f"{ms(inference)}ms",
        "time_per_token": "10ms",
    }
    return json.dumps({"level": "INFO", "message": "Success", "span": span}) + "\n"


def tabby_old(n: Numbers) -> str:
    pp, tg = (n.rate % 4_000_000 + 1) / 100, (n.rate + 7) / 100
    total = n.queue_cs / 100 + n.prompt / pp + n.output / tg
    return f"INFO:     Metrics: {n.output} tokens generated in {total:.2f} seconds (Queue: {ms(n.queue_cs)} s, Process: {pp} T/s, Generate: {tg} T/s, Context: {n.prompt} tokens)\n"


def tabby_usage(n: Numbers) -> str:
    usage = {
        "prompt_tokens": n.prompt + n.cached,
        "prompt_time": n.prefill_s,
        "prompt_tokens_per_sec": n.prompt / n.prefill_s,
        "completion_tokens": n.output,
        "completion_time": n.decode_s,
        "completion_tokens_per_sec": n.output / n.decode_s,
        "total_time": n.prefill_s + n.decode_s,
        "prompt_tokens_details": {"cached_tokens": n.cached},
    }
    return json.dumps({"id": "c", "usage": usage}) + "\n"


def kobold_2024(n: Numbers) -> str:
    process, generate = n.prefill_cs / 100, n.decode_cs / 100
    return f"CtxLimit: {n.prompt}/999999, Process:{process:.2f}s ({process * 1000 / n.prompt:.1f}ms/T = {n.prompt / process:.2f}T/s), Generate:{generate:.2f}s ({generate * 1000 / n.output:.1f}ms/T = {n.output / generate:.2f}T/s), Total:{process + generate:.2f}s ({n.output / (process + generate):.2f}T/s)\n"


def kobold_2023(n: Numbers) -> str:
    process, generate = n.prefill_cs / 100, n.decode_cs / 100
    return f"Time Taken - Processing:{process:.2f}s ({round(process * 1000 / n.prompt)}ms/T), Generation:{generate:.2f}s ({round(generate * 1000 / n.output)}ms/T), Total:{process + generate:.2f}s\n"


def openai_reply(n: Numbers) -> str:
    usage = {
        "prompt_tokens": n.prompt + n.cached,
        "completion_tokens": n.output,
        "prompt_tokens_details": {"cached_tokens": n.cached},
    }
    return json.dumps({"id": "c", "object": "chat.completion", "usage": usage}) + "\n"


def own_window(n: Numbers) -> str:
    record = WindowRecord(
        engine="vllm",
        prompt_tok_s=n.rate / 10,
        output_tok_s=n.rate / 10,
        running=n.running,
        waiting=n.waiting,
        kv_usage=n.percent / 1000,
    )
    return json.dumps(record.to_dict()) + "\n"


def bench(n: Numbers) -> str:
    rows = {
        "Successful requests": n.running + 1,
        "Benchmark duration (s)": ms(n.decode_cs),
        "Total input tokens": n.prompt,
        "Total generated tokens": n.output,
        "Mean TTFT (ms)": ms(n.prefill_cs),
        "P99 ITL (ms)": ms(n.queue_cs),
    }
    body = "".join(f"{name + ':':<41}{value:<10}\n" for name, value in rows.items())
    return "============ Serving Benchmark Result ============\n" + body + "=" * 50 + "\n"


def json_keys(text: str, seed: int) -> str:
    def turn(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        keys = list(value)
        shift = seed % len(keys) if keys else 0
        return {key: turn(value[key]) for key in keys[shift:] + keys[:shift]}

    return json.dumps(turn(json.loads(text))) + "\n"


def comma_parts(start: str) -> Callable[[str, int], str]:
    """Rotate the comma-separated parts that follow `start`."""

    def turn(text: str, seed: int) -> str:
        head, mark, tail = text.rstrip("\n").rstrip(", ").partition(start)
        parts = tail.split(", ")
        shift = seed % len(parts)
        return head + mark + ", ".join(parts[shift:] + parts[:shift]) + ", \n"

    return turn


FORMATS = [
    Format("llama_print_timings", library("llama_print_timings"), phases, comma=True),
    Format("llama_perf_context_print", library("llama_perf_context_print"), phases, comma=True),
    Format("llama-server block", server_block, phases, comma=True),
    Format("llama-server prefixed", server_prefixed, phases, comma=True),
    Format("llama-server text era", server_text_era, phases),
    Format("llama-server JSON", server_json, lambda n: {**phases(n), "prompt.cached": n.cached}, reorder=json_keys),
    Format("ollama verbose", ollama_verbose, ollama_expect),
    Format("ollama JSON", ollama_json, ollama_expect, reorder=json_keys),
    Format("vllm V1", vllm_v1, lambda n: {**window(n), "prefix_hit_rate": n.percent / 1000}, "windows", reorder=comma_parts("Engine 000: ")),
    Format("vllm V0", vllm_v0, window, "windows"),
    Format("vllm request JSON", vllm_metrics, lambda n: {"phases.prefill_s": n.prefill_s, "phases.decode_s": n.decode_s, "phases.queue_s": n.queue_s, "prompt.total": n.prompt, "output.total": n.output}, reorder=json_keys),
    Format("sglang decode", sglang_decode, lambda n: {k: v for k, v in window(n).items() if k != "prompt_tok_s"}, "windows", reorder=comma_parts("Decode batch. "), ends_open=True),
    Format("sglang prefill", sglang_prefill, lambda n: {**{k: v for k, v in window(n).items() if k != "output_tok_s"}, "prefix_hit_rate": n.cached / (n.cached + n.prompt)}, "windows", reorder=comma_parts("Prefill batch, "), ends_open=True),
    Format("sglang request", sglang_stats, lambda n: {**phases(n), "prompt.cached": n.cached, "phases.queue_s": n.queue_s}),
    Format("tgi span", tgi_span, lambda n: {"phases.init_s": n.prefill_s, "phases.queue_s": n.queue_s, "output.total": n.output}),
    Format("lm-studio v0", lm_studio_v0, lambda n: {"prompt.total": n.prompt, "output.total": n.output, "ttft_any_s": n.prefill_s, "phases.decode_s": n.decode_s}, reorder=json_keys),
    Format("lm-studio v1", lm_studio_v1, lambda n: {"prompt.total": n.prompt, "output.total": n.output, "ttft_any_s": n.prefill_s, "phases.decode_s": n.decode_s, "phases.load_s": n.queue_s}, reorder=json_keys),
    Format("text-generation-webui", webui, lambda n: {"e2e_s": n.decode_cs / 100, "output.total": n.output, "prompt.total": n.prompt}),
    Format("tabbyapi", tabby, tabby_expect),
    Format("mlx-lm", mlx, lambda n: {"prompt.total": n.prompt, "output.total": n.output, "ttft_any_s": n.prompt / ((n.rate + 1) / 100), "phases.decode_s": n.output / ((n.rate + 3) / 100)}),
    Format("koboldcpp", kobold, kobold_expect, reorder=comma_parts("] ")),
    Format("llama-server JSON era", server_json_era, phases),
    Format("llama-server progress", server_progress, lambda n: {"phases.prefill_s": n.prefill_cs / 100, "prompt.new": n.prompt}),
    Format("vllm speculation", vllm_spec, lambda n: {"facts.accepted": n.output, "facts.drafted": n.prompt, "facts.accepted_throughput": n.rate / 10, "facts.draft_acceptance": n.percent / 1000}, "windows"),
    Format("vllm bench", bench, lambda n: {"window_s": n.decode_cs / 100, "prompt_tok_s": n.prompt / (n.decode_cs / 100), "output_tok_s": n.output / (n.decode_cs / 100), "facts.mean_ttft_s": n.prefill_s, "facts.p99_itl_s": n.queue_s}, "windows", ends_open=True),
    Format("sglang prefill old", sglang_prefill_old, lambda n: {**{k: v for k, v in window(n).items() if not k.endswith("tok_s")}, "prefix_hit_rate": n.cached / (n.cached + n.prompt)}, "windows", ends_open=True),
    Format("sglang decode new", sglang_decode_new, lambda n: {k: v for k, v in window(n).items() if k != "prompt_tok_s"}, "windows", reorder=comma_parts("Decode batch, "), ends_open=True),
    Format("tgi JSON", tgi_json, lambda n: {"phases.init_s": n.prefill_s, "phases.queue_s": n.queue_s, "output.total": n.output}, reorder=json_keys),
    Format("tabbyapi old", tabby_old, lambda n: {"prompt.total": n.prompt, "output.total": n.output, "phases.queue_s": n.queue_cs / 100, "phases.prefill_s": n.prompt / ((n.rate % 4_000_000 + 1) / 100)}),
    Format("tabbyapi usage", tabby_usage, lambda n: {**phases(n), "prompt.cached": n.cached}, reorder=json_keys),
    Format("koboldcpp 2024", kobold_2024, lambda n: {"phases.prefill_s": n.prefill_cs / 100, "phases.decode_s": n.decode_cs / 100, "ctx_end": n.prompt}),
    Format("koboldcpp 2023", kobold_2023, lambda n: {"phases.prefill_s": n.prefill_cs / 100, "phases.decode_s": n.decode_cs / 100, "e2e_s": (n.prefill_cs + n.decode_cs) / 100}),
    Format("openai reply", openai_reply, lambda n: {"prompt.total": n.prompt + n.cached, "prompt.cached": n.cached, "prompt.new": n.prompt, "output.total": n.output}, reorder=json_keys),
    Format("own windows", own_window, window, "windows", reorder=json_keys),
    Format("own records", own, lambda n: {**phases(n), "phases.queue_s": n.queue_s}, reorder=json_keys),
]  # fmt: skip


def read_path(item: Any, path: str) -> Any:
    """Return the value at a dotted attribute path."""
    for name in path.split("."):
        item = item.get(name) if isinstance(item, dict) else getattr(item, name)
    return item
