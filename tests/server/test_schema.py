"""The OpenAPI schema is true, and no request that it allows or forbids makes the server fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance

from tests.server.serving import Served
from tests.tiny_models import write_tiny

CASES = 300
SOAK_CASES = 2000
LIMITS = {"max_output_tokens": 8, "max_choices": 4, "body_timeout_s": 5.0}


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("schema") / "tiny.gguf"
    write_tiny(path, "llama", context_length=256)
    with Served(path, limits=LIMITS, log_format="off") as server:
        yield server


def run_cases(server: Served, num_cases: int, seed: int) -> int:
    """Send at least so many generated requests, to every route; return how many were sent."""
    schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    sent = 0
    while sent < num_cases:  # a route without a body has one case only
        for operation in operations:
            sent += run_operation(operation, max(num_cases // len(operations), 1), seed)
        seed += 1000
    return sent


def run_operation(operation: Any, num_cases: int, seed: int) -> int:
    """Send up to so many generated requests to one route; return how many were sent."""
    sent = 0

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=num_cases,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy())
    def check(case: schemathesis.Case) -> None:
        nonlocal sent
        sent += 1
        reply = case.call(timeout=60)
        case.validate_response(reply, checks=[not_a_server_error, status_code_conformance])

    check()
    return sent


def test_generated_requests_never_make_it_fail(capped: Served) -> None:
    seed = int(os.environ.get("TWOSTROKE_SCHEMA_SEED", "1"))
    assert run_cases(capped, CASES, seed) >= CASES
    capped.check_idle()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 14))
def test_many_generated_requests_never_make_it_fail(capped: Served, seed: int) -> None:
    sent = run_cases(capped, SOAK_CASES // 4, seed)
    print(f"seed {seed}: {sent} requests")
    assert sent >= SOAK_CASES // 4
    capped.check_idle()
