"""Document text -> sentences."""

import re
from collections.abc import Iterator

import sentencex

# The languages sentencex 1.0 has rules for. It takes any other code without a word and uses
# another language's rules, so the choice of a stand-in is left to whoever knows the corpus.
LANGUAGES = (
    *("am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy"),
    *("it", "ja", "kk", "kn", "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te"),
    "uk",
)

# A quotation left open makes sentencex join all that follows into one sentence, in time quadratic
# in the text: given whole novels it put 14 % of the text into sentences of over 2,000 characters
# (one of 86,334). So text goes to it a block at a time. A block ends at a blank line, or at a line
# end that follows sentence-ending punctuation: true of paragraphs held on one line each, and
# harmless to hard-wrapped ones.
_BLOCK_END = re.compile(r"""[.!?…。．｡！？।॥؟۔։።፧။]["'”’»›」』)\]]*[^\S\n]*\n\s*|\n[^\S\n]*\n\s*""")
_MAX_BLOCK = 16_384  # characters; bounds the quadratic case to 7 MB/s
_LAST_GAP = re.compile(r".*\s", re.DOTALL)
# sentencex 1.0.32 panics on some texts where white space outside ASCII follows an initial
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")


def check_language(language: str) -> None:
    """Raise ValueError if there are no sentence rules for `language` (ISO 639-1, as `en`)."""
    if language not in LANGUAGES:
        raise ValueError(
            f"no sentence rules for language {language!r}; expected one of {' '.join(LANGUAGES)}. "
            "For another language name the nearest of these; en cuts at the sentence-ending marks "
            "of every script."
        )


def split_sentences(text: str, language: str) -> list[str]:
    """Cut `text` into sentences whose concatenation is exactly `text`.

    The space between two sentences belongs to the first; a sentence may be nothing but space.
    """
    sentences: list[str] = []
    joined = False
    for block, ends_sentence in _blocks(text):
        begin = 0
        for length in map(len, sentencex.segment(language, _WIDE_SPACE.sub(" ", block))):
            sentence = block[begin : begin + length]
            begin += length
            if joined:
                sentences[-1] += sentence
                joined = False
            else:
                sentences.append(sentence)
        assert begin == len(block), "sentencex changed the text"
        joined = not ends_sentence
    return sentences


def _blocks(text: str) -> Iterator[tuple[str, bool]]:
    """Yield (block, whether a sentence ends with it): non-empty, of at most _MAX_BLOCK."""
    start = 0
    while start < len(text):
        match = _BLOCK_END.search(text, start)
        end = match.end() if match else len(text)
        while end - start > _MAX_BLOCK:
            gap = _LAST_GAP.match(text, start, start + _MAX_BLOCK)
            cut = gap.end() if gap else start + _MAX_BLOCK
            yield text[start:cut], False
            start = cut
        yield text[start:end], True
        start = end
