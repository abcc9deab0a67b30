"""llama-server in all its log eras, and its JSON timings."""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

import json

import pytest

from twostroke_doctor import parse


def slot_block(slot, task, prompt, decode, *, draft="", release=True, stamp="", cached=None):
    """Render era (c), or era (d) where a stamp is given: then every line has slot and task."""
    (p_ms, p_n), (d_ms, d_n) = prompt, decode
    head = f"{stamp}slot print_timing: id {slot:2d} | task {task} | "
    each = head if stamp else ""
    lines = [] if stamp else [head]
    if cached is not None:
        lines.insert(
            0,
            f"{stamp}slot update_slots: id {slot:2d} | task {task} | cached n_tokens = {cached}, memory_seq_rm [{cached}, end)",
        )
    lines += [
        f"{each}prompt eval time = {p_ms:10.2f} ms / {p_n:5d} tokens ({p_ms / p_n:8.2f} ms per token, {p_n / p_ms * 1000:8.2f} tokens per second)",
        f"{each}       eval time = {d_ms:10.2f} ms / {d_n:5d} tokens ({d_ms / d_n:8.2f} ms per token, {d_n / d_ms * 1000:8.2f} tokens per second)",
        f"{each}      total time = {p_ms + d_ms:10.2f} ms / {p_n + d_n:5d} tokens",
    ]
    if draft:
        lines.append(each + draft)
    if release:
        lines.append(
            f"{stamp}slot      release: id {slot:2d} | task {task} | stop processing: n_past = {p_n + d_n}, truncated = 0"
        )
    return "\n".join(lines) + "\n"


ROWS = [  # name, (ms, n) prompt, (ms, n) eval, pp, tg, prefill share
    ("slot sample", (915.13, 51), (23038.87, 275), 55.73, 11.94, 0.038),
    ("#13194 task 2188", (12454.58, 9683), (7658.14, 106), 777.46, 13.84, 0.619),
    ("#9492", (39264.22, 685), (40157.40, 327), 17.45, 8.14, 0.494),
]


@pytest.mark.parametrize(
    "stamp", ["", "4.12.345.678 I ", "[45723] ", "2026-06-10 20:02:40.771 [Info] (Process) "]
)
@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_each_slot_row_is_read_to_its_numbers(row, stamp):
    _, prompt, decode, pp, tg, share = row
    (record,) = parse(slot_block(3, 2188, prompt, decode, stamp=stamp)).records
    assert record.engine == "llama-server" and record.id == "2188"
    assert record.phases.prefill_s == pytest.approx(prompt[0] / 1000)
    assert record.phases.decode_s == pytest.approx(decode[0] / 1000)
    assert (record.prompt.new, record.output.total) == (prompt[1], decode[1])
    assert record.e2e_s == pytest.approx((prompt[0] + decode[0]) / 1000)
    assert record.reported["prefill_tok_s"] == pytest.approx(pp, abs=0.01)
    assert record.reported["decode_tok_s"] == pytest.approx(tg, abs=0.01)
    assert record.prefill_tok_s == pytest.approx(pp, abs=0.01)
    assert record.decode_tok_s == pytest.approx((decode[1] - 1) / decode[0] * 1000)
    assert prompt[0] / (prompt[0] + decode[0]) == pytest.approx(share, abs=0.0006)
    assert record.ctx_end == prompt[1] + decode[1]
    assert record.meter.flags == ()


def test_two_slots_are_told_apart_and_come_out_once_each():
    first, second = (
        slot_block(0, 7, (100.0, 40), (900.0, 30)),
        slot_block(1, 9, (250.0, 90), (800.0, 20)),
    )
    records = parse(first + second).records
    assert [(r.id, r.prompt.new, r.output.total) for r in records] == [("7", 40, 30), ("9", 90, 20)]


def test_containers_in_one_file_do_not_mix():
    blocks = [
        slot_block(0, task, (100.0 * task, 40), (900.0, 30), stamp="0.00.001.000 I ").splitlines()
        for task in (1, 2)
    ]
    mixed = [
        f"{name}  | {line}"
        for pair in zip(*blocks, strict=True)
        for name, line in zip(("a-1", "b-1"), pair, strict=True)
    ]
    records = parse("\n".join(mixed)).records
    assert {(r.id, r.phases.prefill_s) for r in records} == {("1", 0.1), ("2", 0.2)}


def test_cached_and_total_prompt_tokens_come_from_the_lines_before():
    text = (
        "slot launch_slot_: id  0 | task 12 | processing task\n"
        "slot update_slots: id  0 | task 12 | new prompt, n_ctx_slot = 8192, n_keep = 0, task.n_tokens = 1100\n"
        + slot_block(0, 12, (400.0, 100), (500.0, 20), cached=1000)
    )
    parsed = parse(text)
    (record,) = parsed.records
    assert (record.prompt.total, record.prompt.cached, record.prompt.new) == (1100, 1000, 100)
    assert parsed.fact("n_ctx_slot").value == 8192


def test_kv_cache_rm_of_older_builds_tells_the_cached_part():
    text = "slot update_slots: id  0 | task 5 | kv cache rm [812, end)\n" + slot_block(
        0, 5, (400.0, 100), (500.0, 20)
    )
    (record,) = parse(text).records
    assert (record.prompt.total, record.prompt.cached, record.prompt.new) == (912, 812, 100)


@pytest.mark.parametrize(
    "words",
    [
        "draft acceptance rate = 0.57576 (  171 accepted /   297 generated)",
        "draft acceptance = 0.57576 ( 171 accepted / 297 generated), mean len = 2.71",
    ],
)
@pytest.mark.parametrize("stamp", ["", "0.01.002.003 I "])
def test_draft_acceptance_is_read(words, stamp):
    (record,) = parse(slot_block(0, 5, (400.0, 100), (500.0, 20), draft=words, stamp=stamp)).records
    assert (record.speculation.accepted, record.speculation.drafted) == (171, 297)


def test_a_request_still_in_prefill_is_partial():
    lines = "".join(
        f"0.05.{i:03d}.000 I slot print_timing: id  0 | task 3 | prompt processing, n_tokens = {n:6d}, progress = {p:.2f}, t = {t:.2f} s / {n / t:.2f} tokens per second\n"
        for i, (n, p, t) in enumerate(
            [(160, 0.01, 2.9), (17453, 0.68, 324.0), (17653, 0.69, 327.87)]
        )
    )
    (record,) = parse(lines).records
    assert record.meter.flags == ("partial",)
    assert record.phases.prefill_s == 327.87 and record.prompt.new == 17653 and record.chunks == 3
    assert record.prefill_tok_s == pytest.approx(53.84, abs=0.005)
    assert record.phases.decode_s is None and record.output.total is None


def test_a_slow_past_does_not_hide_the_rate_of_now():
    text = "1.02.003.004 I slot print_timing: id  0 | task 3 | n_decoded = 22968, tg = 30.51 t/s, tg_3s = 42.89 t/s\n"
    (record,) = parse(text).records
    assert record.output.total == 22968
    assert record.reported == {"decode_tok_s": 30.51, "decode_now_tok_s": 42.89}
    assert record.phases.decode_s == pytest.approx(22968 / 30.51)
    assert record.meter.flags == ("partial", "time_derived")


def test_progress_gives_way_to_the_final_timing():
    progress = "0.00.009.000 I slot print_timing: id  0 | task 8 | n_gen = 15, tg = 99.00 t/s\n"
    (record,) = parse(
        progress + slot_block(0, 8, (400.0, 100), (500.0, 20), stamp="0.00.010.000 I ")
    ).records
    assert record.output.total == 20 and record.phases.decode_s == 0.5 and record.meter.flags == ()
    assert record.reported["decode_tok_s"] == 40.0


def test_forced_reprocessing_keeps_its_reason():
    text = "slot update_slots: id  0 | task 2188 | forcing full prompt re-processing due to lack of cache data (likely due to SWA or hybrid/recurrent memory, see the docs)\n"
    fact = parse(text).fact("full_reprocess")
    assert fact.value.startswith("lack of cache data (likely due to SWA")
    assert parse("forcing full prompt re-processing\n").fact("full_reprocess").value == "not said"


def test_json_log_era():
    def line(**fields):
        return (
            json.dumps(
                {
                    "function": "print_timings",
                    "level": "INFO",
                    "line": 313,
                    "slot_id": 0,
                    "task_id": 7,
                    "tid": "1",
                    "timestamp": 1711000000,
                    **fields,
                }
            )
            + "\n"
        )

    text = (
        line(
            msg="prompt eval time     =    1327.23 ms /   406 tokens (    3.27 ms per token,   305.90 tokens per second)",
            n_prompt_tokens_processed=406,
            n_tokens_second=305.9,
            t_prompt_processing=1327.23,
            t_token=3.269,
        )
        + line(
            msg="generation eval time =    2000.00 ms /    50 runs   (   40.00 ms per token,    25.00 tokens per second)",
            n_decoded=50,
            n_tokens_second=25.0,
            t_token=40.0,
            t_token_generation=2000.0,
        )
        + line(msg="          total time =    3327.23 ms")
    )
    (record,) = parse(text).records
    assert (record.phases.prefill_s, record.prompt.new) == (1.32723, 406)
    assert record.prefill_tok_s == pytest.approx(305.9, abs=0.01)
    assert (record.phases.decode_s, record.output.total, record.e2e_s) == (2.0, 50, 3.32723)


def test_text_era_of_mid_2024():
    def line(words, extra):
        return f'INFO [           print_timings] {words} | tid="1" timestamp=1725600000 id_slot=0 id_task=4 {extra}\n'

    text = (
        line(
            "prompt eval time     =    3194.22 ms /   783 tokens (    4.08 ms per token,   245.13 tokens per second)",
            "t_prompt_processing=3194.22 n_prompt_tokens_processed=783 t_token=4.08 n_tokens_second=245.13",
        )
        + line(
            "generation eval time =   40157.40 ms /   327 runs   (  122.81 ms per token,     8.14 tokens per second)",
            "t_token_generation=40157.4 n_decoded=327",
        )
        + line("          total time =   43351.62 ms", "t_total=43351.62")
    )
    (record,) = parse(text).records
    assert record.id == "4" and record.prompt.new == 783 and record.output.total == 327
    assert record.prefill_tok_s == pytest.approx(245.13, abs=0.01)
    assert record.e2e_s == pytest.approx(43.35162) and record.meter.flags == ()


DOC_TIMINGS = {
    "cache_n": 236,
    "prompt_n": 1,
    "prompt_ms": 30.958,
    "prompt_per_token_ms": 30.958,
    "prompt_per_second": 32.301828283480845,
    "predicted_n": 35,
    "predicted_ms": 661.064,
    "predicted_per_token_ms": 18.887,
    "predicted_per_second": 52.94494935437416,
}


def test_one_token_after_a_cache_hit_is_no_prefill_speed():
    (record,) = parse(json.dumps({"content": "x", "stop": True, "timings": DOC_TIMINGS})).records
    assert (record.prompt.total, record.prompt.cached, record.prompt.new) == (237, 236, 1)
    assert record.prefill_tok_s is None
    assert record.reported["prefill_tok_s"] == pytest.approx(32.30, abs=0.01)
    assert record.reported["decode_tok_s"] == pytest.approx(52.94, abs=0.01)
    assert (record.output.total, record.phases.decode_s) == (35, pytest.approx(0.661064))


def test_without_cache_n_the_cached_part_follows_from_usage():
    timings = {
        "prompt_n": 1,
        "prompt_ms": 15.079,
        "prompt_per_second": 66.317,
        "predicted_n": 5,
        "predicted_ms": 48.984,
        "predicted_per_second": 102.07,
    }
    reply = {
        "object": "chat.completion",
        "id": "chatcmpl-1",
        "usage": {"prompt_tokens": 15, "completion_tokens": 5},
        "timings": timings,
    }
    (record,) = parse(json.dumps(reply)).records
    assert (record.prompt.total, record.prompt.cached, record.prompt.new) == (15, 14, 1)
    assert record.output.total == 5 and record.reported["decode_tok_s"] == 102.07


def test_a_stream_with_timings_in_every_chunk_is_one_request():
    def chunk(n, **more):
        timings = {
            **DOC_TIMINGS,
            "predicted_n": n,
            "predicted_ms": n * 20.0,
            "predicted_per_second": 50.0,
        }
        return (
            "data: "
            + json.dumps(
                {
                    "object": "chat.completion.chunk",
                    "id": "chatcmpl-9",
                    "choices": [],
                    "timings": timings,
                    **more,
                }
            )
            + "\n\n"
        )

    text = "".join(chunk(n) for n in range(1, 36)) + "data: [DONE]\n\n"
    (record,) = parse(text).records
    assert record.output.total == 35 and record.id == "chatcmpl-9"


def test_prompt_progress_leaves_the_cached_part_out():
    chunk = {
        "object": "chat.completion.chunk",
        "id": "c",
        "choices": [],
        "prompt_progress": {"total": 1000, "cache": 200, "processed": 600, "time_ms": 50},
    }
    assert parse("data: " + json.dumps(chunk)).fact("prefill_progress").value == 0.5


def test_drafts_of_json_timings_are_kept():
    (record,) = parse(
        json.dumps({"timings": {**DOC_TIMINGS, "draft_n": 297, "draft_n_accepted": 171}})
    ).records
    assert (record.speculation.drafted, record.speculation.accepted) == (297, 171)


WHOLE = """\
main: server is listening on http://127.0.0.1:8080 - starting the main loop
srv  update_slots: all slots are idle
slot get_availabl: id  3 | task -1 | selected slot by LRU, t_last = -1
slot launch_slot_: id  3 | task 0 | processing task
slot update_slots: id  3 | task 0 | new prompt, n_ctx_slot = 8192, n_keep = 0, task.n_tokens = 4660
slot update_slots: id  3 | task 0 | n_tokens = 1000, memory_seq_rm [1000, end)
slot update_slots: id  3 | task 0 | prompt processing progress, n_tokens = 3048, batch.n_tokens = 2048, progress = 0.654077
slot update_slots: id  3 | task 0 | n_tokens = 3048, memory_seq_rm [3048, end)
slot update_slots: id  3 | task 0 | prompt processing progress, n_tokens = 4660, batch.n_tokens = 1612, progress = 1.000000
slot update_slots: id  3 | task 0 | prompt done, n_tokens = 4660, batch.n_tokens = 1612
slot print_timing: id  3 | task 0 |
prompt eval time =    4000.00 ms /  3660 tokens (    1.09 ms per token,   915.00 tokens per second)
       eval time =    2000.00 ms /    51 tokens (   39.22 ms per token,    25.50 tokens per second)
      total time =    6000.00 ms /  3711 tokens
slot      release: id  3 | task 0 | stop processing: n_tokens = 4710, truncated = 0
srv  log_server_r: request: POST /v1/chat/completions 127.0.0.1 200
"""


def test_a_whole_server_log_gives_one_request_with_its_cache_and_chunks():
    parsed = parse(WHOLE)
    (record,) = parsed.records
    assert (record.prompt.total, record.prompt.cached, record.prompt.new) == (4660, 1000, 3660)
    assert (record.chunks, record.ctx_end, record.output.total) == (2, 4710, 51)
    assert record.decode_tok_s == 25 and record.prefill_tok_s == 915
    assert record.meter.flags == () and record.meter.lines[-1] == 15
    assert parsed.num_lines == 16
