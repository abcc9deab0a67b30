"""Make sampling.json: rows of logits, parameters and the reference's choices. No arguments.

Every backend's sampler must choose the same tokens; log-probabilities agree within 1e-5.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np

from twostroke.request import SamplingParams
from twostroke.sampling import row_sampling, sample, uniform
from twostroke.step import SampleSpec

TARGET = Path(__file__).with_name("sampling.json")
VARIANTS: tuple[dict, ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 1000},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 12, "top_p": 0.8, "min_p": 0.02, "temperature": 0.7},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"temperature": 0.0, "presence_penalty": 1.5},
    {"frequency_penalty": 0.7, "presence_penalty": -0.5},
    {"temperature": 0.0, "logit_bias": ((3, 100.0),)},
    {"temperature": 0.0, "logit_bias": ((3, -100.0), (4, 2.5))},
    {"logit_bias": ((1, 4.0),), "repetition_penalty": 1.2, "frequency_penalty": 0.3, "top_p": 0.95},
)


def main() -> None:
    rng = random.Random(11)
    rows = []
    for index, variant in enumerate(VARIANTS * 4):
        size = rng.choice([8, 33, 64])
        logits = np.array([rng.gauss(0, 3) for _ in range(size)], np.float32)
        if index % 5 == 0:
            logits[rng.randrange(size)] = logits.max()  # a tie at the top
        if index % 7 == 0:
            logits[: size // 4] = -np.inf  # as a grammar mask leaves it
        params = {"temperature": 1.0, "logprobs": 3, **variant}
        spec = SampleSpec(
            SamplingParams(**params),
            rng.getrandbits(64),
            rng.randrange(4),
            rng.randrange(100_000),
            tuple(rng.randrange(size) for _ in range(5)),
            tuple(rng.randrange(size) for _ in range(7)),
        )
        chosen = sample(logits, row_sampling(spec))
        rows.append(
            {
                "logits": [None if np.isneginf(x) else float(x) for x in logits],
                "params": params,
                "seed": spec.seed,
                "choice": spec.choice,
                "position": spec.position,
                "prompt_ids": spec.prompt_ids,
                "output_ids": spec.output_ids,
                "token_id": chosen.token_id,
                "logprob": chosen.logprob.logprob,
                "top": [[i, None if np.isneginf(p) else p] for i, p in chosen.logprob.top],
            }
        )
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64 - 1, 3, 131_071)]
    uniforms = [{"key": key, "u": uniform(*key)} for key in keys]
    lines = ",\n".join(json.dumps(r) for r in rows)
    TARGET.write_text(f'{{"uniform": {json.dumps(uniforms)},\n"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
