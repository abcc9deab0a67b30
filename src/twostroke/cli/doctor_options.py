"""Flags of `twostroke doctor`, as annotated types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_FLAG = typer.Option

Logs = Annotated[
    list[str] | None, typer.Argument(metavar="[LOG]...", help="Log files; - is standard input.")
]
Url = Annotated[
    str | None, _FLAG("--url", help="Ask a running endpoint (OpenAI-compatible or Ollama).")
]
Model = Annotated[
    str | None, _FLAG("--model", help="What runs: llama-3.1-8b, 70B, 30B-A3B or a .gguf file.")
]
ServedModel = Annotated[
    str | None, _FLAG("--served-model", help="Model name to ask the endpoint for.")
]
ApiKeyEnv = Annotated[
    str | None, _FLAG("--api-key-env", help="Environment variable that holds the API key.")
]
Device = Annotated[
    str | None, _FLAG("--device", help="Where it runs: h100, 4090, ddr5-5600x2, cpu ...")
]
WeightsGb = Annotated[float | None, _FLAG("--weights-gb", help="Size of the weights in GB.")]
Bandwidth = Annotated[float | None, _FLAG("--bandwidth", help="Memory bandwidth in GB/s.")]
Flops = Annotated[float | None, _FLAG("--flops", help="Arithmetic in TFLOP/s.")]
MemoryGb = Annotated[float | None, _FLAG("--memory-gb", help="Memory of the device in GB.")]
Threads = Annotated[int | None, _FLAG("--threads", help="Cores that threads can run on.", min=1)]
SharedHead = Annotated[
    bool, _FLAG("--shared-head", help="The prompts are turns of a chat, or share a prefix.")
]
FailOn = Annotated[
    list[str] | None, _FLAG("--fail-on", help="Exit with 1 when this code is found; repeat.")
]
JsonLines = Annotated[bool, _FLAG("--jsonl", help="Print JSON lines on stdout.")]
Html = Annotated[Path | None, _FLAG("--html", help="Also write one self-contained HTML file.")]
DryRun = Annotated[
    bool, _FLAG("--dry-run", help="With --url: show what would be sent, send nothing.")
]
MaxRequests = Annotated[
    int, _FLAG("--max-requests", help="With --url: most requests sent.", min=1, max=1000)
]
MaxSeconds = Annotated[
    float, _FLAG("--max-seconds", help="With --url: most seconds.", min=1, max=86400)
]
MaxTokens = Annotated[
    int, _FLAG("--max-tokens", help="With --url: most tokens, prompts included.", min=100)
]
PromptTokens = Annotated[
    int, _FLAG("--prompt-tokens", help="With --url: length of a prompt.", min=64, max=100_000)
]
