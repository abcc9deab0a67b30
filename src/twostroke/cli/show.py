"""`twostroke show`: the facts of a model's file."""

from __future__ import annotations

from dataclasses import asdict

from twostroke.cli.options import JSON
from twostroke.cli.table import Option
from twostroke.cli.text_output import print_json, print_rows, printable, size_text
from twostroke.formats.gguf import open_gguf
from twostroke.formats.summary import GGUFSummary, summarize
from twostroke.model.hub import ModelFiles, resolve
from twostroke.predict.kv import KvFormat

OPTIONS = (
    Option(
        "name",
        help="A model's name, or the path of a .gguf file.",
        is_required=True,
        metavar="NAME",
    ),
    JSON,
)


def command(name: str, *, as_json: bool) -> None:
    """Show a model's architecture, tensor types, context, KV bytes per token and tokenizer.

    \b
    Examples:
      twostroke show smollm2:135m
      twostroke show ./model.gguf --json
    """
    files = resolve(name, download=False)
    with open_gguf(files.path) as model:
        summary = summarize(model)
    if as_json:
        place = {
            "model": printable(files.name),
            "source": files.source,
            "paths": [printable(str(path)) for path in files.paths],
            "sha256": files.sha256,
        }
        facts = asdict(summary)
        del facts["kv_values_per_token"]
        print_json(place | facts | {"kv_bytes_per_token": _kv_bytes(summary)})
    else:
        print_rows(_rows(files, summary))


def _rows(files: ModelFiles, summary: GGUFSummary) -> list[tuple[str, str]]:
    shards = f" and {len(files.paths) - 1} more shards" if len(files.paths) > 1 else ""
    tokenizer = " / ".join(filter(None, (summary.tokenizer, summary.pre_tokenizer)))
    return [
        ("model", f"{summary.name or 'unnamed'} ({files.name})"),
        ("file", f"{files.path}{shards}, {size_text(summary.file_bytes)}"),
        ("sha256", _known(files.sha256)),
        ("architecture", _known(summary.architecture)),
        ("license", _known(summary.license)),
        ("parameters", f"{summary.num_parameters / 1e6:,.1f} million"),
        ("context", _known(summary.context_length, " tokens")),
        ("layers", _known(summary.num_layers)),
        ("heads", f"{_known(summary.num_heads)} query, {_kv_heads(summary)} key-value"),
        ("KV cache", _kv_cache(summary)),
        ("tokenizer", f"{tokenizer or 'unknown'}, {_known(summary.vocab_size, ' tokens')}"),
        ("chat template", "yes" if summary.has_chat_template else "none"),
        *(
            (
                f"  {share.type}",
                f"{share.num_tensors} tensors, {size_text(share.nbytes)}"
                f" ({100 * share.nbytes / max(summary.tensor_bytes, 1):.1f} %)",
            )
            for share in summary.types
        ),
    ]


def _known(value: str | int | None, unit: str = "") -> str:
    if value is None:
        return "unknown"
    return f"{value:,}{unit}" if isinstance(value, int) else value


def _kv_heads(summary: GGUFSummary) -> str:
    heads = summary.num_kv_heads
    if heads is None:
        return "unknown"
    return str(heads[0]) if len(heads) == 1 else f"{min(heads)} to {max(heads)}"


def _kv_bytes(summary: GGUFSummary) -> int | None:
    values = summary.kv_values_per_token
    return None if values is None else int(KvFormat("bf16").row_bytes(1, values))


def _kv_cache(summary: GGUFSummary) -> str:
    kv_bytes = _kv_bytes(summary)
    if kv_bytes is None:
        return "unknown bytes per token"
    text = f"{kv_bytes:,} bytes per token (f16 or bf16)"
    if summary.sliding_window is None:
        return text
    return f"{text}, at most; some layers keep only {summary.sliding_window:,} tokens"
