"""Make random texts and edited copies of them, and list their shingles in plain Python."""

import numpy as np

VOCABULARY = [f"{first}{second}" for first in "bdfgklmnprst" for second in "aeiou"] + [
    f"{first}{second}{third}" for first in "bkmt" for second in "aeio" for third in "lnrs"
]


def random_text(random: np.random.Generator, num_words: int) -> str:
    return " ".join(random.choice(VOCABULARY, num_words))


def edited(text: str, fraction: float, random: np.random.Generator) -> str:
    """Replace a fraction of the words with other words."""
    words = text.split()
    for place in random.choice(len(words), round(fraction * len(words)), replace=False):
        words[place] += "x"
    return " ".join(words)


def shingle_set(text: str) -> set[str]:
    words = text.split()
    return {" ".join(words[start : start + 5]) for start in range(len(words) - 4)}
