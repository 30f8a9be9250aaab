"""From what a user calls a foreign model to a directory on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from bert_jax.interop.huggingface.sentence_transformers import SENTENCE_FILES
from bert_jax.runs.work_dir import MODEL_NAME
from bert_jax.tokenizers.files import FILE_NAMES
from bert_jax.tokenizers.vocabulary_files import BYTE_BPE_MERGES_NAME

# What `import` reads; a repository on the hub often holds the same weights in other formats too.
FILES = [
    "config.json",
    *FILE_NAMES,
    BYTE_BPE_MERGES_NAME,
    "tokenizer_config.json",
    "added_tokens.json",
    *SENTENCE_FILES,
    "model*.safetensors",
    "model.safetensors.index.json",
]
PICKLES = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]
# Where early versions of sentence-transformers put the encoder: 0_Transformer, 0_BERT, ...
_FIRST_MODULE = "0_*/"


def local_directory(source: str, revision: str | None) -> tuple[Path, str | None]:
    """The directory that `source` is or, for a model's name on the hub, was downloaded to.

    Args:
      source: a directory or a name.
      revision: branch, tag or commit on the hub; None for its main branch.

    Returns:
      The directory, and the commit of what the hub gave.

    Raises:
      ValueError: it is no directory and no name, or the hub does not give it.
    """
    if (Path(source) / MODEL_NAME).is_file():
        raise ValueError(
            f"{source} is already a work directory. Pass it directly to finetune (--init), "
            "pretrain (--config.init_from), export or verify"
        )
    if Path(source).is_dir():
        if revision is not None:
            raise ValueError(
                f"--revision {revision}: {source} is a local directory, which has no revisions. "
                "Leave --revision out"
            )
        return Path(source), None
    if Path(source).exists():
        raise ValueError(f"{source} is a file: give the directory it is in")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) or source.startswith("."):
        raise ValueError(f"{source}: no such directory, nor a model's name on the hub (owner/name)")
    directory = _download(source, revision)
    return directory, directory.name  # the hub's cache names a snapshot after its commit


def _anywhere(patterns: list[str]) -> list[str]:
    return [*patterns, *(_FIRST_MODULE + pattern for pattern in patterns)]


def _download(name: str, revision: str | None) -> Path:
    # Only now: it imports an HTTP client.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        wanted = _anywhere(FILES)
        directory = Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
        weights = _anywhere(["model*.safetensors"])
        if not any(file for pattern in weights for file in directory.glob(pattern)):
            wanted += _anywhere(PICKLES)
            directory = Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except LocalEntryNotFoundError as error:
        raise ValueError(
            f"{name}: no such directory here, and the hub could not be asked for a model of that "
            "name: no connection to it. Download the model on a machine that has one, and give "
            "its directory"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{name}: no such directory here, and the hub does not give a model of that name: "
            f"{reason}. Check the name; for a private or gated model, run `hf auth login` first"
        ) from error
    return directory
