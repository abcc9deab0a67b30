"""docs/laws.md and docs/formulas.md say what the code does: phases, figures, worked examples."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from twostroke.planner.memory import kv_bytes
from twostroke.predict import fit, fitted_speed, speed_learner
from twostroke.predict.devices import find_device
from twostroke.predict.formulas import prefill_flop, split_by_rates
from twostroke.predict.kv import KvFormat
from twostroke.predict.shape import LayerShape, ModelShape
from twostroke.record import MIN_TOKENS_FOR_PREFILL_RATE, PHASES
from twostroke.scheduler.policy import GROWTH_TOKENS, MIN_CHUNK, UNKNOWN_CHUNK
from twostroke.step import BLOCK_SIZE

DOCS = Path(__file__).parent.parent / "docs"
LAWS = " ".join((DOCS / "laws.md").read_text(encoding="utf-8").split())
FORMULAS = " ".join((DOCS / "formulas.md").read_text(encoding="utf-8").split())


def rows(page: str, first_cell: str) -> list[list[str]]:
    """Return the cells of the table rows below the header that begins with a cell."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def numbers(text: str) -> list[float]:
    return [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\.?\d*", text)]


def test_the_phases_of_a_record_are_those_of_law_2() -> None:
    assert tuple(name for name, _ in rows("laws.md", "phase")) == PHASES


def reasons_of(path: str) -> set[str]:
    """Return the reasons of a cache miss in a module: arguments `reason`, and returned strings."""
    source = (DOCS.parent / "src" / "twostroke" / path).read_text(encoding="utf-8")
    places: list[ast.AST] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "reason":
            places.append(node)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("_reason"):
            places.extend(n for n in ast.walk(node) if isinstance(n, ast.Return))
    return {c.value for p in places for c in ast.walk(p) if isinstance(c, ast.Constant)}


def test_law_8_lists_the_reasons_of_a_cache_miss() -> None:
    listed = {cell.strip("`") for cell, _ in rows("laws.md", "reason") if cell.startswith("`")}
    assert listed == reasons_of("cache/explain.py") | reasons_of("scheduler/memory.py")


def test_law_3_and_law_5_have_the_schedulers_constants() -> None:
    assert f"for the prompt and {GROWTH_TOKENS} tokens more" in LAWS
    assert f"the oldest prompt gets at least {MIN_CHUNK} tokens of every step" in LAWS
    assert f"at most {UNKNOWN_CHUNK} prompt tokens are tried beside streams" in LAWS
    assert f"table[p // {BLOCK_SIZE}] * {BLOCK_SIZE} + p % {BLOCK_SIZE}" in LAWS


@pytest.mark.parametrize("row", rows("formulas.md", "case"), ids=lambda row: row[0][:30])
def test_the_worked_examples_follow_from_their_rates(row: list[str]) -> None:
    case, prefill, decode, share = row
    prompt, prefill_rate, output, decode_rate = numbers(case)
    wait = split_by_rates(prompt, output, prefill_tok_s=prefill_rate, decode_tok_s=decode_rate)
    shown = (f"{wait.prefill_s:.1f} s", f"{wait.decode_s:.1f} s", f"{wait.prefill_share:.0%}")
    assert shown == (prefill, decode, share.replace(" ", ""))


SIZES = {  # values of the matrices, and layers x heads x head size
    "Llama 3.1 8B, share of attention": (8.03e9, 32 * 32 * 128),
    "Llama 70B": (70.6e9, 80 * 64 * 128),
    "Qwen2.5 7B": (7.6e9, 28 * 28 * 128),
}


@pytest.mark.parametrize("row", rows("formulas.md", "cold prompt"), ids=lambda row: row[0])
def test_the_shares_of_attention_follow_from_the_operations(row: list[str]) -> None:
    values, width = SIZES[row[0]]
    for tokens, shown in zip((512, 2048, 8192, 16_384, 32_768, 131_072), row[1:7], strict=True):
        share = 1 - 2 * values * tokens / prefill_flop(values, width, tokens)
        assert shown in ("", f"{100 * share:.1f} %")
    assert numbers(row[7])[0] == pytest.approx(values / width, rel=1e-3)


def test_the_ceilings_are_bandwidth_over_bytes() -> None:
    def ceiling(device: str, gigabytes: float) -> str:
        return f"{find_device(device).bandwidth / gigabytes / 1e9:.1f}"

    assert f"16.07 GB (8B in 16 bits): {ceiling('h100', 16.07)} tok/s on an H100" in FORMULAS
    assert f"{ceiling('a100-80', 16.07)} on an A100 80 GB" in FORMULAS
    assert f"4.92 GB (Q4_K_M): {ceiling('4090', 4.92)} on a 4090" in FORMULAS
    assert f"{ceiling('ddr5-5600x2', 4.92)} on two channels of DDR5-5600" in FORMULAS


@pytest.mark.parametrize(
    ("name", "shown"),
    [("bf16", 2), ("q8_0", 1.0625), ("q5_1", 0.75), ("q5_0", 0.6875), ("q4_1", 0.625),
     ("q4_0", 0.5625), ("iq4_nl", 0.5625), ("fp8", 1)],
)  # fmt: skip
def test_bytes_a_value_of_the_kv_types(name: str, shown: float) -> None:
    assert KvFormat(name).row_bytes(8, 128) / (8 * 128) == shown
    table = rows("formulas.md", "KV type")
    (row,) = [cells for cells in table if re.search(rf"\b{name}\b", cells[0])]
    assert shown in numbers(row[1])


def test_kv_of_llama_3_1_8b_at_32k() -> None:
    layer = LayerShape(heads=32, kv_heads=8, key_dim=128, value_dim=128)
    shape = ModelShape(name="8b", layers=(layer,) * 32)
    gib = {n: kv_bytes(shape, KvFormat(n), 32_768) / 2**30 for n in ("f16", "q8_0", "q4_0")}
    shown = f"{gib['f16']:g} GiB at 32,768 tokens, {gib['q8_0']:g} GiB in q8_0, {gib['q4_0']:g} GiB"
    assert shown in FORMULAS


def test_the_fit_is_described_with_its_constants() -> None:
    knots = ", ".join(str(k) for k in fitted_speed.KNOTS[:7])
    assert f"knots at {knots}, ... {fitted_speed.KNOTS[-1]} rows" in FORMULAS
    assert f"never narrower than {fit.LEAST_SPREAD:.0%}".replace("%", " %") in FORMULAS
    assert f"narrower than {speed_learner.SPREAD:.0%}".replace("%", " %") in FORMULAS
    assert f"the newest {speed_learner.WINDOW} steps" in FORMULAS
    assert f"| under {MIN_TOKENS_FOR_PREFILL_RATE} computed tokens |" in FORMULAS
