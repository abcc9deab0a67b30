"""A bar on stderr while the prompt is prefilled."""

from __future__ import annotations

import sys
import time

from twostroke.events import Admitted, Arrived, Event, StepDone

_SHOW_AFTER_S = 0.25  # a short prompt needs no bar
_WIDTH = 24


class PrefillBar:
    """An observer that draws how much of the prompt is read: tokens done, rate, time left.

    Silent where stderr is no terminal.
    """

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._start_s = 0.0
        self._total = 0
        self._cached = 0
        self._drawn = False

    def on_event(self, event: Event) -> None:
        """Take note of one event."""
        if not self._is_shown:
            return
        if isinstance(event, Arrived):
            self._start_s, self._total, self._cached = time.monotonic(), event.num_prompt_tokens, 0
        elif isinstance(event, Admitted):
            self._cached = event.num_cached_tokens
        elif isinstance(event, StepDone):
            done = max((s.end for s in event.plan.prefill), default=0)
            if event.plan.prefill and done < self._total:
                self._draw(done)
            else:
                self.clear()

    def _draw(self, done: int) -> None:
        elapsed = time.monotonic() - self._start_s
        new = done - self._cached
        if elapsed < _SHOW_AFTER_S or new <= 0:
            return
        filled = _WIDTH * done // self._total
        left = (self._total - done) * elapsed / new
        bar = "█" * filled + "░" * (_WIDTH - filled)
        rate = f"{new / elapsed:,.0f} tok/s, {left:.1f} s left"
        text = f"reading {bar} {done}/{self._total} tokens, {rate}"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        self._drawn = True

    def clear(self) -> None:
        """Take the bar away."""
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._drawn = False
