"""The verbs plan and predict: exit codes, JSON on stdout, and the worked examples as typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.predict.test_hf_shape import LLAMA_8B
from tests.tiny_models import write_tiny
from twostroke.cli.main import invoke


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = invoke([*arguments, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else {"err": captured.err}


def test_exit_codes_are_fits_does_not_and_unknown(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    assert run(capsys, "plan", config, "--device", "h100", "--context", "8192")[0] == 0
    code, found = run(capsys, "plan", config, "--device", "h100", "--context", "1048576")
    assert code == 1 and found["fits"] == "no" and found["kv_bytes"] == 137_438_953_472
    code, found = run(capsys, "plan", config, "--device", "m2-max")
    assert code == 3 and found["fits"] == "unknown"
    assert found["missing"] == ["memory of the device"]
    assert run(capsys, "plan", config, "--device", "abacus")[0] == 2
    assert run(capsys, "plan")[0] == 2


def test_eight_gigabytes_at_400_gigabytes_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(
        capsys, "plan", "--layers", "1", "--kv-heads", "1", "--head-dim", "32", "--weights", "8GB",
        "--bandwidth", "400", "--memory", "64GB", "--hidden", "32", "--ffn", "32", "--vocab", "32",
    )  # fmt: skip
    assert code == 0
    assert 1 / found["predicted"]["tpot_s"] == pytest.approx(50.0, rel=1e-4)
    assert found["predicted"]["ttft_s"] is None  # no --flops, no --params


def test_ggml_kv_types_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--layers", "56", "--kv-heads", "8", "--head-dim", "128")
    code, found = run(capsys, "plan", *shape, "--context", "49152", "--kv-type", "q8_0")
    assert code == 3 and found["kv_bytes"] == 5712 * (1 << 20)


def test_our_own_engine_is_planned_by_its_own_rules(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny(path, "gemma3")
    _, found = run(capsys, "plan", str(path), "--context", "200")
    assert found["rules"] == "twostroke"
    assert found["kv_bytes"] == 208 * found["kv_bytes_per_token"]  # whole blocks, all layers
    assert found["fits"] in ("yes", "unknown")


def test_the_worked_examples_as_typed(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(
        capsys, "predict", "--prefill-rate", "2000", "--decode-rate", "40", "-p", "1000",
        "-n", "300",
    )  # fmt: skip
    assert code == 0 and (found["ttft_s"], found["decode_s"]) == (0.5, 7.5)
    assert f"{found['decode_share']:.0%}" == "94%"
    _, found = run(
        capsys, "predict", "--prefill-rate", "1500", "--decode-rate", "40", "-p", "12000",
        "-n", "500",
    )  # fmt: skip
    assert (found["ttft_s"], found["total_s"]) == (8.0, 20.5)
    assert f"{found['prefill_share']:.0%}" == "39%"


def test_a_machine_that_was_never_measured_predicts_nothing(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    code, found = run(capsys, "predict", config, "--prompt-tokens", "100", "--max-tokens", "10")
    assert code == 3
    assert found["ttft_s"] is None and found["tpot_s"] is None and found["missing"]


def test_a_machine_that_was_never_measured_is_told_how_to_be(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    assert invoke(["predict", config, "--prompt-tokens", "100", "--max-tokens", "10"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert "remedy      --calibrate measures this machine with this model" in lines
    assert not any("(measured)" in line for line in lines)


def test_a_device_of_the_table_predicts_with_its_interval(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    code, found = run(capsys, "predict", config, "-p", "4000", "-n", "250", "--device", "h100")
    assert code == 0
    interval = found["intervals"]["total_s"]
    assert interval["low"] < found["total_s"] < interval["high"]
    assert found["kv_bytes"] == 4250 * 131_072


def test_the_text_names_what_is_unknown(
    capsys: pytest.CaptureFixture[str], config: str, tmp_path: Path
) -> None:
    plot = tmp_path / "plan.svg"
    assert invoke(["plan", config, "--device", "h100", "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert "first token" in out and "Q4_K_M" in out and "datasheet" in out
    assert plot.read_text().startswith("<svg")
    assert invoke(["plan", config, "--device", "ddr4-3200x2"]) == 3
    assert "memory of the device" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags",
    [
        ("--rules", "hope"),
        ("--kv-type", "q3"),
        ("--context", "0"),
        ("--layers", "4"),
        ("--weights", "many"),
        ("--prefill-chunk", "0"),
    ],
)
def test_a_flag_that_cannot_be_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], config: str, flags: tuple[str, str]
) -> None:
    assert run(capsys, "plan", config, "--device", "h100", *flags)[0] == 2
