"""Flags that several verbs share, as annotated types."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        help="smollm2:135m, hf:owner/repo[/file.gguf|:QUANT][@revision], or a path to a .gguf file",
        metavar="MODEL",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="Say which phase holds the wait and what would shorten it."),
]
Threads = Annotated[
    int | None, typer.Option("--threads", "-t", help="Threads (default: cores of this process).")
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len", help="Longest prompt plus output in tokens (default: model's)."
    ),
]
KvMemory = Annotated[
    str | None,
    typer.Option("--kv-memory", help="Memory for the KV cache, such as 4GB or 512MiB."),
]
KvTypeName = Annotated[
    str, typer.Option("--kv-type", help="How K and V are stored: bf16, f16 or q8.")
]
Backend = Annotated[
    str, typer.Option("--backend", help="auto, native, or reference (NumPy, slow, exact).")
]
Kernels = Annotated[
    str | None, typer.Option("--kernels", help="Kernel set: scalar, avx2 or avx512.")
]
PrefillChunk = Annotated[
    int, typer.Option("--prefill-chunk", help="Most prompt tokens computed in one step.")
]
