"""Test names, and the commands of the line protocol that run each test.

Names are llama-bench's: pp512 (prompt of 512), tg128 (128 greedy steps), tg128@d4096 (after 4096
tokens), tg64xb8 (8 sequences in one batch, each with a prompt of 128 tokens).
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
NAME = re.compile(r"(?P<phase>pp|tg)(?P<count>\d+)(?:@d(?P<depth>\d+))?(?:xb(?P<batch>\d+))?")
SHORT_PROMPT = 16  # prompt of tg without a depth: real text, too short to take time
BATCH_PROMPT = 128  # before each sequence of a batch, as llama-batched-bench is run
SEED = 1234
PLAIN_IDS = (100, 10000)  # ids in every vocabulary, none of them a control token


@dataclass(frozen=True)
class Case:
    """One test. count: prompt tokens (pp) or steps (tg). depth: tokens before the first step."""

    name: str
    phase: str
    count: int
    depth: int
    batch: int

    def command(self, text_ids: list[int]) -> dict[str, Any]:
        """Return the command that runs this test on the ids of a text."""
        if self.phase == "pp":
            return {"cmd": "pp", "tokens": window(text_ids, 0, self.count)}
        if self.batch == 1:
            return {"cmd": "tg", "prompt": window(text_ids, 0, self.depth), "n": self.count}
        # Each prompt starts elsewhere in the text, so that no two share a prefix.
        starts = [37 * sequence for sequence in range(self.batch)]
        prompts = [window(text_ids, start, self.depth) for start in starts]
        return {"cmd": "tgb", "prompts": prompts, "n": self.count}


def parse_case(name: str) -> Case:
    """Read a test's name.

    Raises:
        ValueError: not a name of this grammar.
    """
    match = NAME.fullmatch(name)
    if match is None or (match["phase"] == "pp" and (match["depth"] or match["batch"])):
        raise ValueError(f"{name!r} is not a test; examples: pp512 tg128 tg128@d4096 tg64xb8")
    batch = int(match["batch"] or 1)
    depth = int(match["depth"] or (BATCH_PROMPT if batch > 1 else SHORT_PROMPT))
    case = Case(name, match["phase"], int(match["count"]), depth, batch)
    if min(case.count, case.depth, case.batch) < 1:
        raise ValueError(f"{name!r} asks for nothing: its numbers must be at least 1")
    return case


def text_ids_of(model: Path) -> list[int]:
    """Return the golden text's ids where the model has golden data, else fixed random ids."""
    golden = GOLDEN / f"{model.stem}.json"
    if golden.exists():
        ids: list[int] = json.loads(golden.read_text(encoding="utf-8"))["perplexity"]["ids"]
        return ids
    source = random.Random(SEED)
    return [source.randrange(*PLAIN_IDS) for _ in range(4096)]


def window(ids: list[int], start: int, count: int) -> list[int]:
    """Return `count` ids from `start`; after the last id the first follows."""
    return [ids[(start + i) % len(ids)] for i in range(count)]
