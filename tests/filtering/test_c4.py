"""Compare the rules of C4 with the code that produced the published data set."""

import re

import pytest
from tensorflow_datasets.text import c4_utils

from bert_jax.filtering.c4 import C4, check_c4, clean_c4

GOOD = "This line has more than five words."
PAGES = {
    "good": "\n".join([GOOD] * 3),
    "two sentences": "\n".join([GOOD] * 2),
    "two sentences in a line": f"{GOOD} Here is another one!\n{GOOD}",
    "no end marks": f"Home\nAbout us and our large company\n{GOOD}\n{GOOD}\n{GOOD}",
    "ellipsis": f"{GOOD}\n{GOOD}\n{GOOD}\nThis line ends with an ellipsis, though...",
    "short lines": f"Read more here.\n{GOOD}\nNo.\n{GOOD}\n{GOOD}",
    "quotation": f'"Is this line a quotation, perhaps?"\n{GOOD}\n{GOOD}',
    "citations": f"{GOOD[:-1]}[12].\n{GOOD}\nWho says that, and where?[citation needed]\n{GOOD}",
    "javascript": f"Please enable JavaScript to see this page.\n{GOOD}\n{GOOD}\n{GOOD}",
    "policy": f"Please read our Privacy Policy before you start.\n{GOOD}\n{GOOD}\n{GOOD}",
    "lorem ipsum": f"{GOOD}\nLorem ipsum dolor sit amet consectetur.\n{GOOD}\n{GOOD}",
    "lorem ipsum and javascript": f"{GOOD}\nLorem ipsum dolor sit amet javascript.\n{GOOD}\n{GOOD}",
    "curly bracket": f"{GOOD}\nfunction f(a, b) {{ return a; }} is code.\n{GOOD}\n{GOOD}",
    "bracket and policy": f"Our terms of use are {{ these and those }}.\n{GOOD}\n{GOOD}\n{GOOD}",
    "bracket in a dropped line": f"function f() {{ return 1; }}\n{GOOD}\n{GOOD}\n{GOOD}",
    "long word": f"{'x' * 1001} {GOOD}\n{'x' * 1000} {GOOD}\n{GOOD}\n{GOOD}",
    "white space": f"  {GOOD}  \r\n\n\n\t{GOOD}\n{GOOD}\n",
    "empty": "",
}


def published(text: str) -> str | None:
    # This expression is copied from get_clean_page_fn.
    citations = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
    pages = list(
        c4_utils.clean_page(
            c4_utils.PageFeatures(text=text), citations, counter_inc_fn=lambda name: None
        )
    )
    return pages[0].text if pages else None


@pytest.mark.parametrize("name", PAGES)
def test_texts_equal_the_results_of_the_published_code(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # NLTK's sentence model would have to be downloaded. All of these sentences are simple.
    monkeypatch.setattr(c4_utils, "_get_sentences", lambda text: re.findall(r"[.!?]+\W*", text))
    text = clean_c4(PAGES[name], C4())
    assert (text if check_c4(text, C4()) is None else None) == published(PAGES[name])


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("two sentences", "c4.sentences"),
        ("lorem ipsum", "c4.lorem_ipsum"),
        ("curly bracket", "c4.curly_bracket"),
    ],
)
def test_the_rule_is_named(name: str, rule: str) -> None:
    finding = check_c4(clean_c4(PAGES[name], C4()), C4())
    assert finding is not None and finding.rule == rule
