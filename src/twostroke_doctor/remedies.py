"""The doctor's own cures as a table; `twostroke.advice` holds those that follow from one record.

A cure is exact, bounded by the seconds of its finding, or without a saving where nothing tells it.
"""

from __future__ import annotations

from types import MappingProxyType

from twostroke.advice import Cure, cure

# key -> the change, in the imperative; {count} is a number of threads or devices
CURES = MappingProxyType(
    {
        "cache_on": "Check that this backend and model have prefix caching on.",
        "checkpoints": (
            "For hybrid models: smaller cache blocks, or checkpoints at the first sighting."
        ),
        "close_stream": (
            "Close the stream with the last token: look at buffers, stop handling and proxies."
        ),
        "f16_kv": "Use 16-bit KV here, or a build whose kernels have this head size and KV type.",
        "fewer_devices": "Use {count} devices where the model fits, or a faster link between them.",
        "fewer_sequences": "Admit fewer requests at once (max_num_seqs).",
        "fewer_threads": (
            "Decode with {count} threads (--threads); prefill may keep more (--threads-batch)."
        ),
        "finite_rate": (
            "Measure at a rate below capacity, or with a fixed number of requests at once."
        ),
        "fit": (
            "Make it fit: fewer layers on the GPU, a smaller context, 8-bit KV, or a smaller "
            "quantisation of the weights."
        ),
        "free_cores": (
            "Stop or move what takes the CPU, or give the server fewer threads than cores are free."
        ),
        "gpu_prefill": "Then prefill on a GPU, or a build with fast matrix kernels (BLAS, AMX).",
        "half_kv": "Halve the KV bytes (8-bit KV) or the context.",
        "keep_loaded": (
            "Keep the model loaded (keep-alive), or load it before the first request comes."
        ),
        "larger_context": "A larger context, or cut far more at once.",
        "larger_ubatch": (
            "Raise the physical batch of prefill (-ub 512 or more, max_num_batched_tokens)."
        ),
        "less_init": (
            "Look at what is done before the model runs: a template with many special tokens, a "
            "grammar compiled anew, images encoded, too few tokeniser workers."
        ),
        "less_kv": (
            "Read less KV: 8-bit KV, a shorter history, a model with fewer KV heads or windows."
        ),
        "less_reasoning": (
            "Switch thinking off or limit its budget; report the first visible token apart."
        ),
        "like_with_like": "Compare with the same prompt and output.",
        "more_kv": (
            "Make room for KV: 8-bit KV, a shorter maximum length, more memory for the cache, "
            "replicas."
        ),
        "more_state": "Give the state pool more memory (mamba ratio), the KV cache less.",
        "move_background": (
            "Switch these off in the application, or give them a small model of their own."
        ),
        "name_rates": "Call one end-to-end and the other decode.",
        "no_drafts": (
            "Switch drafting off, or draft fewer tokens with a cheaper or better draft model."
        ),
        "per_request": "Log single requests, or ask the endpoint itself with --url.",
        "same_salt": "Salt, LoRA and images must be the same for a hit.",
        "separate": "Send long prompts to another instance.",
        "smaller_blocks": "A block larger than the shared prefix never hits: smaller blocks.",
        "smaller_model": "Only fewer bytes a pass make this shorter.",
        "smaller_slices": (
            "Smaller prefill slices (--prefill-chunk) or a lower target time a token."
        ),
        "swa_full": "Keep the full cache (--swa-full) or context checkpoints; costs KV memory.",
        "warm_up": "Warm up with the real shapes before serving; leave the first out of averages.",
        "without_drafts": "Try without speculative decoding, which can switch it off.",
    }
)


def unpriced(*keys: str) -> tuple[Cure, ...]:
    """Return cures whose saving nothing measured tells."""
    return tuple(cure.unpredicted(key, CURES[key]) for key in keys)


def exactly(key: str, seconds: float, basis: str, count: float | None = None) -> Cure:
    """Return a cure that saves exactly these seconds."""
    return cure.exact(key, _what(key, count), seconds, basis)


def at_most(key: str, seconds: float, of: str, count: float | None = None) -> Cure:
    """Return a cure that saves at most these seconds, which are those of something named."""
    return cure.between(key, _what(key, count), 0.0, seconds, f"at most {of}")


def _what(key: str, count: float | None) -> str:
    return CURES[key] if count is None else CURES[key].format(count=f"{count:.0f}")
