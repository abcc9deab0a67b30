"""A model's shape from the Hugging Face hub by range requests: headers only, never weights.

From a repository of GGUF files the header of the wanted file is fetched; from one of safetensors
its config.json and the sizes of its weight files.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from twostroke.errors import CorruptCheckpoint, DownloadError, ModelNotFound
from twostroke.formats.gguf_header import GGUFHeader, parse_header
from twostroke.formats.gguf_reader import TruncatedHeader
from twostroke.model.hf_cache import is_offline
from twostroke.model.model_files import choose, group_shards
from twostroke.model.names import HubName
from twostroke.predict.gguf_shape import shape_of_gguf
from twostroke.predict.hf_shape import shape_of_hf_config
from twostroke.predict.shape import ModelShape

_ENDPOINT = "https://huggingface.co"
_TIMEOUT_S = 20.0
_FIRST_BYTES = 1 << 20
_MOST_HEADER_BYTES = 1 << 26
_MOST_JSON_BYTES = 1 << 22
_AGAIN = "Check the network, or give the path of a local file."


def remote_shape(name: HubName, environ: Mapping[str, str] | None = None) -> ModelShape:
    """Return the shape of a model that lies on the hub.

    Raises:
        ModelNotFound: no such repository, revision or file.
        DownloadError: no network, or an answer that cannot be used.
        CorruptCheckpoint: a header or config that breaks its format.
    """
    hub = _Hub(name, os.environ if environ is None else environ)
    sizes = hub.file_sizes()
    if group_shards(sizes):
        files = choose(sizes, name)
        headers = [hub.header(file, shard) for shard, file in enumerate(files)]
        tensors = [tensor for header in headers for tensor in header.tensors]
        return shape_of_gguf(headers[0].metadata, tensors, name=name.repo_id)
    if "config.json" not in sizes:
        raise ModelNotFound(
            f"{name.repo_id} holds neither a GGUF file nor a config.json",
            remedy="Look for a repository of the model itself or of its GGUF files.",
        )
    config = hub.json("config.json")
    weights = [n for f, n in sizes.items() if f.endswith(".safetensors") and "/" not in f]
    total = sum(size for size in weights if size is not None)
    is_known = bool(weights) and None not in weights
    return shape_of_hf_config(
        config, name=name.repo_id, weights_bytes=float(total) if is_known else None
    )


class _Hub:
    """One repository at one revision."""

    def __init__(self, name: HubName, environ: Mapping[str, str]) -> None:
        if is_offline(environ):
            raise DownloadError(
                f"{name.repo_id} is not on this machine and HF_HUB_OFFLINE forbids the network",
                remedy="Unset HF_HUB_OFFLINE, or give a local file or config.json.",
            )
        self._name = name
        self._endpoint = (environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")

    def file_sizes(self) -> dict[str, int | None]:
        """Return the repository's files and their sizes, None where the hub does not say."""
        revision = urllib.parse.quote(self._name.revision, safe="")
        url = f"{self._endpoint}/api/models/{self._name.repo_id}/revision/{revision}?blobs=true"
        data, _ = self._get(url, None, _MOST_JSON_BYTES)
        listing = _object(data, f"the hub's answer about {self._name.repo_id}")
        siblings = listing.get("siblings")
        sizes: dict[str, int | None] = {}
        for entry in siblings if isinstance(siblings, list) else []:
            file = entry.get("rfilename") if isinstance(entry, dict) else None
            if isinstance(file, str):
                size = entry.get("size")
                sizes[file] = size if isinstance(size, int) and size >= 0 else None
        return sizes

    def json(self, file: str) -> dict[str, Any]:
        """Return a small JSON file."""
        data, _ = self._get(self._file_url(file), None, _MOST_JSON_BYTES)
        return _object(data, file)

    def header(self, file: str, shard: int) -> GGUFHeader:
        """Return the header of a GGUF file, asking for more bytes until it is whole."""
        wanted = _FIRST_BYTES
        while True:
            data, size = self._get(self._file_url(file), wanted, wanted)
            if size is None:
                raise DownloadError(f"the hub does not say how long {file} is", remedy=_AGAIN)
            try:
                return parse_header(data, file_size=size, shard=shard)
            except TruncatedHeader as error:
                if len(data) < wanted or wanted >= _MOST_HEADER_BYTES:
                    raise
                wanted = min(max(2 * wanted, error.needed_bytes), _MOST_HEADER_BYTES)

    def _file_url(self, file: str) -> str:
        revision = urllib.parse.quote(self._name.revision, safe="")
        return (
            f"{self._endpoint}/{self._name.repo_id}/resolve/{revision}/{urllib.parse.quote(file)}"
        )

    def _get(self, url: str, first_bytes: int | None, most: int) -> tuple[bytes, int | None]:
        """Return the first bytes of a resource and its whole size; reads never more than `most`."""
        request = urllib.request.Request(url)
        if first_bytes is not None:
            request.add_header("Range", f"bytes=0-{first_bytes - 1}")
        token = _token()
        if token:  # unredirected: storage hosts must not see it
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
                data = reply.read(most)
                return data, _whole_size(reply.headers, reply.status)
        except urllib.error.HTTPError as error:
            raise self._refusal(error.code) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise DownloadError(
                f"could not ask the hub about {self._name.repo_id}",
                value=str(reason)[:160],
                remedy=_AGAIN,
            ) from None

    def _refusal(self, status: int) -> Exception:
        repo = self._name.repo_id
        if status == 404:
            return ModelNotFound(f"the hub has no public {repo} of that revision or file")
        if status in (401, 403):
            return DownloadError(
                f"the hub does not open {repo}",
                value=f"HTTP {status}",
                remedy="Accept its licence on the hub's page and set HF_TOKEN to your token.",
            )
        return DownloadError(f"the hub refused {repo}", value=f"HTTP {status}", remedy=_AGAIN)


def _token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def _whole_size(headers: Any, status: int) -> int | None:
    """Return the size of the whole file from Content-Range, or Content-Length of a whole reply."""
    text = str(headers.get("Content-Range") or "").rpartition("/")[2]
    if status != 206:
        text = str(headers.get("Content-Length") or "")
    return int(text) if text.isascii() and text.isdigit() else None


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise CorruptCheckpoint(f"{name} is no JSON") from None
    if not isinstance(value, dict):
        raise CorruptCheckpoint(f"{name} is no JSON object")
    return value
