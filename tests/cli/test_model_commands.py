from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

from twostroke.cli.app import make_app
from twostroke.cli.download_bar import DownloadBar
from twostroke.cli.text_output import printable, size_text
from twostroke.errors import ModelNotFound
from twostroke.model.local_models import models_folder

app = make_app(["pull", "list", "show", "rm"])


def run(*arguments: str):  # type: ignore[no-untyped-def]
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)


@pytest.fixture
def model(empty_caches: None) -> Path:
    folder = models_folder()
    folder.mkdir(parents=True)
    path = folder / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny \x1b[31mred")
    writer.add_block_count(2)
    writer.add_context_length(2048)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_sliding_window(512)
    writer.add_token_list(["a", "b"])
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("w", np.zeros((2, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("verb", ["pull", "list", "show", "rm"])
def test_help_has_an_example(verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"twostroke {verb}" in result.stdout


def test_list_without_models_hints_on_stderr(tmp_path: Path) -> None:
    result = run("list")
    assert result.stdout == ""
    assert "twostroke pull smollm2:135m" in result.stderr
    assert json.loads(run("list", "--json").stdout) == {"models": []}


def test_list_show_rm_agree_on_one_name(model: Path) -> None:
    (entry,) = json.loads(run("list", "--json").stdout)["models"]
    assert entry["name"] == str(model)
    assert entry["bytes"] == model.stat().st_size
    assert entry["name"] in run("list").stdout
    assert json.loads(run("show", entry["name"], "--json").stdout)["paths"] == [str(model)]
    removed = json.loads(run("rm", entry["name"], "--json").stdout)
    assert removed["freed_bytes"] == entry["bytes"]
    assert not model.exists()


def test_show_prints_facts_and_no_escape_codes(model: Path) -> None:
    text = run("show", str(model)).stdout
    assert "\x1b" not in text
    for pattern in (
        r"context +2,048 tokens",
        r"heads +4 query, 2 key-value",
        r"KV cache +256 bytes per token.*only 512 tokens",
        r"chat template +yes",
        r"F32 +1 tensors, 512 B \(100\.0 %\)",
    ):
        assert re.search(pattern, text), pattern
    document = json.loads(run("show", str(model), "--json").stdout)
    assert document["kv_bytes_per_token"] == 256
    assert document["vocab_size"] == 2


def test_pull_of_a_file_that_is_here_fetches_nothing(model: Path) -> None:
    document = json.loads(run("pull", str(model), "--json").stdout)
    assert document["fetched"] is False
    assert document["path"] == str(model)
    assert "already here" in run("pull", str(model)).stdout


def test_errors_reach_the_caller_as_ours() -> None:
    for verb in ("show", "rm"):
        error = run(verb, "smollm2:135m").exception
        assert isinstance(error, ModelNotFound)
        assert "twostroke pull smollm2:135m" in str(error)
    assert isinstance(run("pull", "no-such-model").exception, ModelNotFound)


def test_progress_is_one_line_per_file_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with DownloadBar() as bar:
        assert not bar.has_fetched
        bar("big[/red]\x1b[2J.gguf", 0, 98_400_000)
        bar("big[/red]\x1b[2J.gguf", 1000, 98_400_000)
        assert bar.has_fetched
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("fetching") == 1
    assert "98.4 MB" in captured.err
    assert "\x1b" not in captured.err


def test_sizes_are_decimal() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 98_362_432, 4_700_000_000, 10**15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "98.4 MB",
        "4.7 GB",
        "1000.0 TB",
    ]


def test_text_from_files_is_made_harmless() -> None:
    assert printable("a\x1b[2J\udcffé\n") == "a\ufffd[2J\ufffdé\ufffd"
