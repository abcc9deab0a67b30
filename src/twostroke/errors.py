"""The exception tree: every error that a user of the program can meet.

TwoStrokeError
├── ConfigError                 a setting that cannot be honoured
├── ModelError
│   ├── ModelNotFound           no such name, file or revision
│   ├── DownloadError           the network or its checksum failed
│   ├── CorruptCheckpoint       a file that breaks its own format
│   ├── UnsupportedModel        a family, tensor type or tokenizer that we do not run
│   └── TemplateError           the model's chat template refused or broke
├── RequestError
│   ├── InvalidSampling         a sampling parameter out of range
│   └── ContextTooLong          prompt and output do not fit the context
├── CapacityError
│   ├── QueueFull               too many requests wait already: try again later
│   └── OutOfBlocks             can never fit the KV cache
├── KernelError
│   ├── ShapeError              a tensor of the wrong shape
│   └── UnsupportedCPU          a kernel set that this machine lacks
└── EngineStopped               the engine has ended and takes no more work

A message says what happened, the value, the limit and the remedy. HTTP status and exit code are
class attributes.
"""

from __future__ import annotations


class TwoStrokeError(Exception):
    """Root of the tree. `what` is a full clause; value, limit and remedy are added when given."""

    http_status = 500
    exit_code = 1
    code = "internal_error"

    def __init__(
        self,
        what: str,
        *,
        value: object = None,
        limit: object = None,
        remedy: str | None = None,
        param: str | None = None,
    ) -> None:
        self.what = what
        self.value = value
        self.limit = limit
        self.remedy = remedy
        self.param = param
        super().__init__(self._message())

    def _message(self) -> str:
        facts = []
        if self.value is not None:
            facts.append(f"got {self.value}")
        if self.limit is not None:
            facts.append(f"limit {self.limit}")
        text = self.what + (f" ({', '.join(facts)})" if facts else "")
        return f"{text}. {self.remedy}" if self.remedy else text


class ConfigError(TwoStrokeError):
    """A setting, flag or environment variable that cannot be honoured."""

    http_status = 500
    exit_code = 2
    code = "config_error"


class ModelError(TwoStrokeError):
    """The model cannot be found, read or run."""

    http_status = 500
    code = "model_error"


class ModelNotFound(ModelError):
    """No model by that name, path or revision."""

    http_status = 404
    code = "model_not_found"


class DownloadError(ModelError):
    """A download failed, or the file that arrived is not the published one."""

    http_status = 502
    code = "download_error"


class CorruptCheckpoint(ModelError):
    """A model file that breaks its own format; the message names the key or tensor."""

    code = "corrupt_checkpoint"


class UnsupportedModel(ModelError):
    """A model family, tensor type or tokenizer that this version does not run."""

    http_status = 501
    code = "unsupported_model"


class TemplateError(ModelError):
    """The chat template refused the messages, or broke a bound."""

    http_status = 400
    code = "template_error"


class RequestError(TwoStrokeError):
    """A request that can never be honoured as asked."""

    http_status = 400
    exit_code = 2
    code = "invalid_request"


class InvalidSampling(RequestError):
    """A sampling parameter of the wrong type or out of its range."""

    code = "invalid_sampling"


class ContextTooLong(RequestError):
    """The prompt, or prompt plus output, does not fit the context."""

    code = "context_length_exceeded"


class CapacityError(TwoStrokeError):
    """The machine cannot take this request now, or ever."""

    http_status = 503
    code = "capacity"


class QueueFull(CapacityError):
    """Too many requests wait already. Units: retry_after_s, the seconds to wait before a retry."""

    http_status = 429
    code = "queue_full"

    def __init__(
        self,
        what: str,
        *,
        value: object = None,
        limit: object = None,
        remedy: str | None = None,
        param: str | None = None,
        retry_after_s: float = 1.0,
    ) -> None:
        super().__init__(what, value=value, limit=limit, remedy=remedy, param=param)
        self.retry_after_s = retry_after_s


class OutOfBlocks(CapacityError):
    """A request that needs more KV cache than there is: it can never run."""

    http_status = 413
    code = "out_of_kv_memory"


class KernelError(TwoStrokeError):
    """The native library cannot do this operation."""

    code = "kernel_error"


class ShapeError(KernelError):
    """A tensor of the wrong shape, type or layout."""

    code = "shape_error"


class UnsupportedCPU(KernelError):
    """A kernel set that this CPU or build does not have."""

    exit_code = 2
    code = "unsupported_cpu"


class EngineStopped(TwoStrokeError):
    """The engine has ended, on purpose or by a fault, and takes no more work."""

    http_status = 503
    code = "engine_stopped"
