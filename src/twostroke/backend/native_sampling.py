"""SampleSpecs as the records that the native sampler reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twostroke.errors import InvalidSampling
from twostroke.step import SampleSpec

SAMPLE_RECORD = np.dtype(
    [
        ("seed", "<u8"),
        ("position", "<u8"),
        ("temperature", "<f4"),
        ("top_p", "<f4"),
        ("min_p", "<f4"),
        ("repetition_penalty", "<f4"),
        ("presence_penalty", "<f4"),
        ("frequency_penalty", "<f4"),
        ("top_k", "<i4"),
        ("choice", "<u4"),
        ("num_logprobs", "<i4"),  # -1: none
        ("target_id", "<i4"),  # -1: none
        ("mask", "<i4"),  # -1: none
        ("num_bias", "<i4"),
        ("bias_begin", "<i4"),
        ("num_prompt", "<i4"),
        ("prompt_begin", "<i4"),
        ("num_output", "<i4"),
        ("output_begin", "<i4"),
        ("unused", "<i4"),
    ]
)
_NO_IDS = np.zeros(0, np.int32)
_NO_BIASES = np.zeros(0, np.float32)
_NO_MASKS = np.zeros((0, 0), np.uint32)


class SampleArrays(NamedTuple):
    """Records of R rows, and the ids and biases that their ranges point into."""

    records: npt.NDArray[np.void]  # [R] SAMPLE_RECORD
    ids: npt.NDArray[np.int32]
    biases: npt.NDArray[np.float32]  # bias i goes with id i
    masks: npt.NDArray[np.uint32]  # [M, words], bit i of a row: token i is allowed


def _plain(target: int) -> tuple[float, ...]:
    return (0, 0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, 0, -1, target, -1, 0, 0, 0, 0, 0, 0, 0)


def encode_samples(
    specs: tuple[SampleSpec | None, ...], targets: tuple[int, ...], vocab_size: int
) -> SampleArrays:
    """Return the records of a step's wanted rows; a row without a spec is scored only.

    Raises:
        InvalidSampling: logit_bias names an id outside the vocabulary.
    """
    records = np.empty(len(specs), SAMPLE_RECORD)
    bias_ids: list[int] = []
    biases: list[float] = []
    for spec in specs:
        if spec is not None and spec.params.logit_bias:
            _check_bias(spec, vocab_size)
            bias_ids += [i for i, _ in spec.params.logit_bias]
            biases += [b for _, b in spec.params.logit_bias]
    ids: list[npt.NDArray[np.int32]] = [np.array(bias_ids, np.int32)] if bias_ids else []
    num_ids, bias_at = len(bias_ids), 0
    masks: list[bytes] = []

    def put(values: tuple[int, ...]) -> tuple[int, int]:
        nonlocal num_ids
        begin = num_ids
        ids.append(np.array(values, np.int32))
        num_ids += len(values)
        return len(values), begin

    for row, (spec, target) in enumerate(zip(specs, targets, strict=True)):
        if spec is None:
            records[row] = _plain(target)
            continue
        p = spec.params
        prompt = put(spec.prompt_ids) if p.repetition_penalty != 1.0 else (0, 0)
        output = (0, 0)
        if prompt[0] or p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0:
            output = put(spec.output_ids)
        records[row] = (
            *(spec.seed, spec.position, p.temperature, p.top_p, p.min_p),
            *(p.repetition_penalty, p.presence_penalty, p.frequency_penalty),
            *(min(p.top_k, vocab_size), spec.choice, -1 if p.logprobs is None else p.logprobs),
            *(target, -1 if spec.mask is None else len(masks), len(p.logit_bias), bias_at),
            *(*prompt, *output, 0),
        )
        if spec.mask is not None:
            masks.append(spec.mask)
        bias_at += len(p.logit_bias)
    return SampleArrays(
        records,
        np.concatenate(ids) if ids else _NO_IDS,
        np.array(biases, np.float32) if biases else _NO_BIASES,
        np.frombuffer(b"".join(masks), "<u4").reshape(len(masks), -1) if masks else _NO_MASKS,
    )


def _check_bias(spec: SampleSpec, vocab_size: int) -> None:
    worst = max(i for i, _ in spec.params.logit_bias)
    if worst >= vocab_size:
        raise InvalidSampling(
            "logit_bias names an id outside the vocabulary",
            value=worst,
            limit=f"< {vocab_size}",
            param="logit_bias",
        )
