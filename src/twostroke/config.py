"""Frozen settings and the one table of environment variables: values are checked, no file read."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import replace

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError


class KvType(enum.Enum):
    """How K and V are stored: 2 bytes a value, or 1 and a float32 scale per token and head."""

    BF16 = "bf16"
    F16 = "f16"
    Q8 = "q8"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The engine's settings. `resolved` replaces each None by a value for the model and host.

    Units: kv_memory_bytes in bytes; target_tpot_s in seconds.
    """

    kv_type: KvType = KvType.BF16
    kv_memory_bytes: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 64
    prefill_chunk: int = 512
    threads: int | None = None
    backend: str = "auto"  # native | reference; auto is native
    kernel_set: str | None = None
    target_tpot_s: float = 0.1

    def __post_init__(self) -> None:
        for name in ("kv_memory_bytes", "max_model_len", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be positive", value=value, limit=">= 1", param=name)
        for name, high in (("max_num_seqs", 4096), ("prefill_chunk", 1 << 20)):
            value = getattr(self, name)
            if not 1 <= value <= high:
                raise ConfigError(f"{name} is out of range", value=value, limit=f"[1, {high}]")
        if self.threads is not None and self.threads > 1024:
            raise ConfigError("threads is out of range", value=self.threads, limit="[1, 1024]")
        if self.backend not in ("auto", "native", "reference"):
            raise ConfigError(
                "unknown backend", value=self.backend, limit="auto, native, reference"
            )
        if not 0.001 <= self.target_tpot_s <= 60:
            raise ConfigError("target_tpot_s is out of range", value=self.target_tpot_s)

    def resolved(
        self,
        *,
        model_max_len: int,
        block_bytes: int,
        block_size: int,
        free_bytes: int,
        num_cores: int,
    ) -> EngineConfig:
        """Return a copy with a context, KV memory and threads: all that the host and model allow.

        The KV cache gets half of the free memory, at most what max_num_seqs full contexts fill.
        """
        max_len = min(self.max_model_len or model_max_len, model_max_len)
        wanted = -(-max_len // block_size) * block_bytes * self.max_num_seqs
        memory = self.kv_memory_bytes or min(max(free_bytes // 2, block_bytes), wanted)
        return replace(
            self,
            max_model_len=max_len,
            kv_memory_bytes=memory,
            threads=self.threads or num_cores,
        )


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One environment variable: its name, its default and its use."""

    name: str
    default: str
    reason: str


ENVIRONMENT: tuple[EnvVar, ...] = (
    EnvVar("TWOSTROKE_CACHE", "~/.cache/twostroke", "models, repacked weights, machine profiles"),
    EnvVar("TWOSTROKE_KERNELS", "best the CPU has", "kernel set: scalar, avx2 or avx512"),
    EnvVar("TWOSTROKE_THREADS", "cores this process may use", "threads of the native backend"),
    EnvVar("TWOSTROKE_NATIVE", "on", "off: install without a compiler (doctor, plan, reference)"),
    EnvVar("TWOSTROKE_PACKED_CACHE_GB", "20", "most disk the repacked weights may take"),
)


def environment_value(environ: Mapping[str, str], name: str) -> str | None:
    """Return a variable of the table, None when unset or empty.

    Raises:
        ConfigError: the name is not in the table.
    """
    if all(var.name != name for var in ENVIRONMENT):
        raise ConfigError("environment variable is not in the table", value=name)
    return environ.get(name) or None
