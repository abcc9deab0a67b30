"""POST /v1/predict answers before running, of the state as it is, and runs nothing."""

from __future__ import annotations

from tests.server.serving import Served

MESSAGES = [{"role": "user", "content": "Tell me about rivers and stones. " * 12}]


def test_a_prompt_that_is_cached_is_told_so(served: Served) -> None:
    body = {"messages": MESSAGES, "max_tokens": 8, "cache_salt": "predict"}
    cold = served.post("/v1/predict", body).json()
    assert cold["object"] == "prediction" and cold["fits"] == "yes"
    assert cold["prompt"]["cached"] == 0 and cold["prompt"]["new"] == cold["prompt"]["total"]
    assert cold["queue_s"] == 0.0 and cold["streams"] == 0
    answer = served.post("/v1/chat/completions", {**body, "temperature": 0}).json()
    warm = served.post("/v1/predict", body).json()
    assert warm["prompt"]["total"] == answer["usage"]["prompt_tokens"]
    assert warm["prompt"]["cached"] == warm["prompt"]["total"] - 1
    assert warm["kv_bytes"] < cold["kv_bytes"]
    again = served.post("/v1/predict", body).json()
    assert again["prompt"] == warm["prompt"], "looking changes nothing"


def test_both_phases_are_predicted_with_interval_source_and_advice(served: Served) -> None:
    found = served.post("/v1/predict", {"prompt": [1] * 300, "max_tokens": 40}).json()
    assert found["total_s"] > found["ttft_s"] > 0 and found["tpot_s"] > 0
    assert abs(found["prefill_share"] + found["decode_share"] - 1) < 1e-9
    interval = found["intervals"]["total_s"]
    assert interval["low"] < found["total_s"] < interval["high"]
    assert found["speed"]["source"] in ("assumed", "fitted")
    assert found["advice"]["cures"] and found["advice"]["phase"] in ("prefill", "decode")


def test_a_text_an_open_end_and_the_servers_own_bound(served: Served) -> None:
    found = served.post("/v1/predict", {"prompt": "Once upon a time"}).json()
    assert found["prompt"]["total"] > 1
    if found["max_tokens"] is None:
        assert found["total_s"] is None
    else:
        assert found["max_tokens_from"] != "max_tokens"


def test_what_cannot_fit_is_answered_and_not_refused(served: Served) -> None:
    reply = served.post("/v1/predict", {"prompt": [1] * 1000, "max_tokens": 5000})
    assert reply.status_code == 200
    found = reply.json()
    assert found["fits"] == "no" and "context" in found["refusal"]


def test_a_malformed_question_is_refused(served: Served) -> None:
    for body in (
        {},
        {"prompt": "a", "messages": MESSAGES},
        {"prompt": []},
        {"prompt": [10**9]},
        {"messages": []},
        {"prompt": "a", "temperature": 1},
        {"prompt": "a", "max_tokens": -1},
    ):
        assert served.post("/v1/predict", body).status_code == 400, body
    assert served.post("/v1/predict", {"prompt": "a", "model": "other"}).status_code == 404


def test_the_schema_names_the_route(served: Served) -> None:
    schema = served.get("/openapi.json").json()
    assert "/v1/predict" in schema["paths"]
    assert "PredictRequest" in schema["components"]["schemas"]
