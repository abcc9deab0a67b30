"""Public reports of slow decode: memory, placement, KV, threads, drafts, kernels."""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

import json

from tests.doctor import doctor_logs as log
from tests.doctor.case import Case, one, request
from twostroke_doctor import Fact

CASES = [
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
]  # fmt: skip
