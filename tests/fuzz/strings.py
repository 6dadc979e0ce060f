"""Random strings that go where tokenizers go wrong; one generator for all targets.

A string is a few fragments of different kinds side by side, so that the rules of each kind meet those of its
neighbours. Everything follows from the `random.Random` that is given.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence

ASCII = [chr(code) for code in range(0x21, 0x7F)]
LETTERS = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
# Case pairs that expand or depend on their place, decompositions, ligatures, several alphabets.
WORLD = list(
    "àéîõüçßÅǅİıſΣσςΑάϓΐK\u212b\u1e9eﬁĲŉǰΰﬃЙйЁіђҐԱՖևאבּיִءآبّپक़नि্กำล้าབོདაჾႠᲐⴀᏸꭰᎠ"
    "\u0958\u0929\u0ccaৰ\u0dddｱﾊﾞĀệŝǹΆ\u1fbcὩⅠⓐªº²½ʰˈ\u02b0\u0390\U00010400\U0001d400\U0001e900\U00016e40"
)
MARKS = list(
    "\u0300\u0301\u0308\u030a\u0323\u0327\u0334\u0345\u0315\u0344\u034f\u0f73\u0f74\u0f71\u0901\u093c\u094d\u08d4"
    "\u0898\u1b44\u1dfb\u302a\u302e\u302f\u3099\u309a\ua953\u20d0\ufe00\ufe0f\ufe20\U0001d165\U0001d166\U0001d16d"
    "\U0001d17b\U00011046\U0001e000\U0001e94a\U00016ff0\u0e38\u0e48\u05b4\u064b\u0670\u1ab0"
)
SPACES = list(" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2003\u2009\u2028\u2029\u202f\u205f\u3000")
CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
CONTROLS += list("\xad\u061c\u200b\u200c\u200d\u200e\u202e\u2060\u2066\ufeff\ufffe\uffff\ufffd\U000e0001\U000e0041")
PUNCTUATION = list(".,;:!?-_'\"()[]{}<>/\\|@#$%^&*+=~`’‘“”«»¿¡…—–、。「」・،؟।॥‽§¶©€£¥₿±×÷√∞≠")
DIGITS = list("0123456789٠٣۹०५๐๙０９²³¹¼½Ⅷ⑦〇一三\u0be7\u0f33\U0001d7ce\U0001d7ff\U00010a40\U0001f101㊿")
HANGUL = list("가각힣한글나라\u1100\u1112\u1161\u1175\u11a8\u11c2\u115f\u1160\ua960\ud7b0\ud7cbㄱㅎ\uffa1")
CJK = list("中漢字日本語的是\u3400\u4dbf\U00020000\U0002a6df\U0002b820\U00030000\uf900\ufa0e\ufa2d\U0002f800\U0002fa1d")
KANA = list("あいぱかアイパカーんンｱﾊﾞ\u3099\u309bゝヿ")
PRIVATE = list("\ue000\uf8ff\U000f0000\U0010fffd\U0010ffff\ufdd0\U0001fffe\u0378\U000e0fff")
EMOJI = list("😀🎉❤☎🏳🐈👩👨👧👍🇩🇪🇯🇵")
CONTRACTIONS = [
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    "'S",
    "'RE",
    "'Ve",
    "'lL",
    "'\u017f",
    "’s",
    "'",
    "''",
    "'x",
]
WORDS = [
    "the", "of", "and", "tokenization", "unbelievable", "don", "can", "hello", "world", "3rd", "iPhone", "naïve",
    "café", "Straße", "Übergröße", "façade", "coöperate", "https://example.org/a?b=c&d=1", "user@example.com", "C++",
    "def", "return", "x1", "__init__", "None", "==", "!=", "//", "1,234.56", "10%", "$5", "#tag", "@me", "привет",
    "мир", "Здравствуйте", "γειά", "ΣΊΣΥΦΟΣ", "שלום", "مرحبا", "नमस्ते", "สวัสดี", "ありがとう", "你好", "안녕하세요",
    "ẞ", "ǆ", "İstanbul",
]  # fmt: skip
POOLS = [
    ASCII, LETTERS, LETTERS, WORLD, MARKS, SPACES, CONTROLS, PUNCTUATION, DIGITS, HANGUL, CJK, KANA, PRIVATE, EMOJI,
]  # fmt: skip
LAST = sys.maxunicode
SURROGATES = range(0xD800, 0xE000)


def any_character(rng: random.Random) -> str:
    """Any code point but a surrogate; half of them from the plane where most scripts stand."""
    code = rng.randrange(0x10000 if rng.random() < 0.5 else LAST + 1)
    return "\ufffd" if code in SURROGATES else chr(code)


def _pool(rng: random.Random) -> str:
    return "".join(rng.choices(rng.choice(POOLS), k=rng.randint(1, 8)))


def _mixed(rng: random.Random) -> str:
    return "".join(rng.choice(rng.choice(POOLS)) for _ in range(rng.randint(1, 8)))


def _word(rng: random.Random) -> str:
    word = rng.choice(WORDS)
    return rng.choice((word, word, word.upper(), word.capitalize()))


def _sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(2, 8))) + rng.choice(PUNCTUATION)


def _marked(rng: random.Random) -> str:
    """Characters with runs of combining marks, in any order of their classes."""
    bases = rng.choices(WORLD + LETTERS + HANGUL + KANA, k=rng.randint(1, 3))
    return "".join(base + "".join(rng.choices(MARKS, k=rng.randint(0, 4))) for base in bases)


def _emoji(rng: random.Random) -> str:
    """Emoji joined by ZWJ, with skin tones, variation selectors, flags and keycaps."""
    joined = "\u200d".join(
        rng.choice(EMOJI) + rng.choice(("", "", "\ufe0f", "\U0001f3fd")) for _ in range(rng.randint(1, 4))
    )
    return joined + rng.choice(("", "1\ufe0f\u20e3", "🇫🇷", "\U000e0067\U000e007f", "\u200d"))


def _spaces(rng: random.Random) -> str:
    return "".join(rng.choices(SPACES if rng.random() < 0.5 else [" ", "\n", "\r", "\t"], k=rng.randint(1, 7)))


def _contraction(rng: random.Random) -> str:
    return (
        rng.choice(("", "I", "you", "it", "1", " ", "é")) + rng.choice(CONTRACTIONS) + rng.choice(("", "x", " ", "'"))
    )


def _number(rng: random.Random) -> str:
    return "".join(rng.choices(DIGITS if rng.random() < 0.4 else DIGITS[:10], k=rng.randint(1, 12)))


def _long_word(rng: random.Random) -> str:
    """A word around the longest that models take (100 characters) and around the kernels' cache keys."""
    length = rng.choice((7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 99, 100, 101, 200))
    pool = rng.choice((LETTERS, LETTERS, WORLD, CJK, HANGUL, ["a"], ["é"], MARKS, DIGITS))
    return "".join(rng.choices(pool, k=length))


def _anything(rng: random.Random) -> str:
    return "".join(any_character(rng) for _ in range(rng.randint(1, 6)))


def _added(rng: random.Random, contents: Sequence[str]) -> str:
    """An added token: whole, cut, in another case, or with space and letters around it."""
    content = rng.choice(contents)
    kind = rng.randrange(6)
    if kind == 0:
        return content[: rng.randint(0, len(content))]
    if kind == 1:
        return content.swapcase()
    if kind == 2:
        return content + content
    if kind == 3:
        return rng.choice(SPACES) + content + rng.choice(SPACES)
    return rng.choice(("", "a", " ", "é", "_")) + content + rng.choice(("", "b", "  ", "ü", "1"))


MAKERS: list[Callable[[random.Random], str]] = [
    _pool, _pool, _mixed, _word, _word, _sentence, _marked, _emoji, _spaces, _contraction, _number, _long_word,
    _anything,
]  # fmt: skip


def random_text(rng: random.Random, contents: Sequence[str] = ()) -> str:
    """A string of up to six fragments, without surrogates; now and then an empty one.

    Args:
        rng: All randomness comes from here.
        contents: Contents of added tokens, which then stand in some of the strings.
    """
    fragments = [rng.choice(MAKERS)(rng) for _ in range(rng.randrange(7))]
    if contents and rng.random() < 0.3:
        fragments.insert(rng.randint(0, len(fragments)), _added(rng, contents))
    return rng.choice(("", "", " ", "\n")).join(fragments)


def with_surrogate(rng: random.Random, text: str) -> tuple[str, int]:
    """`text` with one lone surrogate in it, and the surrogate's place."""
    place = rng.randint(0, len(text))
    return text[:place] + chr(rng.choice(SURROGATES)) + text[place:], place
