"""Public reports of slow first tokens: lost prefixes, a CPU, the hardware's limit."""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

from tests.doctor import doctor_logs as log
from tests.doctor.case import Case, one, request
from twostroke_doctor import Fact

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
        "D29 vllm#770: one pass is the floor",
        "EXPECTED",
        **one(log.vllm_request(8, 2, ttft_s=0.062, decode_s=0.060)),
        flags={"weights_gb": 26.0, "bandwidth": 600.0},
        next=("DECODE", "PREFILL", "DECODE_BW"),
    ),
]  # fmt: skip
