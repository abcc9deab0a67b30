"""The verbs on the real sample model: what stands on stdout, what on stderr, and the exit code."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from twostroke.cli.main import invoke

pytestmark = pytest.mark.weights


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run one command line; return its exit code, stdout and stderr."""
    code = invoke(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    document: dict[str, Any] = json.loads(out.splitlines()[-1])
    return document


def test_run_streams_the_answer_and_reports_both_phases(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path
) -> None:
    code, out, err = run(
        capsys, "run", str(smollm2_path), "--prompt", "The capital of France is",
        "--raw", "--max-tokens", "8",
    )  # fmt: skip
    assert code == 0
    assert "Paris" in out
    assert "prefill" in err and "decode" in err and "total" in err
    assert "Paris" not in err


def test_the_json_document_holds_what_the_help_promises(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path
) -> None:
    document = run_json(
        capsys, "run", str(smollm2_path), "--prompt", "The capital of France is",
        "--raw", "--max-tokens", "8", "--logprobs", "2",
    )  # fmt: skip
    assert set(document) >= {
        "text", "prompt_token_ids", "token_ids", "finish_reason", "logprobs", "record",
    }  # fmt: skip
    assert len(document["token_ids"]) == len(document["logprobs"]) == 8
    assert document["finish_reason"] == "length"
    first = document["logprobs"][0]
    assert bytes(first["bytes"]).decode() == first["token"] == " Paris"
    assert len(first["top"]) == 2 and first["top"][0]["logprob"] == first["logprob"]
    record = document["record"]
    assert record["prompt"] == {"total": 5, "cached": 0, "new": 5}
    assert record["prefill_tok_s"] is None, "no rate from 5 tokens"
    phases = [v for v in record["phases"].values() if v is not None]
    assert sum(phases) == pytest.approx(record["e2e_s"], abs=1e-3)


def test_a_prompt_on_stdin_gives_the_same_answer(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stdin:
        buffer = io.BytesIO(b"The capital of France is")

    flags = ("--raw", "--max-tokens", "4")
    plain = run(capsys, "run", str(smollm2_path), "--prompt", "The capital of France is", *flags)
    monkeypatch.setattr("sys.stdin", Stdin)
    assert run(capsys, "run", str(smollm2_path), "--prompt", "-", *flags)[1] == plain[1]


def test_max_tokens_0_is_prefill_only(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path
) -> None:
    document = run_json(
        capsys, "run", str(smollm2_path), "--prompt", "Hello there", "--raw", "--max-tokens", "0"
    )
    assert document["text"] == "" and document["token_ids"] == []
    assert document["record"]["output"]["total"] == 0
    assert document["record"]["ttft_any_s"] is None


def test_a_stop_string_ends_the_answer_before_it(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path
) -> None:
    document = run_json(
        capsys, "run", str(smollm2_path), "--prompt", "Count: 1, 2, 3, 4,", "--raw",
        "--max-tokens", "40", "--stop", " 9",
    )  # fmt: skip
    assert document["finish_reason"] == "stop" and document["stop_reason"] == " 9"
    assert document["text"].endswith("8,") and "9" not in document["text"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--temperature", "nan"], ["temperature"]),
        (["--temperature", "-1"], ["temperature", "[0.0, 100.0]"]),
        (["--top-p", "0"], ["top_p"]),
        (["--max-tokens", "-1"], ["max_tokens"]),
        (["--seed", "-1"], ["seed"]),
        (["--seed", str(2**64)], ["seed"]),
        (["--stop", ""], ["stop"]),
        ([w for i in range(10_000) for w in ("--stop", f"s{i}")], ["10000", "64"]),
        (["--logprobs", "21"], ["logprobs", "20"]),
        (["--kv-type", "q4"], ["q4", "bf16"]),
        (["--kv-memory", "lots"], ["lots"]),
        (["--kernels", "neon9"], ["neon9"]),
        (["--threads", "0"], ["threads"]),
        (["--backend", "gpu"], ["gpu"]),
        (["--raw", "--system", "x"], ["--system"]),
        (["--max-model-len", "4"], ["context", "4"]),
        (["--max-tokens", "9000"], ["context", "8192"]),
        (["--kv-memory", "1"], ["KV memory"]),
    ],
)
def test_a_bad_flag_is_one_clear_sentence_and_exit_code(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path, flags: list[str], words: list[str]
) -> None:
    code, out, err = run(capsys, "run", str(smollm2_path), "--prompt", "Hi", *flags)
    assert code in (1, 2)
    assert out == ""
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path
) -> None:
    code, out, err = run(
        capsys, "run", str(smollm2_path), "--prompt", "word " * 9000, "--raw", "--max-tokens", "1"
    )
    assert code == 2 and out == ""
    assert "9001" in err or "9000" in err
    assert "8192" in err


@pytest.mark.parametrize(
    "name", ["no-such-model", "hf:nobody", "/nowhere/x.gguf", "/", "smollm2:1b"]
)
def test_a_model_that_is_not_there_is_said_in_one_sentence(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, out, err = run(capsys, "run", name, "--prompt", "Hi")
    assert code in (1, 2) and out == ""
    assert err.startswith("twostroke:") and "Traceback" not in err


def test_chat_prefills_only_the_new_tokens_of_turn_2(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter(["Name a colour.", "Another one?", "/quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(turns))
    code, out, err = run(capsys, "chat", str(smollm2_path), "--max-tokens", "12")
    assert code == 0
    assert len(out.strip().splitlines()) >= 2
    lines = [line for line in err.splitlines() if "prefill" in line]
    assert len(lines) == 2
    assert "+ 0 cached" in lines[0]
    match = re.search(r"prefill (\d+) new \+ (\d+) cached", lines[1])
    assert match is not None
    new, cached = int(match[1]), int(match[2])
    assert cached > 30, "the first turn and its answer stay in the cache"
    assert new < 30


def test_a_refused_turn_does_not_end_the_chat(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter(["word " * 9000, "Hi", "/quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(turns))
    code, out, err = run(capsys, "chat", str(smollm2_path), "--max-tokens", "4")
    assert code == 0
    assert "8192" in err and out.strip()


def test_bench_rows_are_named_and_stand_beside_their_ceiling(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path
) -> None:
    document = run_json(
        capsys, "bench", str(smollm2_path), "--prompt", "48", "--gen", "4", "--depth", "0,32",
        "--batch", "1,2", "--repeat", "2",
    )  # fmt: skip
    results = {row["test"]: row for row in document["results"]}
    assert list(results) == ["pp48", "tg4", "tg4xb2", "pp48@d32", "tg4@d32", "tg4xb2@d32"]
    for row in results.values():
        assert row["tok_per_s"] > 0 and row["ceiling_tok_per_s"] > 0
        assert row["mfu"] > 0 and row["mbu"] > 0
        assert len(row["hash"]) == 16
    assert document["machine"]["profile"]["int8_ops_per_s"] > 0


def test_bench_without_a_kv_cache_gives_the_same_tokens(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path
) -> None:
    document = run_json(
        capsys, "bench", str(smollm2_path), "--gen", "4", "--depth", "32", "--repeat", "1",
        "--no-kv-cache",
    )  # fmt: skip
    with_cache, without = document["results"]
    assert without["test"] == "tg4-nocache@d32"
    assert with_cache["tok_per_s"] > without["tok_per_s"]


def test_perplexity_counts_windows_and_agrees_with_the_golden(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path, tmp_path: Path
) -> None:
    from tests.golden_data import GOLDEN

    text = (GOLDEN / "text.txt").read_text(encoding="utf-8")[:2400]
    file = tmp_path / "text.txt"
    file.write_text(text, encoding="utf-8")
    document = run_json(capsys, "perplexity", str(smollm2_path), str(file), "--window", "256")
    assert document["windows"] == 2 and document["tokens"] == 512
    assert 5 < document["perplexity"] < 100
    code, _, err = run(capsys, "perplexity", str(smollm2_path), str(file), "--window", "4096")
    assert code == 2 and "shorter than one window" in err


def test_explain_says_which_phase_holds_the_wait(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path
) -> None:
    line = ["run", str(smollm2_path), "--prompt", "Tell me a story.", "-n", "40", "--explain"]
    assert invoke(line) == 0
    told = capsys.readouterr().err
    assert "holds the wait" in told and "Saves" in told and "from one request only" in told
    assert invoke([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    explanation = found["explanation"]
    assert explanation["phase"] in ("prefill", "decode", "load", "init")
    assert [c for c in explanation["cures"] if c["saves_low_s"]]
    record = found["record"]
    for phase in ("prefill", "decode"):
        measured = record["phases"][f"{phase}_s"]
        told_s, error = record[f"predicted_{phase}_s"], record[f"{phase}_error"]
        assert error == pytest.approx(told_s / measured - 1)
