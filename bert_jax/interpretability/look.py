"""Show what a model does with a text: trace it, collect the views, and render the page."""

from __future__ import annotations

from pathlib import Path

from bert_jax.interpretability.attention import Attention
from bert_jax.interpretability.page import Page, render_page
from bert_jax.interpretability.views import collect_views
from bert_jax.labeled_data.tokenized_text import Text
from bert_jax.local_paths import naming_urls


@naming_urls()
def look(
    model: str | Path | Attention,
    text: Text,
    second: Text | None = None,
    *,
    max_length: int | None = None,
    step: int | None = None,
) -> Page:
    """Return a page that shows what happens inside a model when it reads a text.

    Args:
      model: the work directory of a run or of `bert-jax import`, or an `Attention`, which lets
        multiple calls share one loaded model.
      text: the text, or a tuple of its words.
      second: the second text of a pair.
      max_length: the maximum number of tokens; longer texts are truncated. None for the model's own
        maximum.
      step: the step of the checkpoint. If None, the best checkpoint of a fine-tuning run is loaded,
        or the newest checkpoint of any other model.

    Returns:
      A `Page`, which Jupyter displays and `save` writes to a file.

    Raises:
      ValueError: the text has no words, the page would be larger than 2 MB, or there is no such
        model.
      UnusableText: a text or a word is not a string or is not valid Unicode.
    """
    if isinstance(model, Attention):
        for name, value in (("max_length", max_length), ("step", step)):
            if value is not None:
                raise ValueError(
                    f"{name}={value}: cannot be changed for a loaded model. Pass it to `Attention` "
                    "instead."
                )
        attention = model
    else:
        attention = Attention(model, max_length=max_length, step=step)
    trace = attention(text, second)
    if not trace.is_text.any():
        raise ValueError(f"text={text!r}: contains no words. Enter at least one word.")
    views = collect_views(attention, trace, text, second)
    title = str(attention.checkpoint)
    return render_page(trace, views, title, attention.tokenizer.specials.sep)
