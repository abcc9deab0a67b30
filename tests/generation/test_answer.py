"""An answer is the same deltas for every driver, however the engine's outputs are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.generation.answer import Answer, Delta, StopRequest, merged
from twostroke.generation.call_text import CallText
from twostroke.generation.make_request import EncodedPrompt, make_request
from twostroke.generation.reasoning_text import ReasoningText
from twostroke.model.loaded import LoadedModel
from twostroke.record import OutputTokens, RequestRecord
from twostroke.request import FinishReason, RequestOutput, SamplingParams, TokenLogprob
from twostroke.text.stream import AnswerText, PlainText
from twostroke.text.tool_format import HERMES
from twostroke.text.tool_text import ToolText

LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP
_MODELS: list[LoadedModel] = []


@pytest.fixture(autouse=True)
def _model_for_properties(model: LoadedModel) -> None:
    _MODELS[:] = [model]


def answer(*stops: str, text: AnswerText | None = None, **params: Any) -> Answer:
    model = _MODELS[0]
    params = {"stop": stops, "seed": 1, **params}
    prompt = EncodedPrompt(token_ids=(1,))
    request = make_request("r", prompt, SamplingParams(**params), model)
    return Answer(request, text or PlainText(model.tokenizer, stops), index=3)


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(_MODELS[0].tokenizer.encode(text))


def output(
    ids: tuple[int, ...] = (),
    reason: FinishReason | None = None,
    *,
    total: int | None = None,
    **more: Any,
) -> RequestOutput:
    if reason is not None:
        record = RequestRecord(
            t_arrival_s=0.0, output=OutputTokens(total=total), finish=reason.value
        )
        more = {"record": record, **more}
    return RequestOutput(request_id="r", token_ids=ids, finish_reason=reason, **more)


def drive(one: Answer, ids: tuple[int, ...], sizes: list[int], reason: FinishReason) -> Delta:
    """Push ids in outputs of these sizes, end as the engine does, and return the whole answer."""
    deltas: list[Delta] = []
    start = 0
    for size in [*sizes, len(ids)]:
        end = min(start + size, len(ids))
        is_last = end == len(ids)
        delta = one.push(output(ids[start:end], reason if is_last else None, total=len(ids)))
        start = end
        if delta is None:
            stop = one.take_stop_request()
            assert stop is not None and not is_last
            final = output((), STOP, stop_reason=stop.reason, total=stop.num_tokens_kept)
            delta = one.push(final)
            assert delta is not None
        deltas.append(delta)
        if delta.finish_reason is not None:
            return merged(deltas)
    raise AssertionError("the answer never ended")


def test_a_delta_has_text_ids_and_logprobs_of_its_output() -> None:
    one, ids = answer(), ids_of("ab")
    entries = tuple(TokenLogprob(i, -1.0) for i in ids)
    delta = one.push(output(ids[:1], logprobs=entries[:1]))
    assert delta == Delta(index=3, text="a", token_ids=ids[:1], logprobs=entries[:1])
    last = one.push(output(ids[1:], LENGTH, logprobs=entries[1:], total=2))
    assert last is not None and (last.text, last.finish_reason) == ("b", LENGTH)
    assert one.take_stop_request() is None


def test_the_end_token_counts_and_has_no_text() -> None:
    one = answer()
    (end, *_) = one.request.end_token_ids
    delta = one.push(output((*ids_of("a"), end), STOP, total=2))
    assert delta is not None and delta.text == "a"
    assert delta.token_ids == (*ids_of("a"), end) and delta.stop_reason is None
    assert delta.record is not None and delta.record.output.visible == 2


def test_a_stop_token_id_has_no_text_and_is_named_as_the_engine_names_it() -> None:
    (stop,) = ids_of("b")
    one = answer(stop_token_ids=(stop,))
    delta = one.push(output((*ids_of("a"), stop), STOP, stop_reason=stop, total=2))
    assert delta is not None and (delta.text, delta.stop_reason) == ("a", stop)


def test_an_end_token_id_inside_an_answer_that_ends_otherwise_is_text() -> None:
    (stop,) = ids_of("b")
    one = answer(stop_token_ids=(stop,))
    delta = one.push(output((*ids_of("a"), stop), LENGTH, total=2))
    assert delta is not None and delta.text == "ab"


def test_a_stop_string_holds_the_last_delta_until_the_engine_has_ended_the_request() -> None:
    one, ids = answer("cd"), ids_of("abcdef")
    assert one.push(output(ids[:5])) is None
    assert one.take_stop_request() == StopRequest("cd", 4)
    assert one.take_stop_request() is None, "the engine is told once"
    assert one.push(output(ids[5:])) is None, "generated before the engine was told: dropped"
    assert one.take_stop_request() is None
    last = one.push(output((), STOP, stop_reason="cd", total=4))
    assert last is not None
    assert (last.text, last.token_ids) == ("ab", ids[:4])
    assert (last.finish_reason, last.stop_reason) == (STOP, "cd")
    assert last.record is not None and last.record.finish == "stop"


@pytest.mark.parametrize("is_told", [True, False])
def test_a_stop_string_on_the_last_allowed_token_is_stop_and_not_length(is_told: bool) -> None:
    """Whether the engine ended the request with that token, or before it was told of the stop."""
    one, ids = answer("b"), ids_of("ab")
    if is_told:
        last = one.push(output(ids, LENGTH, total=2))
    else:
        assert one.push(output(ids)) is None
        last = one.push(output(ids_of("c"), LENGTH, total=3))
    assert last is not None and last.record is not None
    assert (last.finish_reason, last.stop_reason) == (STOP, "b")
    assert last.record.finish == "stop" and last.token_ids == ids


def test_a_stop_that_the_end_of_the_bytes_completes_is_stop() -> None:
    one = answer("�")
    half = _MODELS[0].tokenizer.encode("é")[:1]
    assert len(_MODELS[0].tokenizer.encode("é")) == 2
    last = one.push(output(tuple(half), LENGTH, total=1))
    assert last is not None and (last.finish_reason, last.text) == (STOP, "")


def test_the_half_of_a_stop_that_never_completes_is_shown_at_the_end() -> None:
    one = answer("bx")
    delta = one.push(output(ids_of("ab")))
    assert delta is not None and delta.text == "a"
    last = one.push(output((), FinishReason.CANCELLED, total=2))
    assert last is not None and last.text == "b" and last.finish_reason is FinishReason.CANCELLED


def test_the_record_tells_tokens_by_channel_and_the_first_visible_text() -> None:
    tokenizer = _MODELS[0].tokenizer
    text = CallText(ReasoningText(tokenizer, (), is_open=False), ToolText(HERMES, frozenset({"f"})))
    said = '<think>so</think>Hi <tool_call>{"name": "f", "arguments": {}}</tool_call>'
    ids = ids_of(said)
    whole = drive(answer(text=text), ids, [1] * len(ids), LENGTH)
    assert (whole.reasoning, whole.text, whole.num_calls) == ("so", "Hi", 1)
    assert [call.name for call in whole.calls] == ["f"]
    record = whole.record
    assert record is not None and record.ttft_visible_s is not None and record.ttft_visible_s > 0
    output_tokens = record.output
    assert output_tokens.reasoning and output_tokens.tool and output_tokens.visible
    total = output_tokens.reasoning + output_tokens.tool + output_tokens.visible
    assert total == output_tokens.total == len(ids)


def test_an_answer_without_visible_text_has_no_time_of_it() -> None:
    last = answer().push(output((), LENGTH, total=0))
    assert last is not None and last.record is not None
    assert last.record.ttft_visible_s is None


@given(
    st.text(alphabet="abcé ", min_size=1, max_size=24),
    st.lists(st.integers(1, 5), max_size=24),
    st.lists(st.text(alphabet="abcé ", min_size=1, max_size=3), max_size=3),
)
def test_merged_outputs_give_the_same_answer_as_single_tokens(
    text: str, sizes: list[int], stops: list[str]
) -> None:
    ids = ids_of(text)
    single = drive(answer(*stops), ids, [1] * len(ids), LENGTH)
    merged_outputs = drive(answer(*stops), ids, sizes, LENGTH)
    for name in ("text", "token_ids", "finish_reason", "stop_reason"):
        assert getattr(merged_outputs, name) == getattr(single, name)
    ends = [(text.find(stop) + len(stop), stop) for stop in stops if stop in text]
    if not ends:
        assert (single.text, single.finish_reason) == (text, LENGTH)
        return
    end = min(end for end, _ in ends)
    longest = max((stop for at, stop in ends if at == end), key=len)
    assert (single.finish_reason, single.stop_reason) == (STOP, longest)
    assert single.text == text[: end - len(longest)]
    assert single.record is not None and single.record.finish == "stop"
