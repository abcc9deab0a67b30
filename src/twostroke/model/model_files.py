"""Chooses a model's files among many, by their names: its shards, and its quantisation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from twostroke.errors import ModelNotFound
from twostroke.model.names import HubName, is_safe_file

# Takes the label of a download, bytes done and bytes in all (None: unknown). Must be quick.
Progress = Callable[[str, int, "int | None"], None]

_SHARD_TAIL = r"-(\d{5})-of-(\d{5})\.gguf$"
_MAX_LISTED = 40


def group_shards(files: Iterable[str]) -> dict[str, list[str]]:
    """Group safe GGUF file names into models: first shard's name -> all shards present."""
    groups: dict[str, list[str]] = {}
    for file in sorted(filter(is_safe_file, files)):
        match = re.search(_SHARD_TAIL, file, re.IGNORECASE)
        first = file if match is None else f"{file[: match.start()]}-00001-of-{match[2]}.gguf"
        groups.setdefault(first, []).append(file)
    return groups


def missing_shards(first: str, present: Iterable[str]) -> list[str]:
    """Return the shards that a model lacks, by the name of its first."""
    match = re.search(_SHARD_TAIL, first, re.IGNORECASE)
    if match is None:
        return [] if first in present else [first]
    count, stem = int(match[2]), first[: match.start()]
    there = set(present)
    wanted = (f"{stem}-{i:05d}-of-{match[2]}.gguf" for i in range(1, min(count, 512) + 1))
    return [file for file in wanted if file not in there]


def choose(files: Iterable[str], name: HubName) -> list[str]:
    """Return the files of `name` among those of its repository, first shard first.

    Raises:
        ModelNotFound: none or several fit, or a shard is missing; lists the names that exist.
    """
    groups = group_shards(files)
    if name.file is not None:
        wanted = next(iter(group_shards([name.file])))
        fitting = [first for first in groups if first == wanted]
    else:
        fitting = [first for first in groups if has_quant(first, name.wanted_quant or "")]
    if len(fitting) != 1:
        raise _not_one(groups, fitting, name)
    missing = missing_shards(fitting[0], groups[fitting[0]])
    if missing:
        raise ModelNotFound(
            f"{name.repo_id} lacks a shard of {fitting[0]}", value=", ".join(missing[:5])
        )
    return groups[fitting[0]]


def has_quant(file: str, quant: str) -> bool:
    """Whether the file's name or its folder holds this quantisation as a word."""
    word = re.escape(quant)
    return bool(re.search(rf"(?:^|[-._/ ]){word}(?=[-./ ]|$)", file, re.IGNORECASE))


def _not_one(groups: dict[str, list[str]], fitting: list[str], name: HubName) -> ModelNotFound:
    wanted = name.file or name.wanted_quant
    if not groups:
        return ModelNotFound(
            f"{name.repo_id} holds no GGUF file",
            remedy="Look for a repository of that model whose name ends in -GGUF.",
        )
    listed = fitting or list(groups)
    names = [name.with_file(file) for file in listed[:_MAX_LISTED]]
    more = f" and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
    how_many = "several files" if fitting else "no file"
    return ModelNotFound(
        f"{name.repo_id} has {how_many} for {wanted}", remedy=f"Name one: {', '.join(names)}{more}."
    )
