"""SampleSpecs as the records that the native sampler reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twostroke.backend.arrays import NO_TARGET
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
        ("num_top", "<i4"),
        ("target_id", "<i4"),
        ("mask", "<i4"),
        ("num_bias", "<i4"),
        ("bias_begin", "<i4"),
        ("num_prompt", "<i4"),
        ("prompt_begin", "<i4"),
        ("num_output", "<i4"),
        ("output_begin", "<i4"),
        ("wants_logprobs", "?"),
        ("wants_target", "?"),
        ("has_mask", "?"),
        ("unused", "u1"),
    ]
)


class SampleArrays(NamedTuple):
    """Records of R rows, and the ids and biases that their ranges point into."""

    records: npt.NDArray[np.void]  # [R] SAMPLE_RECORD
    ids: npt.NDArray[np.int32]
    biases: npt.NDArray[np.float32]  # bias i goes with id i
    masks: npt.NDArray[np.uint32]  # [M, words], bit i of a row: token i is allowed


_NO_IDS = np.zeros(0, np.int32)
_NO_BIASES = np.zeros(0, np.float32)
_NO_MASKS = np.zeros((0, 0), np.uint32)
NO_SAMPLES = SampleArrays(np.empty(0, SAMPLE_RECORD), _NO_IDS, _NO_BIASES, _NO_MASKS)


class _Record(NamedTuple):
    """One row, field by field as in SAMPLE_RECORD. By default the row is scored only."""

    seed: int = 0
    position: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_k: int = 0
    choice: int = 0
    num_top: int = 0
    target_id: int = 0
    mask: int = 0
    num_bias: int = 0
    bias_begin: int = 0
    num_prompt: int = 0
    prompt_begin: int = 0
    num_output: int = 0
    output_begin: int = 0
    wants_logprobs: bool = False
    wants_target: bool = False
    has_mask: bool = False
    unused: int = 0


assert _Record._fields == SAMPLE_RECORD.names, "a record is written by position"


class _Encoder:
    """Collects the ids, biases and masks that the records of one step point into."""

    def __init__(self, specs: tuple[SampleSpec | None, ...]) -> None:
        pairs = [pair for spec in specs if spec is not None for pair in spec.params.logit_bias]
        self._biases = [bias for _, bias in pairs]
        self._ids = [np.array([token_id for token_id, _ in pairs], np.int32)] if pairs else []
        self._num_ids = len(pairs)
        self._num_biases = 0  # of the rows encoded so far
        self._masks: list[bytes] = []

    def record(self, spec: SampleSpec | None, target: int, vocab_size: int) -> _Record:
        """Return the record of the next row."""
        has_target = target != NO_TARGET
        target_id = target if has_target else 0
        if spec is None:
            return _Record(target_id=target_id, wants_target=has_target)
        p = spec.params
        has_repetition_penalty = p.repetition_penalty != 1.0
        num_prompt, prompt_begin = self._add_ids(spec.prompt_ids, has_repetition_penalty)
        num_output, output_begin = self._add_ids(
            spec.output_ids,
            has_repetition_penalty or bool(p.presence_penalty or p.frequency_penalty),
        )
        return _Record(
            seed=spec.seed,
            position=spec.position,
            temperature=p.temperature,
            top_p=p.top_p,
            min_p=p.min_p,
            repetition_penalty=p.repetition_penalty,
            presence_penalty=p.presence_penalty,
            frequency_penalty=p.frequency_penalty,
            top_k=min(p.top_k, vocab_size),
            choice=spec.choice,
            num_top=p.logprobs or 0,
            target_id=target_id,
            mask=self._add_mask(spec.mask),
            num_bias=len(p.logit_bias),
            bias_begin=self._next_biases(len(p.logit_bias)),
            num_prompt=num_prompt,
            prompt_begin=prompt_begin,
            num_output=num_output,
            output_begin=output_begin,
            wants_logprobs=p.logprobs is not None,
            wants_target=has_target,
            has_mask=spec.mask is not None,
        )

    def arrays(self, records: npt.NDArray[np.void]) -> SampleArrays:
        """Return the arrays of all rows encoded."""
        masks = b"".join(self._masks)
        return SampleArrays(
            records,
            np.concatenate(self._ids) if self._ids else _NO_IDS,
            np.array(self._biases, np.float32) if self._biases else _NO_BIASES,
            np.frombuffer(masks, "<u4").reshape(len(self._masks), -1) if masks else _NO_MASKS,
        )

    def _add_ids(self, values: tuple[int, ...], is_needed: bool) -> tuple[int, int]:
        """Return how many ids the row has, and where they begin."""
        if not is_needed:
            return 0, 0
        begin = self._num_ids
        self._ids.append(np.array(values, np.int32))
        self._num_ids += len(values)
        return len(values), begin

    def _next_biases(self, count: int) -> int:
        begin = self._num_biases
        self._num_biases += count
        return begin

    def _add_mask(self, mask: bytes | None) -> int:
        if mask is None:
            return 0
        self._masks.append(mask)
        return len(self._masks) - 1


def encode_samples(
    specs: tuple[SampleSpec | None, ...], targets: tuple[int, ...], vocab_size: int
) -> SampleArrays:
    """Return the records of a step's wanted rows; a row without a spec is scored only.

    Raises:
        InvalidSampling: logit_bias names an id outside the vocabulary.
    """
    for spec in specs:
        if spec is not None and spec.params.logit_bias:
            _check_bias(spec, vocab_size)
    encoder = _Encoder(specs)
    records = np.empty(len(specs), SAMPLE_RECORD)
    for row, (spec, target) in enumerate(zip(specs, targets, strict=True)):
        records[row] = encoder.record(spec, target, vocab_size)
    return encoder.arrays(records)


def _check_bias(spec: SampleSpec, vocab_size: int) -> None:
    worst = max(i for i, _ in spec.params.logit_bias)
    if worst >= vocab_size:
        raise InvalidSampling(
            "logit_bias names an id outside the vocabulary",
            value=worst,
            limit=f"< {vocab_size}",
            param="logit_bias",
        )
