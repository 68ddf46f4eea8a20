"""Words and n-grams of a text, the tokens of a field of kind "text".

The rules need no tables but Unicode's simple lower-case mapping, so that readers in other languages can repeat them.
"""

from __future__ import annotations

import re

DEFAULT_NGRAMS = 2
DEFAULT_MOST = 64

# What separates words: ASCII without letters and digits, the punctuation and signs of Latin-1, spaces, general
# punctuation without the joiners U+200C and U+200D, and the punctuation of Chinese, Japanese and Korean.
_BETWEEN_WORDS = re.compile(
    "[\x00-/:-@\\[-`{-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\xd7\xf7\u1680\u2000-\u200b\u200e-\u206f\u3000-\u303f\ufeff"
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]+"
)
# Where str.lower is not Unicode's simple mapping of one character to one, whatever stands beside it.
_SIMPLE = str.maketrans({"\u0130": "i", "\u03a3": "\u03c3"})


def words_of(text: str) -> list[str]:
    """The words of a text, lower-cased, in order."""
    return [word for word in _BETWEEN_WORDS.split(text.translate(_SIMPLE).lower()) if word]


def ngrams_of(text: str, ngrams: int, most: int) -> list[str]:
    """The distinct words of a text, then its distinct pairs of adjacent words, and so on up to `ngrams` words.

    Each in order of first appearance, joined by one space; `most` at most.
    """
    words = words_of(text)
    found = dict.fromkeys(words)
    for size in range(2, ngrams + 1):
        if len(found) >= most:
            break
        found |= dict.fromkeys(" ".join(words[at : at + size]) for at in range(len(words) - size + 1))
    return list(found)[:most]
