"""The options that several verbs share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from twostroke.cli.engine_options import engine_config, parse_bytes, parse_kv_type
from twostroke.cli.table import Option, Settings
from twostroke.request import SamplingParams

MODEL = Option(
    "model",
    help="smollm2:135m, hf:owner/repo[/file.gguf|:QUANT][@revision], or a path to a .gguf file",
    metavar="MODEL",
    is_required=True,
)
SYSTEM = Option("system", help="System message.")
JSON = Option("as_json", bool, "Print one JSON document on stdout.", False, flag="--json")
EXPLAIN = Option(
    "explain", bool, "Say which phase holds the wait and what would shorten it.", False
)

# The fields of `params`: SamplingParams.
_param = partial(Option, settings=Settings("params", SamplingParams))
MAX_TOKENS = _param("max_tokens", int, "Most output tokens; 0: prefill only.", short="-n")
TEMPERATURE = _param("temperature", float, "0 takes the likeliest token each time.", 0.0)
TOP_K = _param("top_k", int, "Keep the k likeliest; 0: all.", 0)
TOP_P = _param("top_p", float, "Keep this much probability.", 1.0)
MIN_P = _param("min_p", float, "Least share of the best.", 0.0)
REPETITION_PENALTY = _param("repetition_penalty", float, default=1.0)
PRESENCE_PENALTY = _param("presence_penalty", float, default=0.0)
FREQUENCY_PENALTY = _param("frequency_penalty", float, default=0.0)
SEED = _param("seed", int, "Same seed, same text.")
STOP = _param("stop", str, "End before this text; may be repeated.", repeats=True, parse=tuple)
LOGPROBS = _param("logprobs", int, "Log-probabilities of the k best tokens.")

SAMPLING = (
    MAX_TOKENS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    MIN_P,
    REPETITION_PENALTY,
    PRESENCE_PENALTY,
    FREQUENCY_PENALTY,
    SEED,
    STOP,
    LOGPROBS,
)
CHAT_SAMPLING = (
    replace(MAX_TOKENS, help="Most tokens of one answer."),
    TEMPERATURE,
    TOP_P,
    SEED,
    STOP,
)

# The fields of `config`: EngineConfig.
_setting = partial(Option, settings=Settings("config", engine_config))
THREADS = _setting("threads", int, "Threads (default: cores of this process).", short="-t")
PREFILL_CHUNK = _setting("prefill_chunk", int, "Most prompt tokens computed in one step.", 512)
MAX_MODEL_LEN = _setting(
    "max_model_len", int, "Longest prompt plus output in tokens (default: model's)."
)
KV_MEMORY = _setting(
    "kv_memory",
    help="Memory for the KV cache, such as 4GB or 512MiB.",
    parse=partial(parse_bytes, param="--kv-memory"),
    field="kv_memory_bytes",
)
KV_TYPE = _setting(
    "kv_type",
    help="How K and V are stored: bf16, f16 or q8.",
    default="bf16",
    parse=parse_kv_type,
)
BACKEND = _setting(
    "backend", help="auto or native (the same), or reference (NumPy, slow, exact).", default="auto"
)
MAX_NUM_SEQS = _setting("max_num_seqs", int, "Answers generated at the same time.", 64)
KERNELS = _setting("kernels", help="Kernel set: scalar, avx2 or avx512.", field="kernel_set")

MEASURED_ENGINE = (THREADS, PREFILL_CHUNK, KV_TYPE, BACKEND, KERNELS)
ENGINE = (THREADS, PREFILL_CHUNK, MAX_MODEL_LEN, KV_MEMORY, KV_TYPE, BACKEND, KERNELS)
