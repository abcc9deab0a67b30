"""The wish for reasoning of one request, whatever its API, on its way into the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from twostroke.generation.reasoning import Reasoning
from twostroke.server.prompts import ChatPrompt, Prompt, Prompts

__all__ = ["Reasoning", "with_reasoning"]


def with_reasoning(
    asked: Sequence[Prompt], reasoning: Reasoning | None, prompts: Prompts
) -> list[Prompt]:
    """Return the prompts of a request with the template's variables for its wish.

    A variable that the request gives itself stays as it is.
    """
    if reasoning is None:
        return list(asked)
    variables = reasoning.variables(prompts.template_reads)
    return [
        replace(prompt, variables={**variables, **prompt.variables})
        if isinstance(prompt, ChatPrompt)
        else prompt
        for prompt in asked
    ]
