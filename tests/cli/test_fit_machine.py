"""Fits that were stored are used by plan and predict; broken ones are not; measuring makes one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.predict.test_fit import steps
from tests.tiny_models import write_tiny
from twostroke.backend.calibrate import cpu_name
from twostroke.cli.main import invoke
from twostroke.model.local_models import fits_folder
from twostroke.predict.fit import fit_speed
from twostroke.predict.hardware import MachineProfile
from twostroke.predict.stored import fit_path, store_fit, stored_fit

PROFILE = MachineProfile(
    cpu=cpu_name(),
    kernel_set="avx512",
    threads=2,
    int8_ops_per_s=9e11,
    bf16_flops_per_s=4.6e11,
    fp32_flops_per_s=2.3e11,
    bandwidth=((1 << 20, 1e11), (1 << 30, 3.4e10)),
)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "profiles"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps(PROFILE.to_dict()))
    path = tmp_path / "tiny.gguf"
    write_tiny(path, "llama")
    return path


def predict(capsys: pytest.CaptureFixture[str], model: Path, *flags: str) -> dict[str, Any]:
    code = invoke(["predict", str(model), "-p", "100", "-n", "20", "--json", *flags])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found: dict[str, Any] = json.loads(captured.out)
    return found


def test_a_stored_fit_wins_over_assumed_shares(
    capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    before = predict(capsys, model)
    assert before["device"]["speed"]["source"] == "assumed"
    fit = fit_speed(PROFILE, steps())
    assert fit is not None
    store_fit(fits_folder(), model, "bf16", PROFILE, fit)
    after = predict(capsys, model)
    assert after["device"]["speed"]["source"] == "fitted"
    assert after["device"]["speed"]["num_steps"] == len(steps())
    assert after["total_s"] != before["total_s"]
    other_kv = predict(capsys, model, "--kv-type", "q8")
    assert other_kv["device"]["speed"]["source"] == "assumed"


def test_another_models_fit_stands_in_with_a_wider_interval(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"x" * 100)
    fit = fit_speed(PROFILE, steps())
    assert fit is not None
    store_fit(fits_folder(), other, "bf16", PROFILE, fit)
    found = predict(capsys, model)["device"]["speed"]
    assert found["source"] == "fitted" and "other.gguf" in found["name"]
    assert found["low"] < fit.low and found["high"] > fit.high
    store_fit(fits_folder(), model, "bf16", PROFILE, fit)
    assert predict(capsys, model)["device"]["speed"]["low"] == fit.low


def test_a_fit_of_another_build_is_not_taken(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = fit_speed(PROFILE, steps())
    assert fit is not None
    store_fit(fits_folder(), model, "bf16", PROFILE, fit)
    assert stored_fit(fits_folder(), model, "bf16", PROFILE) == fit
    monkeypatch.setattr("twostroke.predict.stored.__version__", "0.0.1")
    assert stored_fit(fits_folder(), model, "bf16", PROFILE) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 50_000, "x" * 100_000])
def test_a_broken_fit_counts_as_none(model: Path, text: str) -> None:
    path = fit_path(fits_folder(), model, "bf16", PROFILE)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert stored_fit(fits_folder(), model, "bf16", PROFILE) is None


def test_calibrate_is_refused_where_it_cannot_run(
    capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    assert invoke(["predict", str(model), "--calibrate", "--device", "h100"]) == 2
    assert invoke(["predict", str(model), "--calibrate", "--kv-type", "q8_0"]) == 2
    assert "--calibrate needs a local model" in capsys.readouterr().err


def test_calibrating_measures_fits_and_remembers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("twostroke.bench.steps.REPEAT", 1)
    model = tmp_path / "tiny.gguf"
    write_tiny(model, "llama", context_length=1024)
    found = predict(capsys, model, "--calibrate")
    speed = found["device"]["speed"]
    assert speed["source"] == "fitted" and speed["num_steps"] > 100
    assert found["intervals"]["total_s"]["low"] < found["total_s"]
    again = predict(capsys, model)
    assert again["total_s"] == found["total_s"]
