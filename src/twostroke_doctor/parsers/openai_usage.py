"""OpenAI-compatible replies and chunks: the kind of a chunk, and token counts from `usage`.

A chunk is not a token, and it may hold many or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.numbers import json_count


def chunk_kind(chunk: dict[str, Any]) -> str:
    """Name the content of one stream chunk.

    Returns:
        error, usage (no choices), tool, reasoning, content, or empty (role only, or "").
    """
    if "error" in chunk:
        return "error"
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return "usage" if isinstance(chunk.get("usage"), dict) else "empty"
    delta = choices[0].get("delta")
    if not isinstance(delta, dict):
        return "content" if choices[0].get("text") else "empty"
    if delta.get("tool_calls"):
        return "tool"
    if delta.get("reasoning_content") or delta.get("reasoning"):
        return "reasoning"
    return "content" if delta.get("content") else "empty"


def is_usage(usage: Mapping[str, Any]) -> bool:
    """Tell whether a JSON object is a `usage` with counts."""
    names = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
    return any(json_count(usage.get(name)) is not None for name in names)


def cached_count(usage: dict[str, Any]) -> int | None:
    """Return the cached prompt tokens wherever a server puts them."""
    for details in (usage.get("prompt_tokens_details"), usage.get("input_tokens_details")):
        if isinstance(details, dict):
            cached = json_count(details.get("cached_tokens"))
            if cached is not None:
                return cached
    return json_count(usage.get("cache_read_input_tokens"))


def add_usage(draft: Draft, usage: dict[str, Any]) -> None:
    """Add a reply's token counts to a draft; counts that the engine itself metered stay."""
    cached = cached_count(usage)
    prompt = json_count(usage.get("prompt_tokens"))
    if prompt is None:
        prompt = json_count(usage.get("input_tokens"))
        if prompt is not None and "cache_read_input_tokens" in usage:
            written = json_count(usage.get("cache_creation_input_tokens")) or 0
            prompt += (cached or 0) + written  # these are not in such input_tokens
    output = json_count(usage.get("completion_tokens"))
    if output is None:
        output = json_count(usage.get("output_tokens"))
    draft.prompt_total = prompt if draft.prompt_total is None else draft.prompt_total
    draft.prompt_cached = cached if draft.prompt_cached is None else draft.prompt_cached
    draft.output = output if draft.output is None else draft.output
    for details in (usage.get("completion_tokens_details"), usage.get("output_tokens_details")):
        if isinstance(details, dict) and draft.output_reasoning is None:
            draft.output_reasoning = json_count(details.get("reasoning_tokens"))
