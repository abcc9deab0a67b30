"""twostroke run: one prompt, one answer, and the report of both phases."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from twostroke.cli.answer import collect, document, encode, explanation, read_prompt
from twostroke.cli.options import ENGINE, EXPLAIN, JSON, MODEL, SAMPLING, SYSTEM
from twostroke.cli.start import leave_blas_alone, without_garbage_collection
from twostroke.cli.table import Option
from twostroke.config import EngineConfig
from twostroke.errors import RequestError
from twostroke.request import SamplingParams

if TYPE_CHECKING:
    from twostroke.llm import LLM, Delta

OPTIONS = (
    MODEL,
    Option("text", help="The prompt; --prompt does the same.", metavar="[PROMPT]"),
    Option("prompt", help="The prompt; - reads stdin.", short="-p"),
    Option("raw", bool, "No chat template; BOS as the tokenizer says.", False),
    SYSTEM,
    *SAMPLING,
    *ENGINE,
    EXPLAIN,
    JSON,
)


def command(
    model: str,
    *,
    text: str | None,
    prompt: str | None,
    raw: bool,
    system: str | None,
    params: SamplingParams,
    config: EngineConfig,
    explain: bool,
    as_json: bool,
) -> None:
    """Answer one prompt, streaming, and report what each phase cost.

    Example: twostroke run smollm2:135m --prompt "What is a KV cache?" --max-tokens 100
    """
    if raw and system is not None:
        raise RequestError(
            "--system needs the chat template", remedy="Leave out --raw or --system."
        )
    asked = read_prompt(_one_prompt(text, prompt))
    if config.backend != "reference":
        leave_blas_alone()
    with without_garbage_collection():
        from twostroke.cli.progress import PrefillBar
        from twostroke.llm import LLM

        progress = PrefillBar()
        llm = LLM(model, replace(config, max_num_seqs=1), observers=(progress,))
    encoded = encode(llm, asked, raw=raw, system=system)
    deltas = collect(llm, encoded, params, show=not as_json)
    progress.clear()
    if as_json:
        answer = document(llm, encoded, deltas, logprobs=params.logprobs is not None)
        if explain:
            answer["explanation"] = explanation(llm, deltas[-1])
        print(json.dumps(answer))
    else:
        _report(llm, model, deltas[-1], explain=explain)


def _one_prompt(text: str | None, prompt: str | None) -> str:
    """Return the prompt, which stands behind the model or behind --prompt.

    Raises:
        RequestError: no prompt, or two.
    """
    if text is not None and prompt is not None:
        raise RequestError(
            "the prompt is given twice", remedy="Leave out --prompt, or the text behind the model."
        )
    found = prompt if text is None else text
    if found is None:
        raise RequestError(
            "no prompt", remedy='Write it behind the model: "Why?", or - to read stdin.'
        )
    return found


def _report(llm: LLM, model: str, last: Delta, *, explain: bool) -> None:
    """Say on stderr what each phase of the answer cost."""
    if last.record is None:
        return
    from twostroke.cli import report

    heading = f"twostroke: {model}, {llm.built.summary}, loaded in {llm.load_s:.2f} s"
    lines = report.phase_lines(last.record)
    if explain:
        lines += report.explain_lines(llm.built, last.record)
    print("\n".join([heading, *lines]), file=sys.stderr)
