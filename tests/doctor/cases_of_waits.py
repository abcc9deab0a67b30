"""Public reports of queues, first requests, other requests, and meters that are wrong."""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

from tests.doctor import doctor_logs as log
from tests.doctor.case import Case, one, request

CASES = [
    Case(
        "D11 vllm#6781",
        "QUEUE",
        **one(
            log.bench(
                **{
                    "Traffic request rate": "12.0",
                    "Successful requests": "1000",
                    "Benchmark duration (s)": "100.00",
                    "Total input tokens": "220000",
                    "Request throughput (req/s)": "10.00",
                    "Mean TTFT (ms)": "18800.00",
                }
            )
        ),
    ),
    Case(
        "D12 vllm#8104",
        "QUEUE",
        **one(
            log.bench(
                **{
                    "Traffic request rate": "inf",
                    "Successful requests": "1000",
                    "Mean TTFT (ms)": "515000.00",
                }
            )
        ),
    ),
    Case(
        "D14 text-generation-inference#3173",
        "QUEUE",
        **one(
            '2024-01-01T00:00:00.000000Z  INFO generate{total_time="162.5s" validation_time="1ms" queue_time="161.454300714s" inference_time="1.0s" time_per_token="50ms" seed="None"}: text_generation_router::server: router/src/server.rs:325: Success\n'
        ),
        share=161.454300714 / 162.5,
    ),
    Case(  # the thread gives rates; the token counts are built
        "D15 vllm#16858",
        "WARMUP",
        **one(
            log.vllm_request(40, 101, ttft_s=0.05, decode_s=100 / 3.76, name="a")
            + log.vllm_request(40, 101, ttft_s=0.05, decode_s=100 / 302, name="b")
        ),
        next=("DECODE",),
    ),
    Case(  # the thread gives 30-60 s of delay; arrivals and counts are built
        "D18 ollama#14662",
        "BACKGROUND",
        records=(
            request(900, 1.0, 220, 9.0, t_arrival_s=0.0, e2e_s=10.0),
            request(1100, 1.2, 12, 9.0, t_arrival_s=10.2, e2e_s=10.2),
            request(1100, 1.2, 20, 12.0, t_arrival_s=10.3, e2e_s=13.2),
            request(1100, 1.2, 40, 14.0, t_arrival_s=10.4, e2e_s=15.2),
        ),
        next=("DECODE",),
    ),
    Case(
        "D43 vllm#43295",
        "KV_FULL",
        **one(log.vllm(0.0, 1055.3, 18, 43, 95.9, 0.0)),
        share=43 / 61,
    ),
    Case(
        "D43 LIMO#29",
        "PREEMPT",
        **one(
            "WARNING 02-10 10:00:00 scheduler.py:1057] Sequence group 12 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end performance. total_num_cumulative_preemption=101\n"
        ),
    ),
    Case(
        "D43 vllm#18115: the ninth must wait",
        "KV_FULL",
        **one(log.vllm(0.0, 400.0, 8, 0, 91.0, 0.0)),
    ),
    Case(
        "D44: the state pool is full, the KV cache is not",
        "STATE_POOL",
        **one(
            "Decode batch, #running-req: 20, #full token: 12345, full token usage: 0.14, mamba num: 20, mamba usage: 1.00, cuda graph: True, gen throughput (token/s): 1174.06, #queue-req: 6\n"
        ),
        share=6 / 26,
    ),
    Case(
        "D48 llama-cpp-python#1830",
        "METER",
        **one(
            "llama_perf_context_print:        load time =       0.00 ms\n"
            "llama_perf_context_print: prompt eval time =       0.00 ms /     1 tokens (    0.00 ms per token,      inf tokens per second)\n"
            "llama_perf_context_print:        eval time =       0.00 ms /     1 runs   (    0.00 ms per token,      inf tokens per second)\n"
            "llama_perf_context_print:       total time =   12345.00 ms /     2 tokens\n"
        ),
    ),
    Case(
        "D50 exllamav2#469",
        "METER",
        **one(
            "Metrics: 167 tokens generated in 19.10 seconds (Queue: 0.0 s, Process: 308821.16 T/s, Generate: 8.79 T/s, Context: 1494 tokens)\n"
        ),
    ),
    Case(  # what the probe raises when it sees an empty first chunk
        "D51 vllm#15106",
        "METER",
        records=(request(500, 0.2, 200, 4.0, flags=("empty_first_chunk",), ttft_any_s=0.2),),
        next=("DECODE",),
    ),
    Case(  # what the probe raises when one chunk carries many tokens
        "D53 sglang PR#36272",
        "METER",
        records=(request(500, 0.2, 200, 4.0, flags=("buffered_stream",)),),
        next=("DECODE",),
    ),
    Case("D54 vllm#4760", "WINDOW", **one(log.vllm_v0(102.0, 2.2, 0, 0, 0.0))),
    Case(
        "D56 llama.cpp#9013: same rates, other work",
        "METER",
        files={
            "cli.log": log.llama_cpp((927.17, 49), (14085.85, 178), prefix="llama_perf_context_print"),
            "server.log": log.slot(1, (3194.22, 783), (400 / 12.64 * 1000, 400)),
        },
        next=("DECODE",),
    ),
    Case(  # both rates of one run; a record
        "D57 TensorRT-LLM#1410",
        "METER",
        records=(
            request(
                100,
                4.409816 - 3.751546,
                190,
                3.751546,
                e2e_s=4.409816,
                reported={"e2e_tok_s": 43.09, "decode_tok_s": 50.38},
            ),
        ),
        next=("DECODE",),
    ),
    Case(
        "D58 text-generation-inference#1417: one time for both phases",
        "METER",
        **one(
            '2024-01-01T00:00:00.000000Z  INFO generate{total_time="986.532642ms" validation_time="681.374µs" queue_time="188.125µs" inference_time="985.66325ms" time_per_token="49.283162ms" seed="None"}: text_generation_router::server: router/src/server.rs:325: Success\n'
        ),
    ),
    Case(
        "D59 Ollama: cached tokens in the prompt count",
        "METER",
        **one(log.ollama(prompt=(10_000, 0.125), decode=(20, 1.0))),
        next=("DECODE",),
    ),
]  # fmt: skip
