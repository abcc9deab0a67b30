"""The formulas of docs/formulas.md by themselves, where only rates or sizes are known."""

from __future__ import annotations

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Split:
    """A wait in its two phases. Units: seconds."""

    prefill_s: float
    decode_s: float

    @property
    def total_s(self) -> float:
        """Both phases."""
        return self.prefill_s + self.decode_s

    @property
    def prefill_share(self) -> float:
        """Share of the wait before the first token."""
        return self.prefill_s / self.total_s


def split_by_rates(
    prompt: float, output: float, *, prefill_tok_s: float, decode_tok_s: float
) -> Split:
    """Return prompt / prefill rate and output / decode rate.

    Raises:
        ConfigError: a rate that is not positive.
    """
    for name, rate in (("prefill rate", prefill_tok_s), ("decode rate", decode_tok_s)):
        if not rate > 0:
            raise ConfigError(f"{name} must be positive", value=rate, limit="> 0 tok/s")
    return Split(prompt / prefill_tok_s, output / decode_tok_s)


def prefill_flop(values: float, width: float, new: float, cached: float = 0.0) -> float:
    """Return the operations of a prefill: 2 N P + 4 W (P C + P^2 / 2).

    `width` is heads * head_dim summed over the layers; 0 leaves attention out: a lower bound.
    Source: Kaplan et al. 2020, arXiv:2001.08361, with the causal attention term.
    """
    return 2.0 * values * new + 4.0 * width * (new * cached + new * new / 2.0)
