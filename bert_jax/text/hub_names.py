"""Find datasets on the Hugging Face Hub by name, and pin their names to a commit."""

from __future__ import annotations

import importlib.util
import logging
import re
from functools import lru_cache
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

HUB_PREFIX = "hf:"

_NAME = re.compile(
    r"(?P<dataset>[\w.-]+/[\w.-]+)(/(?P<config>[^\s/:@]+))?"
    r"(@(?P<revision>[^\s:@]+))?(:(?P<split>[^\s:@]+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubName(NamedTuple):
    """A dataset on the hub.

    Attributes:
      dataset: "OWNER/NAME".
      config: the name of the configuration, or None for the only one.
      revision: a branch, a tag or a commit; None for the newest commit.
      split: the name of the split.
    """

    dataset: str
    config: str | None
    revision: str | None
    split: str

    def __str__(self) -> str:
        config = f"/{self.config}" if self.config else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{HUB_PREFIX}{self.dataset}{config}{revision}:{self.split}"

    @property
    def is_pinned(self) -> bool:
        """Whether the name always refers to the same rows."""
        return self.config is not None and _COMMIT.fullmatch(self.revision or "") is not None


def parse_hub(name: str) -> HubName:
    """Parse "hf:OWNER/NAME[/CONFIG][@REVISION][:SPLIT]"; the split defaults to "train".

    Raises:
      ValueError: the name does not have this form.
    """
    match = _NAME.fullmatch(name.removeprefix(HUB_PREFIX))
    if match is None:
        raise ValueError(
            f"{name}: not a valid name. Expected hf:OWNER/NAME, optionally followed by /CONFIG, "
            "@REVISION and :SPLIT, such as hf:wikimedia/wikipedia/20231101.en:train."
        )
    return HubName(match["dataset"], match["config"], match["revision"], match["split"] or "train")


@lru_cache(maxsize=32)
def pinned_hub(name: str) -> str:
    """Return the dataset's full name, including its configuration and current commit.

    The commit is part of the name because the dataset may change: two readers of the same name must
    see the same rows.

    Raises:
      ValueError: the name is not valid, `datasets` is not installed, or the hub has no such
        dataset, configuration or split.
    """
    parsed = parse_hub(name)
    _check_installed(name)
    if parsed.is_pinned:
        return name
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(parsed.dataset, revision=parsed.revision).sha
    except Exception as error:  # the hub's errors have no common base class
        raise unreadable_hub(name, "cannot find this dataset", error) from error
    at_commit = parsed._replace(revision=commit)
    builder = hub_builder(str(at_commit))
    splits = builder.info.splits
    if splits and parsed.split not in splits:
        raise ValueError(
            f"{name}: no split {parsed.split!r}; the splits are {', '.join(map(repr, splits))}."
        )
    pinned = str(at_commit._replace(config=builder.config.name))
    logger.info("%s: reading %s", name, pinned)
    return pinned


@lru_cache(maxsize=8)
def hub_builder(name: str) -> Any:
    """Return the `datasets` builder of a dataset; see `pinned_hub`."""
    import datasets  # takes seconds to import

    parsed = parse_hub(name)
    try:
        return datasets.load_dataset_builder(
            parsed.dataset, parsed.config, revision=parsed.revision
        )
    except Exception as error:  # a dataset's configuration may raise any exception
        raise unreadable_hub(name, "cannot find this dataset or configuration", error) from error


def _check_installed(name: str) -> None:
    if importlib.util.find_spec("datasets") is None:
        raise ValueError(
            f"{name}: reading datasets from the hub requires datasets, which is not installed. "
            "Install it: pip install 'bert_jax[datasets]'"
        )


def unreadable_hub(name: str, problem: str, error: Exception) -> ValueError:
    """Return an error that explains why a dataset cannot be read."""
    detail = " ".join(str(error).split())[:300]
    return ValueError(f"{name}: {problem}: {type(error).__name__}: {detail}")
