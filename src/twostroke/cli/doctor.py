"""twostroke doctor: which phase holds the wait, in any engine's log or at a running endpoint.

Needs no model and no compiler; imports neither NumPy nor the native module.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twostroke.errors import ConfigError
from twostroke_doctor.report import printable

if TYPE_CHECKING:
    from twostroke_doctor import Parsed
    from twostroke_doctor.finding import Diagnosis
    from twostroke_doctor.probe import Plan

EXIT_FOUND = 1
EXIT_UNKNOWN = 3
_FLAG = typer.Option


def command(
    logs: Annotated[
        list[str] | None, typer.Argument(metavar="[LOG]...", help="Log files; - is standard input.")
    ] = None,
    url: Annotated[
        str | None, _FLAG("--url", help="Ask a running endpoint (OpenAI-compatible or Ollama).")
    ] = None,
    model: Annotated[
        str | None, _FLAG("--model", help="What runs: llama-3.1-8b, 70B, 30B-A3B or a .gguf file.")
    ] = None,
    served_model: Annotated[
        str | None, _FLAG("--served-model", help="Model name to ask the endpoint for.")
    ] = None,
    api_key_env: Annotated[
        str | None, _FLAG("--api-key-env", help="Environment variable that holds the API key.")
    ] = None,
    device: Annotated[
        str | None, _FLAG("--device", help="Where it runs: h100, 4090, ddr5-5600x2, cpu ...")
    ] = None,
    weights_gb: Annotated[
        float | None, _FLAG("--weights-gb", help="Size of the weights in GB.")
    ] = None,
    bandwidth: Annotated[
        float | None, _FLAG("--bandwidth", help="Memory bandwidth in GB/s.")
    ] = None,
    flops: Annotated[float | None, _FLAG("--flops", help="Arithmetic in TFLOP/s.")] = None,
    memory_gb: Annotated[
        float | None, _FLAG("--memory-gb", help="Memory of the device in GB.")
    ] = None,
    threads: Annotated[
        int | None, _FLAG("--threads", help="Cores that threads can run on.", min=1)
    ] = None,
    shared_head: Annotated[
        bool, _FLAG("--shared-head", help="The prompts are turns of a chat, or share their head.")
    ] = False,
    fail_on: Annotated[
        list[str] | None, _FLAG("--fail-on", help="Exit with 1 when this code is found; repeat.")
    ] = None,
    as_json: Annotated[bool, _FLAG("--json", help="Print one JSON document on stdout.")] = False,
    as_jsonl: Annotated[bool, _FLAG("--jsonl", help="Print JSON lines on stdout.")] = False,
    html: Annotated[
        Path | None, _FLAG("--html", help="Also write one self-contained HTML file.")
    ] = None,
    dry_run: Annotated[
        bool, _FLAG("--dry-run", help="With --url: show what would be sent, send nothing.")
    ] = False,
    max_requests: Annotated[
        int, _FLAG("--max-requests", help="With --url: most requests sent.", min=1, max=1000)
    ] = 12,
    max_seconds: Annotated[
        float, _FLAG("--max-seconds", help="With --url: most seconds.", min=1, max=86400)
    ] = 120.0,
    max_tokens: Annotated[
        int, _FLAG("--max-tokens", help="With --url: most tokens, prompts included.", min=100)
    ] = 20_000,
    prompt_tokens: Annotated[
        int, _FLAG("--prompt-tokens", help="With --url: length of a prompt.", min=64, max=100_000)
    ] = 1000,
) -> None:
    """Say which phase holds the wait, on what evidence, and what would save how many seconds.

    Examples: twostroke doctor my.log; docker logs vllm 2>&1 | twostroke doctor -;
    twostroke doctor --url http://127.0.0.1:8080 --dry-run
    """
    _check(logs, url, dry_run=dry_run, fail_on=fail_on, both=as_json and as_jsonl)
    from twostroke_doctor.diagnose import diagnose
    from twostroke_doctor.given import make_given

    given = make_given(
        model=model,
        device=device,
        weights_gb=weights_gb,
        bandwidth=bandwidth,
        flops=flops,
        memory_gb=memory_gb,
        threads=threads,
        shared_head=shared_head,
    )
    parsed = _read(logs or [])
    if url is not None:
        from twostroke_doctor.probe import Limits, make_plan

        limits = Limits(requests=max_requests, seconds=max_seconds, tokens=max_tokens)
        plan = make_plan(
            url,
            limits,
            prompt_tokens=prompt_tokens,
            model=served_model,
            key=_key(api_key_env),
        )
        if not _probe(parsed, plan, dry_run=dry_run):
            return
    diagnosis = diagnose(parsed, given)
    _print(diagnosis, parsed, as_json=as_json, as_jsonl=as_jsonl)
    if html is not None:
        _write_html(html, diagnosis, parsed)
    code = _exit_code(diagnosis, fail_on or [])
    if code:
        raise typer.Exit(code)


def _check(
    logs: list[str] | None,
    url: str | None,
    *,
    dry_run: bool,
    fail_on: list[str] | None,
    both: bool,
) -> None:
    """Refuse what cannot be honoured before anything is read or sent."""
    from twostroke_doctor.finding import CODES

    if not logs and url is None:
        raise ConfigError(
            "nothing to read", remedy="Give a log file, - for standard input, or --url."
        )
    if dry_run and url is None:
        raise ConfigError("--dry-run needs --url")
    if both:
        raise ConfigError("--json and --jsonl cannot both be printed")
    for code in fail_on or []:
        if code not in CODES:
            raise ConfigError("--fail-on has no such code", value=code, limit=", ".join(CODES))


def _read(logs: list[str]) -> Parsed:
    """Read every log into one bounded result."""
    from twostroke_doctor import LogScanner, Parsed

    scanner, parsed = LogScanner(), Parsed()
    for name in logs:
        if name == "-":
            parsed.add_all(scanner.scan(sys.stdin.buffer, file="<stdin>"))
        else:
            parsed.add_all(scanner.scan(Path(name)))
    parsed.num_lines = scanner.num_lines
    parsed.unknown = dict(scanner.unknown)
    return parsed


def _probe(parsed: Parsed, plan: Plan, *, dry_run: bool) -> bool:
    """Say what will be sent, send it, add what came of it; False when nothing was to be sent."""
    from twostroke_doctor.probe import run_plan

    for line in plan.lines():
        print(line, file=sys.stderr)
    if dry_run:
        return False
    parsed.add_all(run_plan(plan, say=lambda line: print(printable(line), file=sys.stderr)))
    return True


def _key(name: str | None) -> str | None:
    """Return the API key that an environment variable holds; it is sent and never shown."""
    if name is None:
        return None
    key = os.environ.get(name)
    if not key or any(ord(c) <= 32 or ord(c) >= 127 for c in key):
        raise ConfigError("--api-key-env names no variable with a key", value=name)
    return key


def _print(diagnosis: Diagnosis, parsed: Parsed, *, as_json: bool, as_jsonl: bool) -> None:
    from twostroke_doctor import report

    if as_json:
        print(json.dumps(report.document(diagnosis, parsed)))
    elif as_jsonl:
        for item in report.json_lines(diagnosis, parsed):
            print(json.dumps(item))
    else:
        encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
        ascii_only = not encoding.startswith("utf")
        page = report.text_page(diagnosis, parsed, ascii_only=ascii_only)
        sys.stdout.write(page.encode("ascii", "replace").decode() if ascii_only else page)


def _write_html(path: Path, diagnosis: Diagnosis, parsed: Parsed) -> None:
    from twostroke_doctor.html import html_page

    try:
        path.write_text(html_page(diagnosis, parsed), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            "the HTML file cannot be written", value=f"{path}: {error.strerror}"
        ) from error


def _exit_code(diagnosis: Diagnosis, fail_on: list[str]) -> int:
    """1 when a code of --fail-on was found, 3 when the answer is UNKNOWN, else 0."""
    if {finding.code for finding in diagnosis.findings} & set(fail_on):
        return EXIT_FOUND
    return EXIT_UNKNOWN if diagnosis.is_unknown else 0
