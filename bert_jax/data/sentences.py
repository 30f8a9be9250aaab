"""Document text -> sentences."""

import re

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

    White space between two sentences belongs to the first or stands alone.
    """
    sentences: list[str] = []
    start = 0
    continues = False  # whether the last of `sentences` goes on at `start`
    while start < len(text):
        match = _BLOCK_END.search(text, start)
        end = match.end() if match else len(text)
        while end - start > _MAX_BLOCK:
            window = _segment(text[start : end_of_last_gap(text, start, _MAX_BLOCK)], language)
            # the last may go on beyond the window: unless it is all there is, it is read again
            complete = window[:-1] or window
            _extend(sentences, complete, continues)
            continues = len(window) == 1
            start += sum(map(len, complete))
        _extend(sentences, _segment(text[start:end], language), continues)
        continues = False
        start = end
    return sentences


def end_of_last_gap(text: str, start: int, limit: int) -> int:
    """Where the last white space in text[start : start + limit] ends; the limit without any."""
    gap = _LAST_GAP.match(text, start, start + limit)
    return gap.end() if gap else start + limit


def _extend(sentences: list[str], more: list[str], continues: bool) -> None:
    if continues:
        sentences[-1] += more[0]
        more = more[1:]
    sentences.extend(more)


def _segment(block: str, language: str) -> list[str]:
    sentences = []
    begin = 0
    for length in map(len, sentencex.segment(language, _WIDE_SPACE.sub(" ", block))):
        sentences.append(block[begin : begin + length])
        begin += length
    assert begin == len(block), "sentencex changed the text"
    return sentences
