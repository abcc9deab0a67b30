"""twostroke doctor: which phase holds the wait, in any engine's log or at a running endpoint.

Needs no model and no compiler; imports neither NumPy nor the native module.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import typer

from twostroke.cli import doctor_options as flag
from twostroke.cli.options import Json
from twostroke.errors import ConfigError
from twostroke_doctor import LogScanner, Parsed, report
from twostroke_doctor.diagnose import diagnose
from twostroke_doctor.finding import CODES, Diagnosis
from twostroke_doctor.given import make_given
from twostroke_doctor.html import html_page
from twostroke_doctor.probe import ProbeLimits, ProbePlan, make_plan, run_plan

EXIT_FOUND = 1
EXIT_UNKNOWN = 3


def command(
    logs: flag.Logs = None,
    url: flag.Url = None,
    model: flag.Model = None,
    served_model: flag.ServedModel = None,
    api_key_env: flag.ApiKeyEnv = None,
    device: flag.Device = None,
    weights_gb: flag.WeightsGb = None,
    bandwidth: flag.Bandwidth = None,
    flops: flag.Flops = None,
    memory_gb: flag.MemoryGb = None,
    threads: flag.Threads = None,
    shared_head: flag.SharedHead = False,
    fail_on: flag.FailOn = None,
    as_json: Json = False,
    as_jsonl: flag.JsonLines = False,
    html: flag.Html = None,
    dry_run: flag.DryRun = False,
    max_requests: flag.MaxRequests = 12,
    max_seconds: flag.MaxSeconds = 120.0,
    max_tokens: flag.MaxTokens = 20_000,
    prompt_tokens: flag.PromptTokens = 1000,
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
