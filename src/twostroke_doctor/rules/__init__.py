"""One function a code, over one evidence object; each returns a finding or None.

The order follows a request: queue, load, init, prefill, decode, hidden work, then the meter itself.
It decides between two findings that hold the same share of the wait.
"""

from twostroke_doctor.rules import (
    compared,
    decode,
    expected,
    hidden,
    kv_reads,
    memory,
    meter,
    outside_model,
    prefill,
    prefix,
    queue,
)

# Causes: each proves its own code.
SPECIFIC = (
    queue.kv_full,
    queue.preempt,
    queue.state_pool,
    queue.queue,
    outside_model.load,
    outside_model.warmup,
    outside_model.init,
    prefix.prefix_miss,
    memory.spill,
    memory.offload,
    prefill.prefill_cpu,
    prefill.small_ubatch,
    compared.kvq_fallback,
    kv_reads.decode_kv,
    compared.spec_bad,
    compared.threads,
    compared.comm,
    decode.launch,
    decode.decode_bw,
    hidden.reasoning,
    hidden.background,
    hidden.interference,
    outside_model.tail,
    expected.expected,
    meter.meter,
)
# Phases whose cause stays open: looked at only for the seconds that no cause has claimed.
GENERIC = (prefill.prefill, decode.decode)
LAST = (meter.window,)

__all__ = ["GENERIC", "LAST", "SPECIFIC"]
