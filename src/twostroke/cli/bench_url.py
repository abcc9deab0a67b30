"""The branch of `twostroke bench` that loads a running endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import field
from functools import partial
from typing import Any

from twostroke.cli.table import Option, Settings
from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError

_GOALS = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s"}


def parse_goals(text: str | None) -> dict[str, float]:
    """Return goals such as `ttft:0.5,tpot:0.05`, in seconds.

    Raises:
        ConfigError: an unknown goal, or no number.
    """
    goals = {}
    for part in text.split(",") if text else ():
        name, _, value = part.strip().partition(":")
        try:
            goals[_GOALS[name]] = float(value)
        except (KeyError, ValueError):
            raise ConfigError(
                "--goodput has a bad entry", value=repr(part), limit="ttft:S,tpot:S,e2e:S"
            ) from None
    return goals


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFlags:
    """The load on an endpoint. Units: rate in requests a second, None: each client in turn."""

    requests: int
    rate: float | None = None
    concurrency: int
    goals: dict[str, float] = field(default_factory=dict)


_load = partial(Option, settings=Settings("load", LoadFlags))
LOAD_OPTIONS = (
    _load("requests", int, "With --url: how many.", 32, low=1),
    _load("rate", float, "With --url: requests a second, open loop.", low=0.001),
    _load("concurrency", int, "With --url: clients.", 1, low=1, high=1024),
    _load(
        "goodput",
        help="With --url: goals, such as ttft:0.5,tpot:0.05.",
        parse=parse_goals,
        field="goals",
    ),
)


def run(
    url: str, model: str, flags: LoadFlags, *, prompt_words: int, max_tokens: int, as_json: bool
) -> None:
    """Send the load; print a line a request and the summary, as JSON lines where asked."""
    from twostroke.bench.load_summary import Goals, summary
    from twostroke.bench.remote import Load, run_load

    goals = Goals(**flags.goals)
    load = Load(
        model=model,
        num_requests=flags.requests,
        rate=flags.rate,
        concurrency=flags.concurrency,
        prompt_words=prompt_words,
        max_tokens=max_tokens,
    )

    def show(result: Any) -> None:
        if as_json:
            print(json.dumps(result.to_dict()), flush=True)

    key = os.environ.get("OPENAI_API_KEY")
    results, wall_s, lag_s = asyncio.run(run_load(url, load, api_key=key, on_result=show))
    told = summary(results, wall_s, lag_s, goals)
    if as_json:
        print(json.dumps({"summary": told}))
    _print(told)


def _print(told: dict[str, Any]) -> None:
    head = (
        f"{told['requests']} requests, {told['failed']} failed, in {told['wall_s']:.1f} s: "
        f"{told['output_tok_s']:.1f} output tok/s, goodput {told['goodput_requests_s']:.2f} /s; "
        f"left late by at most {told['schedule_lag_max_s'] * 1e3:.1f} ms, "
        f"client's own lag {told['client_loop_lag_max_s'] * 1e3:.1f} ms"
    )
    print(head, file=sys.stderr)
    for kind, row in (("all", told["all"]), *told["kinds"].items()):
        parts = [f"  {kind:<7}{row['requests']:>4}"]
        for name in ("ttft_any_s", "ttft_visible_s", "tpot_s", "itl_p50_s"):
            some = row[name]
            shown = "/".join("?" if v is None else f"{v * 1e3:.1f}" for v in some.values())
            parts.append(f"{name[:-2]} {shown} ms")
        print("  ".join(parts), file=sys.stderr)
