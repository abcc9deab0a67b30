"""The facts of the D cases: log text, records where no engine prints the numbers, flags."""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tests.doctor import doctor_logs as log
from twostroke.record import Meter, OutputTokens, PhaseTimes, PromptTokens, RequestRecord
from twostroke_doctor import Fact


@dataclass(frozen=True)
class Case:
    """files: name -> log text; records and facts: where no engine prints the posted numbers."""

    name: str
    code: str
    files: dict[str, str] = field(default_factory=dict)
    records: tuple[RequestRecord, ...] = ()
    facts: tuple[Fact, ...] = ()
    flags: dict[str, object] = field(default_factory=dict)
    next: tuple[str, ...] = ()
    share: float | None = None
    also: tuple[str, ...] = ()


def one(text, **more):
    return {"files": {"a.log": text}, **more}


def request(new=None, prefill_s=None, output=None, decode_s=None, *, lines=(), **more):
    """A record with the rates that a parser would compute."""
    fields = {
        "engine": "client",
        "prompt": PromptTokens(
            new=new, total=more.pop("total", None), cached=more.pop("cached", None)
        ),
        "output": OutputTokens(total=output, reasoning=more.pop("reasoning", None)),
        "phases": PhaseTimes(prefill_s=prefill_s, decode_s=decode_s, **more.pop("phases", {})),
        "prefill_tok_s": new / prefill_s if new and prefill_s and new >= 32 else None,
        "decode_tok_s": (output - 1) / decode_s if output and output > 1 and decode_s else None,
        "meter": Meter(
            source="client",
            flags=more.pop("flags", ()),
            file=more.pop("file", "a.log"),
            lines=lines,
        ),
    }
    return RequestRecord(**{**fields, **more})


TURN = 111_544
CACHED = 1_200

CASES = [
    Case(
        "D01 private-gpt#493, a CPU",
        "PREFILL_CPU",
        **one(log.llama_cpp((193146.00, 1520), (8907.04, 30), total_ms=203319.03)),
        next=("PREFILL", "DECODE"),
        share=193.146 / 203.319,
    ),
    Case(
        "D01 private-gpt#493, with cuBLAS beside it",
        "PREFILL_CPU",
        files={
            "cpu.log": log.llama_cpp((193146.00, 1520), (8907.04, 30)),
            "cublas.log": log.llama_cpp((35152.85, 2052), (7137.17, 24), comma=True),
        },
        next=("PREFILL",),
        share=193.146 / (193.146 + 8.90704 + 35.15285 + 7.13717),
    ),
    Case(
        "D02 text-generation-webui#2645",
        "SPILL",
        **one(log.llama_cpp((715484.66, 1326), (36384.77, 55), load_ms=276000)),
        next=("PREFILL_CPU", "PREFILL", "DECODE"),
        also=("PREFILL_CPU",),
    ),
    Case(
        "D03 llama.cpp#1786",
        "SPILL",
        files={
            "gpu.log": log.layers(20, 43) + log.llama_cpp((146712.89, 1294), (15896.0, 64)),
            "cpu.log": log.llama_cpp((10762.0, 1245), (34006.0, 110)),
        },
        next=("OFFLOAD", "PREFILL_CPU", "PREFILL", "DECODE"),
    ),
    Case(
        "D04 koboldcpp#681",
        "PREFIX_MISS",
        **one(
            log.kobold(11892, 12288, (34.76, 338.83), (9.61, 12.07))
            + log.kobold(11892, 12288, (0.81, 94.41), (9.38, 12.15))
        ),
        next=("PREFILL", "DECODE"),
        share=33.95 / (34.76 + 9.61 + 0.81 + 9.38),
    ),
    Case(  # the thread gives the speed of one step (4096 tokens in 4.92 s); the turns are built
        "D06 open-webui#20317: documents in the last message",
        "PREFIX_MISS",
        **one(
            "".join(
                log.slot(
                    n,
                    ((total - 800) * 4920 / 4096, total - 800),
                    (4000.0, 100),
                    cached=800,
                    total=total,
                )
                for n, total in enumerate((100_000, 101_000, 102_000))
            )
        ),
        next=("PREFILL",),
    ),
    Case(
        "D07 gsd-pi#108: a time stamp in the system prompt",
        "PREFIX_MISS",
        **one(
            "".join(
                log.slot(n, (5410.0, total - CACHED), (900.0, 60), cached=CACHED, total=total)
                for n, total in enumerate((TURN + CACHED, TURN + CACHED + 90, TURN + CACHED + 170))
            )
        ),
        next=("PREFILL",),
    ),
    Case(
        "D08 llama.cpp#13194",
        "PREFIX_MISS",
        **one(
            log.slot(7, (310.0, 220), (9200.0, 300))
            + log.slot(
                2188,
                (12454.58, 9683),
                (7658.14, 106),
                cached=0,
                total=9683,
                extra="forcing full prompt re-processing due to lack of cache data (likely due to SWA or hybrid/recurrent memory)",
            )
        ),
        next=("PREFILL", "DECODE", "DECODE_KV"),
        also=("DECODE_KV",),
    ),
    Case(
        "D10 sglang#922",
        "EXPECTED",
        **one(log.sglang_request(16384, 200, prefill_s=15.0, decode_s=9.0)),
        flags={"model": "llama-3.1-70b", "device": "a6000"},
        next=("PREFILL",),
        share=15 / 24,
    ),
    Case(
        "D10 sglang#2961: 20 s on four 2080 Ti",
        "PREFILL",
        **one(log.sglang_request(16384, 200, prefill_s=20.0, decode_s=10.0)),
        share=2 / 3,
    ),
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
    Case(  # as the reply's usage gives them
        "D17 taosmd#42",
        "REASONING",
        **one(
            json.dumps(
                {
                    "id": "a",
                    "usage": {
                        "prompt_tokens": 50,
                        "completion_tokens": 225,
                        "completion_tokens_details": {"reasoning_tokens": 216},
                        "total_time": 173.6,
                        "completion_time": 173.0,
                    },
                },
                indent=1,
            )
            .replace("\n  ", "\n ")
            .replace("\n", " ")
            + "\n"
        ),
        share=173.0 * 216 / 225 / 173.6,
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
        "D20 MTPLX#265",
        "PREFILL",
        **one(log.mlx(29411, 216.26, 500, 25.0)),
        share=136 / (136 + 20),
        next=("DECODE",),
    ),
    Case(
        "D21 lmstudio-bug-tracker#2060: a full context",
        "PREFIX_MISS",
        facts=(Fact(name="n_ctx", value=8192, engine="llama-server", file="a.log", line=1),),
        records=tuple(
            request(7900, 20.0, 200, 8.0, total=7900, cached=0, ctx_end=8100, lines=(n,))
            for n in (10, 20, 30)
        ),
        next=("PREFILL", "DECODE"),
    ),
    Case(
        "D23 vllm#31920: never a hit with drafts, hits without",
        "PREFIX_MISS",
        files={
            "drafts.log": log.vllm(2.3, 3.0, 0, 0, 0.0, 0.0),
            "plain.log": log.vllm(2.3, 3.0, 0, 0, 0.0, 29.1)
            + log.vllm(2.3, 3.0, 0, 0, 0.0, 33.3, stamp="10:00:10"),
        },
        next=("WINDOW",),
    ),
    Case(
        "D23 vllm-ascend#2304",
        "PREFIX_MISS",
        **one(log.vllm(36.1, 50.0, 0, 0, 0.0, 0.0)),
        flags={"shared_head": True},
        next=("WINDOW",),
    ),
    Case(
        "D24 sparkinfer#490: prompt token by token",
        "PREFILL",
        **one(log.sglang_request(4096, 65, prefill_s=12.5, decode_s=0.2)),
        share=12.5 / 12.7,
    ),
    # The plan says LOAD. Decode holds 86 % of the wait and comes first; LOAD is second.
    Case(
        "D25 llm-ollama#32",
        "DECODE",
        **one(
            log.ollama(
                prompt=(13, 19.747), decode=(1133, 127.682), load_s=0.559665542, total_s=147.99
            )
        ),
        share=127.682 / 147.99,
        also=("LOAD",),
        next=("PREFILL", "LOAD"),
    ),
    Case(
        "D60 vllm#45238: hits at the third sighting only",
        "PREFIX_MISS",
        **one(
            "".join(
                log.vllm_request(n, 1, ttft_s=t, decode_s=0.0, name=f"{n}-{t}")
                for n, times in (
                    (20_000, (12.80, 12.94, 1.67)),
                    (40_000, (34.58, 67.83, 5.56)),
                    (80_000, (161.10, 174.99, 5.00)),
                )
                for t in times
            )
        ),
        flags={"shared_head": True},
        next=("PREFILL",),
    ),
    Case(
        "D26 llama.cpp#2237",
        "DECODE_BW",
        **one(log.threads(56, 112) + log.llama_cpp((2000.0, 86), (100 / 4.43 * 1000, 100))),
        flags={"weights_gb": 13.5, "bandwidth": 80.0},
        next=("DECODE", "PREFILL"),
    ),
    Case(
        "D26 llama.cpp#2237, cores known",
        "THREADS",
        **one(log.threads(56, 112) + log.llama_cpp((2000.0, 86), (100 / 4.43 * 1000, 100))),
        flags={"threads": 28},
        next=("DECODE", "PREFILL"),
    ),
    Case(
        "D29 vllm#770: one pass is the floor",
        "EXPECTED",
        **one(log.vllm_request(8, 2, ttft_s=0.062, decode_s=0.060)),
        flags={"weights_gb": 26.0, "bandwidth": 600.0},
        next=("DECODE", "PREFILL", "DECODE_BW"),
    ),
    Case(
        "D31 ollama#9005",
        "OFFLOAD",
        **one(
            log.ollama_ps("156 GB", "41%/59% CPU/GPU", 121234)
            + log.layers(19, 81)
            + log.ollama(prompt=(100, 3.0), decode=(120, 120.0))
        ),
        flags={"model": "deepseek-r1-70b"},
        next=("DECODE", "PREFILL"),
    ),
    Case(
        "D32 ollama#7198",
        "OFFLOAD",
        **one(
            log.ollama_ps("9.0 GB", "33%/67% CPU/GPU", 40000, "llama3.2:3b")
            + log.ollama_ps("19 GB", "100% CPU", 128000, "llama3.2:3b")
        ),
    ),
    Case(
        "D33 ollama#10848",
        "OFFLOAD",
        **one(log.layers(5, 37) + log.ollama(prompt=(200, 4.0), decode=(100, 20.0))),
        next=("DECODE", "PREFILL", "LOAD"),
    ),
    Case(
        "D33 ollama#15634: only the output layer stays behind",
        "OFFLOAD",
        **one(log.layers(42, 43) + log.ollama(prompt=(200, 1.0), decode=(100, 5.0))),
        next=("DECODE", "PREFILL"),
    ),
    Case(
        "D35 llama.cpp#12352: pp 1511 and 197",
        "KVQ_FALLBACK",
        files={
            "f16.log": log.kv_types("f16") + log.slot(1, (2000 / 1511 * 1000, 2000), (4000.0, 120)),
            "q8.log": log.kv_types("q8_0") + log.slot(1, (2000 / 197 * 1000, 2000), (6400.0, 120)),
        },
        next=("PREFILL", "DECODE"),
    ),
    Case(  # Ollama prints no model in a block: records
        "D35 ollama#9683: 4b slower than 27b",
        "KVQ_FALLBACK",
        facts=(Fact(name="kv_type_k", value="q8_0", engine="ollama", file="a.log", line=1),),
        records=(
            request(2000, 2000 / 183.67, 300, 300 / 18.73, model="gemma3:4b", lines=(10,)),
            request(2000, 2000 / 285.7, 300, 300 / 27.95, model="gemma3:27b", lines=(20,)),
        ),
        next=("DECODE", "PREFILL"),
    ),
    Case(
        "D36 unsloth#11349",
        "OFFLOAD",
        **one(
            "load_tensors:        CUDA0 model buffer size =  2193.00 MiB\n"
            + log.llama_cpp((4295 / 8.38 * 1000, 4295), (100 / 8.5 * 1000, 100))
        ),
        flags={"weights_gb": 5.0},
        next=("PREFILL_CPU", "PREFILL", "DECODE"),
    ),
    Case(
        "D38 text-generation-webui#3349",
        "SPILL",
        **one("Output generated in 500.00 seconds (0.02 tokens/s, 10 tokens, context 4, seed 1)\n"),
        flags={"weights_gb": 13.0},
        next=("METER",),
    ),
    Case(  # the thread gives the ratio; the rates are built
        "D39 llama.cpp#12966: 16 threads and 8",
        "THREADS",
        files={
            "16.log": log.threads(16, 16) + log.llama_cpp((5000.0, 400), (60000.0, 100)),
            "8.log": log.threads(8, 16) + log.llama_cpp((5200.0, 400), (20000.0, 100)),
        },
        next=("DECODE",),
    ),
    Case(
        "D41 vllm#11286: 90 requests past 8000 tokens",
        "DECODE_KV",
        **one(
            log.vllm(0.0, 5364.0, 90, 0, 20.0, 0.0)
            + log.vllm(0.0, 273.0, 90, 0, 70.0, 0.0, stamp="10:00:10")
        ),
        next=("WINDOW",),
    ),
    Case(
        "D42 mlx-lm#763",
        "DECODE_KV",
        **one(log.mlx(30_000, 9000.0, 400, 25.0) + log.mlx(146_000, 9000.0, 400, 5.95)),
        next=("DECODE", "PREFILL"),
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
        "D45 vllm#8439",
        "SPEC_BAD",
        files={
            "drafts.log": log.vllm_request(
                100, 200, ttft_s=0.1, decode_s=199 / 61.8, drafts=(300, 100)
            ),
            "plain.log": log.vllm_request(100, 200, ttft_s=0.1, decode_s=199 / 69.8),
        },
        next=("DECODE",),
    ),
    Case(
        "D45 llama.cpp#10455: 34 % accepted",
        "SPEC_BAD",
        files={
            "drafts.log": log.slot(1, (500.0, 100), (100 / 10.8 * 1000, 100)).replace(
                "slot      release",
                "draft acceptance rate = 0.34000 (  102 accepted /   300 generated)\nslot      release",
            ),
            "plain.log": log.slot(1, (500.0, 100), (100 / 11.0 * 1000, 100)),
        },
        next=("DECODE",),
    ),
    Case(  # the paper gives the share of the floor; a record of 27 % of 4.55 ms
        "D46 arXiv:2605.30571 on an H100",
        "LAUNCH",
        **one(log.vllm_request(2048, 257, ttft_s=0.1, decode_s=256 * 15.24 / 3350 / 0.27)),
        flags={"weights_gb": 15.24, "device": "h100"},
        next=("DECODE",),
    ),
    Case(
        "D46 arXiv:2605.30571 on an L4",
        "DECODE_BW",
        **one(log.vllm_request(2048, 257, ttft_s=0.5, decode_s=256 * 0.0623)),
        flags={"weights_gb": 15.24, "device": "l4"},
        next=("DECODE",),
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
IDS = [case.name.split(":")[0] for case in CASES]
