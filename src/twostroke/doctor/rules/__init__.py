"""One function a code, over one evidence object; each returns a finding or None.

The order is that of MEASURING section 5: sanity, queue, load, init, prefill, decode, hidden work.
It decides between two findings that hold the same share of the wait.
"""

from .compared import comm, kvq_fallback, spec_bad, threads
from .decode import decode, decode_bw, launch
from .hidden import background, interference, reasoning, tail
from .kv_reads import decode_kv
from .memory import offload, spill
from .meter import meter, window
from .prefill import expected, prefill, prefill_cpu, small_ubatch
from .prefix import prefix_miss
from .queue import kv_full, preempt, queue, state_pool
from .start import init, load, warmup

# Causes: each proves its own code.
SPECIFIC = (
    kv_full,
    preempt,
    state_pool,
    queue,
    load,
    warmup,
    init,
    prefix_miss,
    spill,
    offload,
    prefill_cpu,
    small_ubatch,
    kvq_fallback,
    decode_kv,
    spec_bad,
    threads,
    comm,
    launch,
    decode_bw,
    reasoning,
    background,
    interference,
    tail,
    expected,
    meter,
)
# Phases whose cause stays open: looked at only for the seconds that no cause has claimed.
GENERIC = (prefill, decode)
LAST = (window,)

__all__ = ["GENERIC", "LAST", "SPECIFIC"]
