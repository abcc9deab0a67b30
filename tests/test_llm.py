"""The offline entry point on the sample model: every parameter is honoured, streamed or not.

Rows S, T, R and K1 of the engine cases that need real text and no server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from twostroke.config import EngineConfig
from twostroke.errors import ContextTooLong, RequestError
from twostroke.llm import LLM, Delta, Generation
from twostroke.record import PHASES
from twostroke.request import FinishReason, SamplingParams

pytestmark = pytest.mark.weights

CONTEXT = 512
PROMPT = "Count: one, two, three, four, five, six,"
MESSAGES = [{"role": "user", "content": "Say hello in one word."}]


def greedy(**fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **fields})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def loaded(smollm2_path: Path) -> LLM:
    return LLM(str(smollm2_path), EngineConfig(max_model_len=CONTEXT, kv_memory_bytes=64 << 20))


@pytest.fixture
def llm(loaded: LLM) -> Iterator[LLM]:
    """Every test leaves an idle engine whose blocks are all accounted for."""
    yield loaded
    assert not loaded.built.engine.has_work
    loaded.built.engine._scheduler._cache.check_integrity()


def whole(llm: LLM, prompt: object = PROMPT, **params: object) -> Generation:
    (generation,) = llm.generate([prompt], greedy(**params))  # type: ignore[list-item]
    return generation


def streamed(llm: LLM, prompt: object = PROMPT, **params: object) -> list[Delta]:
    return list(llm.stream(prompt, greedy(**params)))  # type: ignore[arg-type]


def assert_equal(deltas: list[Delta], generation: Generation) -> None:
    assert "".join(d.text for d in deltas) == generation.text
    assert tuple(i for d in deltas for i in d.token_ids) == generation.token_ids
    assert tuple(p for d in deltas for p in d.logprobs) == generation.logprobs
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason is generation.finish_reason
    assert deltas[-1].stop_reason == generation.stop_reason


def test_text_is_what_the_tokens_say(llm: LLM) -> None:
    out = whole(llm)
    assert out.text == llm.model.tokenizer.decode(out.token_ids)
    assert out.prompt_token_ids == tuple(llm.model.tokenizer.encode(PROMPT, add_special=True))
    assert "seven" in out.text
    assert whole(llm, out.prompt_token_ids).text == out.text


def test_a_stream_is_the_same_answer_in_pieces(llm: LLM) -> None:
    deltas = streamed(llm, logprobs=2)
    assert len(deltas) == 12
    assert_equal(deltas, whole(llm, logprobs=2))
    assert deltas[-1].record is not None
    assert all(d.record is None for d in deltas[:-1])


def test_prompts_together_answer_as_each_alone(llm: LLM) -> None:
    prompts = [PROMPT, "The capital of France is", "def add(a, b):"]
    together = llm.generate(prompts, greedy())
    assert [g.text for g in together] == [whole(llm, p).text for p in prompts]


def test_each_prompt_may_have_parameters_of_its_own(llm: LLM) -> None:
    first, second = llm.generate([PROMPT] * 2, [greedy(max_tokens=3), greedy(max_tokens=5)])
    assert second.token_ids[:3] == first.token_ids
    assert len(second.token_ids) == 5
    with pytest.raises(RequestError, match="one set of parameters a prompt is needed"):
        llm.generate([PROMPT] * 2, [greedy()])


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_t1_max_tokens_is_exact(llm: LLM, n: int) -> None:
    out = whole(llm, max_tokens=n)
    assert len(out.token_ids) == n
    assert out.finish_reason is FinishReason.LENGTH
    assert out.record is not None and out.record.output.total == n
    assert (out.text == "") == (n == 0)
    assert_equal(streamed(llm, max_tokens=n), out)


def test_t2_without_max_tokens_the_answer_ends_at_the_context(llm: LLM) -> None:
    prompt = (5,) * (CONTEXT - 6)
    out = whole(llm, prompt, max_tokens=None, ignore_eos=True)
    assert len(out.token_ids) == 6
    assert out.finish_reason is FinishReason.LENGTH


def test_t5_an_end_token_is_stop_and_not_in_the_text(llm: LLM) -> None:
    (out,) = llm.chat(MESSAGES, greedy(max_tokens=60))
    assert out.finish_reason is FinishReason.STOP
    assert out.stop_reason is None
    assert out.token_ids[-1] in llm.model.end_token_ids
    assert out.text == llm.model.tokenizer.decode(out.token_ids[:-1])
    assert "<|im_end|>" not in out.text
    assert_equal(list(llm.stream(MESSAGES, greedy(max_tokens=60))), out)
    (longer,) = llm.chat(MESSAGES, greedy(max_tokens=len(out.token_ids) + 3, ignore_eos=True))
    assert longer.token_ids[: len(out.token_ids)] == out.token_ids
    assert longer.finish_reason is FinishReason.LENGTH


def test_a_conversation_is_one_or_several(llm: LLM) -> None:
    (one,) = llm.chat(MESSAGES, greedy(max_tokens=4))
    two = llm.chat([MESSAGES, MESSAGES], greedy(max_tokens=4))
    assert [g.text for g in two] == [one.text] * 2


@pytest.mark.parametrize("length", [1, 3, 7])
@pytest.mark.parametrize("start", [1, 4, 9])
def test_s1_s3_a_stop_string_cuts_the_same_streamed_and_whole(
    llm: LLM, start: int, length: int
) -> None:
    """Stops taken from the answer itself, across its token borders."""
    free = whole(llm).text
    stop = free[start : start + length]
    out = whole(llm, stop=(stop,))
    assert out.text == free[: free.index(stop)]
    assert (out.finish_reason, out.stop_reason) == (FinishReason.STOP, stop)
    assert out.record is not None and out.record.finish == "stop"
    assert out.record.output.total == len(out.token_ids)
    assert stop in llm.model.tokenizer.decode(out.token_ids)
    assert stop not in llm.model.tokenizer.decode(out.token_ids[:-1])
    assert_equal(streamed(llm, stop=(stop,)), out)


def test_t5_a_stop_string_on_the_last_allowed_token_is_stop(llm: LLM) -> None:
    free = whole(llm)
    last = llm.model.tokenizer.decode(free.token_ids[-1:])
    n = next(i for i in range(1, 13) if last in llm.model.tokenizer.decode(free.token_ids[:i]))
    out = whole(llm, max_tokens=n, stop=(last,))
    assert (out.finish_reason, out.stop_reason) == (FinishReason.STOP, last)
    assert out.record is not None and out.record.finish == "stop"
    assert_equal(streamed(llm, max_tokens=n, stop=(last,)), out)


def test_s10_a_stop_that_never_completes_is_flushed(llm: LLM) -> None:
    free = whole(llm)
    stop = free.text[-3:] + "@@"
    out = whole(llm, stop=(stop,))
    assert out.text == free.text
    assert out.finish_reason is FinishReason.LENGTH
    assert_equal(streamed(llm, stop=(stop,)), out)


def test_a_stop_token_id_ends_the_answer_and_is_named(llm: LLM) -> None:
    free = whole(llm)
    stop_id = free.token_ids[4]
    out = whole(llm, stop_token_ids=(stop_id,))
    at = free.token_ids.index(stop_id)
    assert out.token_ids == free.token_ids[: at + 1]
    assert (out.finish_reason, out.stop_reason) == (FinishReason.STOP, stop_id)
    assert out.text == llm.model.tokenizer.decode(free.token_ids[:at])


def test_logprobs_come_one_a_token_with_the_best_alternatives_in_order(llm: LLM) -> None:
    out = whole(llm, logprobs=5, max_tokens=4)
    assert len(out.logprobs) == len(out.token_ids) == 4
    for token_id, chosen in zip(out.token_ids, out.logprobs, strict=True):
        values = [value for _, value in chosen.top]
        assert len(values) == 5 and values == sorted(values, reverse=True)
        assert chosen.token_id == token_id == chosen.top[0][0]
        assert chosen.logprob == values[0] <= 0.0
    assert all(p.top == () for p in whole(llm, logprobs=0, max_tokens=2).logprobs)
    assert whole(llm, max_tokens=2).logprobs == ()


def test_d3_d4_a_seed_is_honoured_and_one_is_drawn_and_told_otherwise(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=10, seed=11, ignore_eos=True)
    first, second = llm.generate([PROMPT, PROMPT], params)
    assert first.token_ids == second.token_ids and first.seed == 11
    free = SamplingParams(temperature=1.0, max_tokens=10, ignore_eos=True)
    third, fourth = llm.generate([PROMPT, PROMPT], free)
    assert third.seed != fourth.seed and third.token_ids != fourth.token_ids
    again = SamplingParams(temperature=1.0, max_tokens=10, seed=third.seed, ignore_eos=True)
    assert llm.generate([PROMPT], again)[0].token_ids == third.token_ids


@pytest.mark.parametrize("num_read", [0, 1, 3])
def test_closing_a_stream_cancels_it_and_frees_its_memory(llm: LLM, num_read: int) -> None:
    stream = llm.stream(PROMPT, greedy(max_tokens=200, ignore_eos=True))
    for _ in range(num_read):
        next(stream)
    assert llm.built.engine.has_work == (num_read > 0)
    stream.close()
    assert not llm.built.engine.has_work


def test_an_open_stream_and_other_calls_do_not_take_each_others_tokens(llm: LLM) -> None:
    alone = whole(llm, "The sea is")
    stream = llm.stream("The sea is", greedy())
    first = next(stream)
    other = whole(llm)
    assert other.text == whole(llm).text
    second = llm.stream(PROMPT, greedy())
    assert next(second).text
    assert_equal([first, *stream], alone)
    second.close()


def test_more_prompts_than_a_server_queues_are_all_answered(llm: LLM) -> None:
    prompts = [(2 + i % 40,) for i in range(1100)]
    outs = llm.generate(prompts, greedy(max_tokens=0))
    assert len(outs) == 1100
    assert {g.finish_reason for g in outs} == {FinishReason.LENGTH}


def test_an_id_outside_the_vocabulary_is_refused_by_name(llm: LLM) -> None:
    vocab = llm.model.config.vocab_size
    for bad in (-1, vocab, 2**40):
        with pytest.raises(RequestError) as refusal:
            whole(llm, [1, bad])
        assert str(bad) in str(refusal.value) and str(vocab) in str(refusal.value)
    with pytest.raises(RequestError, match="logit_bias"):
        whole(llm, logit_bias=((vocab, 1.0),))


def test_k1_a_prompt_over_the_context_is_refused_with_prompt_limit_and_excess(llm: LLM) -> None:
    with pytest.raises(ContextTooLong) as refusal:
        whole(llm, (5,) * (CONTEXT + 9), max_tokens=1)
    for number in (CONTEXT + 9, CONTEXT, 10):
        assert str(number) in str(refusal.value)
    with pytest.raises(ContextTooLong):
        whole(llm, (5,) * 8, max_tokens=2**31 - 1)


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(llm: LLM, prompt: object) -> None:
    with pytest.raises(RequestError, match="no tokens"):
        whole(llm, prompt)


def test_one_bad_prompt_among_good_ones_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(RequestError, match="no tokens"):
        llm.generate([PROMPT, []], greedy())


def test_no_prompts_are_no_answers(llm: LLM) -> None:
    assert llm.generate([], greedy()) == []


@pytest.mark.parametrize("max_tokens", [0, 1, 12])
def test_the_phases_add_up_to_the_whole_within_a_millisecond(llm: LLM, max_tokens: int) -> None:
    for _ in range(2):  # cold or cached
        record = whole(llm, max_tokens=max_tokens).record
        assert record is not None and record.e2e_s is not None
        assert record.phases.unaccounted_s is None
        assert abs(record.phases.known_s() - record.e2e_s) <= 1e-3
        assert {f.name for f in fields(record.phases)} >= {f"{name}_s" for name in PHASES}


def test_r1_cached_and_new_tokens_are_the_prompt(llm: LLM) -> None:
    prompt = [*range(100, 150)]
    shares = []
    for _ in range(2):
        record = whole(llm, prompt, max_tokens=2).record
        assert record is not None
        tokens = record.prompt
        assert tokens.cached is not None and tokens.new is not None
        assert tokens.cached + tokens.new == tokens.total == 50
        shares.append(tokens.cached)
        assert record.ctx_end == 52
    assert shares == [0, 49]


def test_the_record_tells_visible_tokens_and_the_time_of_the_first_text(llm: LLM) -> None:
    record = whole(llm).record
    assert record is not None
    output = record.output
    assert (output.visible, output.reasoning, output.tool) == (output.total, 0, 0)
    assert record.ttft_visible_s is not None and record.ttft_any_s is not None
    assert record.e2e_s is not None
    assert 0 < record.ttft_any_s <= record.ttft_visible_s <= record.e2e_s
    silent = whole(llm, max_tokens=0).record
    assert silent is not None and silent.ttft_visible_s is None


def test_scoring_equals_the_log_probabilities_of_the_answer(llm: LLM) -> None:
    """R: cached or not, a score is computed, never remembered."""
    out = whole(llm, logprobs=0)
    scores = llm.score((*out.prompt_token_ids, *out.token_ids))
    n = len(out.prompt_token_ids)
    assert len(scores) == n + len(out.token_ids) - 1
    assert list(scores[n - 1 :]) == [p.logprob for p in out.logprobs]
    with pytest.raises(RequestError, match="two tokens"):
        llm.score([1])
