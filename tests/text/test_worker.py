"""Templates in a process of their own: same prompts, same refusals, a deadline, no leftovers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from tests.tiny_models import CHATML
from twostroke.errors import RequestError, TemplateError
from twostroke.text.chat import ChatTemplate
from twostroke.text.tokenizer import Tokenizer
from twostroke.text.worker import TemplateWorkers

USER = [{"role": "user", "content": "hello <|im_end|> é 日本 \U0001f600"}]


def template(source: str, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate(source, control_texts=tokenizer.control_texts)


@pytest.fixture
def workers(tokenizer: Tokenizer) -> Iterator[TemplateWorkers]:
    made = TemplateWorkers(template(CHATML, tokenizer), tokenizer, num_workers=1)
    yield made
    made.close()


def test_a_worker_renders_as_the_template_does(
    workers: TemplateWorkers, tokenizer: Tokenizer
) -> None:
    long = [
        {"role": "system", "content": "s" * 300_000},
        *USER,
        {"role": "assistant", "content": "ok"},
        *USER,
    ]
    for messages in (USER, long):
        assert workers.render(messages) == template(CHATML, tokenizer).render(messages)


def test_refusals_come_back_as_they_are(tokenizer: Tokenizer) -> None:
    source = "{{ raise_exception('no such role') }}"
    workers = TemplateWorkers(template(source, tokenizer), tokenizer, num_workers=1)
    try:
        with pytest.raises(TemplateError, match="no such role") as refused:
            workers.render(USER)
        assert refused.value.param == "messages"
        with pytest.raises(RequestError, match="unknown role"):
            workers.render([{"role": "boss", "content": "x"}])
        with pytest.raises(RequestError, match="template variable"):
            workers.render(USER, tokenize=True)
    finally:
        workers.close()


def test_the_deadline_ends_the_process_and_the_next_one_serves(tokenizer: Tokenizer) -> None:
    workers = TemplateWorkers(template(CHATML, tokenizer), tokenizer, deadline_s=0.3, num_workers=1)
    try:
        workers.render(USER)
        worker = workers._idle.get()
        workers._idle.put(worker)
        os.kill(worker._process.pid, 19)  # SIGSTOP: it takes for ever
        start = time.monotonic()
        with pytest.raises(TemplateError, match="took too long"):
            workers.render(USER)
        assert time.monotonic() - start < 2
        assert worker._process.returncode is not None
        assert workers.render(USER).text
    finally:
        workers.close()


def test_a_worker_that_died_is_replaced(workers: TemplateWorkers) -> None:
    workers.render(USER)
    worker = workers._idle.get()
    worker._process.kill()
    worker._process.wait()
    workers._idle.put(worker)
    assert workers.render(USER).text


def test_many_threads_share_few_workers(workers: TemplateWorkers) -> None:
    found: list[str] = []

    def render(number: int) -> None:
        for _ in range(5):
            text = workers.render([{"role": "user", "content": f"thread {number}."}]).text
            if f"thread {number}." in text:
                found.append(text)

    threads = [threading.Thread(target=render, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 30


def test_closing_ends_every_process(tokenizer: Tokenizer) -> None:
    workers = TemplateWorkers(template(CHATML, tokenizer), tokenizer, num_workers=2)
    workers.start()
    started = [workers._idle.get() for _ in range(2)]
    for worker in started:
        workers._idle.put(worker)
    workers.close()
    assert all(w._process.returncode is not None for w in started)
    with pytest.raises(TemplateError, match="closed"):
        workers.render(USER)
