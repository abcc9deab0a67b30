"""One function a code, over one evidence object; each returns a finding or None.

The order follows a request: queue, load, init, prefill, decode, hidden work, then the meter itself.
It decides between two findings that hold the same share of the wait.
"""

from twostroke_doctor.rules.compared import comm, kvq_fallback, spec_bad, threads
from twostroke_doctor.rules.decode import decode, decode_bw, launch
from twostroke_doctor.rules.expected import expected
from twostroke_doctor.rules.hidden import background, interference, reasoning
from twostroke_doctor.rules.kv_reads import decode_kv
from twostroke_doctor.rules.memory import offload, spill
from twostroke_doctor.rules.meter import meter, window
from twostroke_doctor.rules.phases import init, tail
from twostroke_doctor.rules.prefill import prefill, prefill_cpu, small_ubatch
from twostroke_doctor.rules.prefix import prefix_miss
from twostroke_doctor.rules.queue import kv_full, preempt, queue, state_pool
from twostroke_doctor.rules.start import load, warmup

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
