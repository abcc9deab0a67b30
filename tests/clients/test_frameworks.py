"""LangChain and LlamaIndex, the real packages, on the sample model (make test-clients).

They live in an environment of their own: they hold `openai` below 3 and weigh 340 MB.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.agents import python_of
from tests.server.serving import Served

pytestmark = pytest.mark.clients
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sample(smollm2_path: Path) -> Iterator[Served]:
    limits = {"default_max_tokens": 64}  # what the README shows asks for no bound
    with Served(smollm2_path, limits=limits, kv_memory_bytes=256 << 20, threads=2) as server:
        yield server
        server.check_idle()


def run(*arguments: str) -> str:
    command = [python_of("client-frameworks"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def talk(script: str, url: str) -> dict[str, Any]:
    path = ROOT / "tests" / "clients" / "frameworks" / script
    found: dict[str, Any] = json.loads(run(str(path), url).splitlines()[-1])
    return found


def answer(sample: Served) -> str:
    question = "What is the capital of France? Answer in one word."
    return str(sample.chat(question, max_tokens=40).json()["choices"][0]["message"]["content"])


def test_langchain_chats_streams_calls_tools_and_gets_json(sample: Served) -> None:
    told = talk("langchain_talk.py", sample.url)
    assert told["text"] == told["streamed"] == answer(sample)
    assert told["usage"]["output_tokens"] == told["stream_usage"]["output_tokens"] > 0
    (call,) = told["calls"]
    assert call["name"] == "weather" and set(call["args"]) == {"city"}
    assert told["after"] == "ai" and set(told["form"]) == {"name"}
    assert told["error"] == "top_p"


def test_llamaindex_chats_streams_completes_and_calls_tools(sample: Served) -> None:
    told = talk("llamaindex_talk.py", sample.url)
    assert told["text"] == told["streamed"] == told["completed"] == answer(sample)
    ((name, arguments),) = told["calls"]
    assert name == "weather" and told["results"] == [f"17 degrees in {arguments['city']}"]
    assert told["predicted_n"] > 0


@pytest.mark.parametrize("package", ["langchain_openai", "llama_index"])
def test_what_the_readme_shows_runs(sample: Served, package: str) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (block,) = [b for b in blocks if f"from {package}" in b]
    code = block.replace("http://127.0.0.1:8000", sample.url).replace("smollm2:135m", "tiny")
    assert run("-c", code).strip()
