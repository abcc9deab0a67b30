"""twostroke doctor: which phase holds the wait, in any engine's log or at a running endpoint.

Needs no model and no compiler; imports neither NumPy nor the native module.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import typer

from twostroke.cli.options import JSON
from twostroke.cli.table import Option
from twostroke.errors import ConfigError
from twostroke_doctor import LogScanner, Parsed, report
from twostroke_doctor.diagnose import diagnose
from twostroke_doctor.finding import CODES, Diagnosis
from twostroke_doctor.given import make_given
from twostroke_doctor.html import html_page
from twostroke_doctor.probe import ProbeLimits, ProbePlan, make_plan, run_plan

EXIT_FOUND = 1
EXIT_UNKNOWN = 3


OPTIONS = (
    Option("logs", help="Log files; - is standard input.", metavar="[LOG]...", repeats=True),
    Option("url", help="Ask a running endpoint (OpenAI-compatible or Ollama)."),
    Option("model", help="What runs: llama-3.1-8b, 70B, 30B-A3B or a .gguf file."),
    Option("served_model", help="Model name to ask the endpoint for."),
    Option("api_key_env", help="Environment variable that holds the API key."),
    Option("device", help="Where it runs: h100, 4090, ddr5-5600x2, cpu ..."),
    Option("weights_gb", float, "Size of the weights in GB."),
    Option("bandwidth", float, "Memory bandwidth in GB/s."),
    Option("flops", float, "Arithmetic in TFLOP/s."),
    Option("memory_gb", float, "Memory of the device in GB."),
    Option("threads", int, "Cores that threads can run on.", low=1),
    Option("shared_head", bool, "The prompts are turns of a chat, or share a prefix.", False),
    Option("fail_on", help="Exit with 1 when this code is found; repeat.", repeats=True),
    JSON,
    Option("as_jsonl", bool, "Print JSON lines on stdout.", False, flag="--jsonl"),
    Option("html", Path, "Also write one self-contained HTML file."),
    Option("dry_run", bool, "With --url: show what would be sent, send nothing.", False),
    Option("max_requests", int, "With --url: most requests sent.", 12, low=1, high=1000),
    Option("max_seconds", float, "With --url: most seconds.", 120.0, low=1, high=86400),
    Option("max_tokens", int, "With --url: most tokens, prompts included.", 20000, low=100),
    Option("prompt_tokens", int, "With --url: length of a prompt.", 1000, low=64, high=100000),
)


def command(
    *,
    logs: list[str] | None,
    url: str | None,
    model: str | None,
    served_model: str | None,
    api_key_env: str | None,
    device: str | None,
    weights_gb: float | None,
    bandwidth: float | None,
    flops: float | None,
    memory_gb: float | None,
    threads: int | None,
    shared_head: bool,
    fail_on: list[str] | None,
    as_json: bool,
    as_jsonl: bool,
    html: Path | None,
    dry_run: bool,
    max_requests: int,
    max_seconds: float,
    max_tokens: int,
    prompt_tokens: int,
) -> None:
    """Say which phase holds the wait, on what evidence, and the seconds that each cure would save.

    Examples: twostroke doctor my.log; docker logs vllm 2>&1 | twostroke doctor -;
    twostroke doctor --url http://127.0.0.1:8080 --dry-run
    """
    _check(logs, url, dry_run=dry_run, fail_on=fail_on, both=as_json and as_jsonl)
    given = make_given(model, device, weights_gb, bandwidth, flops, memory_gb, threads, shared_head)
    parsed = _read(logs or [])
    if url is not None:
        limits = ProbeLimits(requests=max_requests, seconds=max_seconds, tokens=max_tokens)
        plan = make_plan(url, limits, prompt_tokens, served_model, _key(api_key_env))
        if not _probe(parsed, plan, dry_run=dry_run):
            return
    diagnosis = diagnose(parsed, given)
    _print(diagnosis, parsed, as_json=as_json, as_jsonl=as_jsonl, html=html)
    _exit_with_code(diagnosis, fail_on or [])


def _check(
    logs: list[str] | None,
    url: str | None,
    *,
    dry_run: bool,
    fail_on: list[str] | None,
    both: bool,
) -> None:
    """Refuse flags that cannot be honoured, before anything is read or sent."""
    if not logs and url is None:
        remedy = "Give a log file, - for standard input, or --url."
        raise ConfigError("nothing to read", remedy=remedy)
    if dry_run and url is None:
        raise ConfigError("--dry-run needs --url")
    if both:
        raise ConfigError("--json and --jsonl cannot both be printed")
    for code in fail_on or []:
        if code not in CODES:
            raise ConfigError("--fail-on has no such code", value=code, limit=", ".join(CODES))


def _read(logs: list[str]) -> Parsed:
    """Read every log into one bounded result."""
    scanner, parsed = LogScanner(), Parsed()
    for name in logs:
        if name == "-":
            parsed.add_all(scanner.scan(sys.stdin.buffer, file="<stdin>"))
        else:
            parsed.add_all(scanner.scan(Path(name)))
    parsed.num_lines = scanner.num_lines
    parsed.unknown = dict(scanner.unknown)
    return parsed


def _key(name: str | None) -> str | None:
    """Return the API key that an environment variable holds; it is sent and never shown."""
    if name is None:
        return None
    key = os.environ.get(name)
    if not key or any(ord(c) <= 32 or ord(c) >= 127 for c in key):
        raise ConfigError("--api-key-env names no variable with a key", value=name)
    return key


def _probe(parsed: Parsed, plan: ProbePlan, *, dry_run: bool) -> bool:
    """Tell the plan, send it, and add its replies; False when nothing was to be sent."""
    for line in plan.lines():
        _tell(line)
    if dry_run:
        return False
    parsed.add_all(run_plan(plan, say=lambda line: _tell(report.printable(line))))
    return True


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _print(
    diagnosis: Diagnosis, parsed: Parsed, *, as_json: bool, as_jsonl: bool, html: Path | None
) -> None:
    if as_json:
        print(json.dumps(report.document(diagnosis, parsed)))
    elif as_jsonl:
        for item in report.json_lines(diagnosis, parsed):
            print(json.dumps(item))
    else:
        _print_page(diagnosis, parsed)
    if html is not None:
        _write_html(html, diagnosis, parsed)


def _print_page(diagnosis: Diagnosis, parsed: Parsed) -> None:
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    ascii_only = not encoding.startswith("utf")
    page = report.text_page(diagnosis, parsed, ascii_only=ascii_only)
    sys.stdout.write(page.encode("ascii", "replace").decode() if ascii_only else page)


def _write_html(path: Path, diagnosis: Diagnosis, parsed: Parsed) -> None:
    try:
        path.write_text(html_page(diagnosis, parsed), encoding="utf-8")
    except OSError as error:
        value = f"{path}: {error.strerror}"
        raise ConfigError("the HTML file cannot be written", value=value) from error


def _exit_with_code(diagnosis: Diagnosis, fail_on: list[str]) -> None:
    """End with 1 when a code of --fail-on was found, with 3 when the answer is UNKNOWN."""
    if {finding.code for finding in diagnosis.findings} & set(fail_on):
        raise typer.Exit(EXIT_FOUND)
    if diagnosis.is_unknown:
        raise typer.Exit(EXIT_UNKNOWN)
