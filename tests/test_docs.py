"""README and docs are true: commands parse, links exist, tables match the code."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import typer

from twostroke.cli.app import VERBS, make_app
from twostroke.config import ENVIRONMENT

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL_PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "tests" / "README.md",
    ROOT / "tests" / "golden" / "README.md",
    ROOT / "benchmarks" / "README.md",
]
FOLDERS = ("src", "native", "tests", "benchmarks", "docs", "dev", ".ci")
FILES = [p.relative_to(ROOT).as_posix() for f in FOLDERS for p in (ROOT / f).rglob("*.*")]
FILES += [p.name for p in ROOT.glob("*.*")]
MOST_COLUMNS = 120


def commands(page: Path) -> list[str]:
    """Return every `twostroke ...` line of a page's code blocks."""
    blocks = re.findall(r"```(?:\w*)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?twostroke ", line)]


def test_the_readme_shows_commands() -> None:
    assert len(commands(ROOT / "README.md")) >= 8


@pytest.mark.parametrize(
    "line", [pytest.param(c, id=f"{p.name}: {c}"[:80]) for p in PAGES for c in commands(p)]
)
def test_a_command_that_is_shown_has_only_flags_that_exist(line: str) -> None:
    words = shlex.split(line)
    command = typer.main.get_command(make_app())
    verb = command.commands[words[1]]  # type: ignore[attr-defined]
    known = {flag for p in verb.params for flag in (*p.opts, *p.secondary_opts)} | {"--help"}
    used = {word.split("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
    assert used <= known


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_lines_are_short(page: Path) -> None:
    """Table rows, code blocks and lines that are one long link cannot break."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    long = [line for line in text.splitlines() if len(line) > MOST_COLUMNS]
    assert not [x for x in long if not x.startswith(("|", "    ")) and " " in x.strip()]


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_source_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = set(re.findall(r"`([\w./-]+\.(?:py|md|h|cpp|inc|sh))`", text)) - {"llama.cpp"}
    assert not {
        name for name in names if not any(f"/{path}".endswith(f"/{name}") for path in FILES)
    }


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    local = [t for t in targets if not t.startswith(("http:", "https:", "mailto:"))]
    missing = [t for t in local if not (page.parent / t).exists()]
    assert not missing


def test_the_index_of_the_pages_lists_every_page_once() -> None:
    folder = ROOT / "docs"
    listed = re.findall(
        r"^- \[.+?\]\(([\w-]+\.md)\)", (folder / "README.md").read_text(), re.MULTILINE
    )
    assert sorted(listed) == sorted(p.name for p in folder.glob("*.md") if p.name != "README.md")


def test_every_benchmark_is_in_the_table_of_its_page() -> None:
    folder = ROOT / "benchmarks"
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", (folder / "README.md").read_text(), re.MULTILINE)
    assert {path.name for path in folder.glob("*.py")} <= set(listed)
    assert all((folder / name).exists() for name in listed)


def test_the_page_of_variables_is_the_table_of_the_code() -> None:
    text = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert rows == [(v.name, v.default, v.reason) for v in ENVIRONMENT]


def option_rows(verb: str) -> list[tuple[str, str, str]]:
    """The options of a verb as docs/options.md writes them: names, default, meaning."""
    rows = []
    for option in import_module(VERBS[verb]).OPTIONS:
        names = ", ".join(f"`{name}`" for name in option.flags or (option.metavar,))
        has_default = option.default is not None and option.type is not bool
        default = f"`{option.default}`" if has_default else ""
        rows.append((names, default, (option.help or "").replace("|", "\\|")))
    return rows


@pytest.mark.parametrize("verb", VERBS)
def test_the_page_of_options_is_the_table_of_the_code(verb: str) -> None:
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {verb}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert lines == [f"| {' | '.join(row)} |" for row in option_rows(verb)]


def test_the_readme_names_every_tensor_type_and_family_that_runs() -> None:
    from twostroke.formats.quant import DEQUANTIZABLE
    from twostroke.model.families import FAMILIES

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {t.name for t in DEQUANTIZABLE} <= set(re.findall(r"\w+", text))
    assert set(FAMILIES) <= set(re.findall(r"\w+", text))
