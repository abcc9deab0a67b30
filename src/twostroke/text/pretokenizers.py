"""How byte-level BPE models cut text into words before merging, by the name a GGUF file gives (`tokenizer.ggml.pre`).

A wrong cut gives other ids without any error, so an unknown name is refused and a missing one is said loudly.
Source: the `pre_tokenizer` entries of each family's published tokenizer.json; the names are those of llama.cpp's converter.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from twostroke.errors import UnsupportedModel

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_TAIL}"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_CASED_TAIL}"
)
# The look-behind changes no match; without it a long run of spaces inside the text takes quadratic time.
_TRAILING_SPACE = r"(?<!\s)\s+$"
_CJK = r"[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Letters that have case, as DeepSeek LLM lists them.
_DEEPSEEK_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌ"
    r"ῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One family's way to cut text.

    patterns are applied in turn, each cutting what is left; `digits` first splits off numerals (1: one by one, 0: in
    runs, None: not at all).
    """

    patterns: tuple[str, ...] = ()
    gpt2_words: bool = False
    digits: int | None = None
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return the `tokenizers` object that cuts and maps bytes to characters."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits is not None:
            steps.append(pre_tokenizers.Digits(individual_digits=self.digits == 1))
        steps += [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in self.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2_words))
        return pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        """Return the normaliser that runs before the cut, None for none."""
        return normalizers.NFC() if self.nfc else None


_GPT2_WORDS = PreTokenizer(gpt2_words=True)
_DIGITS_FIRST = PreTokenizer(gpt2_words=True, digits=1)
_LLAMA3_LIKE = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_QWEN2_LIKE = PreTokenizer((_QWEN2,), nfc=True)
_DEEPSEEK_V3_LIKE = PreTokenizer((r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_V3))
_GPT4O_LIKE = PreTokenizer((_GPT4O,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "mellum", "exaone4", "gigachat"), _GPT2_WORDS),
    **dict.fromkeys(("trillion", "granite-docling", "jais", "modern-bert", "a.x-4.0"), _GPT2_WORDS),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS_FIRST),
    **dict.fromkeys(("exaone", "minerva-7b", "mellum2"), _DIGITS_FIRST),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1"), _LLAMA3_LIKE),
    **dict.fromkeys(("pixtral", "midm-2.0", "lfm2"), _LLAMA3_LIKE),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "megrez", "kormo", "f2llmv2"), _QWEN2_LIKE),
    **dict.fromkeys(("deepseek-r1-qwen", "hunyuan", "stablelm2"), PreTokenizer((_QWEN2,))),
    **dict.fromkeys(("solar-open", "grok-2"), PreTokenizer((_QWEN2,))),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK_V3_LIKE),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O_LIKE),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            _DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            _TRAILING_SPACE,
            _CJK,
            r"\p{N}",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _TRAILING_SPACE, _CJK, r"\p{N}")),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", r"\p{N}+", r"[0-9][0-9][0-9]")),
}  # fmt: skip


def find_pre_tokenizer(name: object) -> tuple[PreTokenizer, tuple[str, ...]]:
    """Return the family's pre-tokeniser and the warnings a user must see.

    Raises:
        UnsupportedModel: a name that we do not know.
    """
    if name is None or name == "default":
        said = "names no pre-tokeniser" if name is None else "names the pre-tokeniser 'default'"
        warning = (
            f"this GGUF file {said} (tokenizer.ggml.pre): GPT-2's is used, and token ids may be WRONG and answers "
            "worse. Take a newer conversion of the model."
        )
        return _GPT2_WORDS, (warning,)
    found = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnsupportedModel(
            "unknown pre-tokeniser: its token ids would be wrong",
            value=f"tokenizer.ggml.pre = {str(name)[:64]!r}",
            remedy=f"Known: {', '.join(sorted(PRE_TOKENIZERS))}.",
        )
    return found, ()
