"""Find a model to import: a local directory, or a model on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from bert_jax.interop.huggingface.sentence_transformers import SENTENCE_FILES
from bert_jax.runs.work_dir import MODEL_NAME
from bert_jax.tokenizers.files import FILE_NAMES
from bert_jax.tokenizers.vocabulary_files import BYTE_BPE_MERGES_NAME

# The files that `import` reads; many models on the hub also have their weights in other formats.
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
    """Return the directory of a model, after downloading it if it is on the hub.

    Args:
      source: a directory, or a model's name on the hub.
      revision: branch, tag or commit on the hub; None for the main branch.

    Returns:
      The directory, and the commit of a downloaded model (None for a local directory).

    Raises:
      ValueError: `source` is neither a directory nor a name, or the model cannot be downloaded.
    """
    if (Path(source) / MODEL_NAME).is_file():
        raise ValueError(
            f"{source} is already a work directory. Pass it directly to finetune or pretrain "
            "(--init), export or verify"
        )
    if Path(source).is_dir():
        if revision is not None:
            raise ValueError(
                f"--revision {revision}: {source} is a local directory, which has no revisions. "
                "Leave --revision out"
            )
        return Path(source), None
    if Path(source).exists():
        raise ValueError(f"{source} is a file. Give its directory")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) or source.startswith("."):
        raise ValueError(f"{source}: not a directory, nor a model's name on the hub (owner/name)")
    directory = _download(source, revision)
    return directory, directory.name  # the hub's cache names a snapshot after its commit


def _anywhere(patterns: list[str]) -> list[str]:
    return [*patterns, *(_FIRST_MODULE + pattern for pattern in patterns)]


def _download(name: str, revision: str | None) -> Path:
    # Imported only when needed, since it imports an HTTP client.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        patterns = _anywhere(FILES)
        directory = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
        weights = _anywhere(["model*.safetensors"])
        if not any(file for pattern in weights for file in directory.glob(pattern)):
            patterns += _anywhere(PICKLES)
            directory = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except LocalEntryNotFoundError as error:
        raise ValueError(
            f"{name}: no such local directory, and no connection to the hub to look for a model of "
            "that name. Download the model on a machine with a connection, and give its directory"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{name}: no such local directory, and the hub has no accessible model of that name: "
            f"{reason}. Check the name; for a private or gated model, run `hf auth login` first"
        ) from error
    return directory
