"""How byte-level BPE models cut text before merging, by the name in `tokenizer.ggml.pre`.

A wrong cut gives other ids without any error, so an unknown name is refused and a missing one gives
a warning.
Source: the `pre_tokenizer` entries of each family's published tokenizer.json; the names are those
of llama.cpp's converter.
"""

from __future__ import annotations

from tokenizers import Regex, normalizers, pre_tokenizers

from twostroke.dataclass import dataclass
from twostroke.errors import UnsupportedModel

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
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
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}|{_CASED_TAIL}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_CASED_TAIL}"
)
# The look-behind changes no match; without it a long run of spaces inside the text takes quadratic
# time.
_TRAILING_SPACE = r"(?<!\s)\s+$"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Letters that have case, as DeepSeek LLM lists them (escaped: editors normalise some of them).
_DEEPSEEK_LETTERS = (
    r"\s?["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One family's way to cut text.

    patterns: applied in turn, each to the pieces that the one before left. splits_digits: every
    digit is a piece of its own, before the patterns.
    """

    patterns: tuple[str, ...] = ()
    gpt2_words: bool = False
    splits_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return the `tokenizers` object that cuts and maps bytes to characters."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.splits_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps += [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in self.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2_words))
        return pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        """Return the normaliser that runs before the cut, None for none."""
        return normalizers.NFC() if self.nfc else None


_GPT2_WORDS = PreTokenizer(gpt2_words=True)
_DIGITS_FIRST = PreTokenizer(gpt2_words=True, splits_digits=True)
_LLAMA3_LIKE = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_QWEN2_LIKE = PreTokenizer((_QWEN2,), nfc=True)
_DEEPSEEK_V3_LIKE = PreTokenizer(
    (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_V3)
)
_GPT4O_LIKE = PreTokenizer((_GPT4O,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "mellum", "exaone4"), _GPT2_WORDS),
    **dict.fromkeys(("trillion", "granite-docling", "jais", "modern-bert"), _GPT2_WORDS),
    **dict.fromkeys(("a.x-4.0", "gigachat"), _GPT2_WORDS),
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
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            _TRAILING_SPACE,
            _CJK,
            r"\p{N}",
        )
    ),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _TRAILING_SPACE, _CJK, r"\p{N}")
    ),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}


def find_pre_tokenizer(name: object) -> tuple[PreTokenizer, tuple[str, ...]]:
    """Return the pre-tokeniser of a name, and warnings for the user.

    Raises:
        UnsupportedModel: a name that we do not know.
    """
    if name is None or name == "default":
        fault = "names no pre-tokeniser" if name is None else "names the pre-tokeniser 'default'"
        warning = (
            f"this GGUF file {fault} (tokenizer.ggml.pre): GPT-2's is used, and token ids may be "
            "WRONG and answers worse. Take a newer conversion of the model."
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
