"""Find the model to import, either in a local directory or on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from bert_jax.interop.huggingface.sentence_transformers import SENTENCE_FILES
from bert_jax.runs.work_dir import MODEL_NAME
from bert_jax.tokenizers.byte_bpe_files import BYTE_BPE_MERGES_NAME
from bert_jax.tokenizers.files import FILE_NAMES

# The files that `import` reads. Many models on the hub also come with weights in other formats.
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
# Early versions of sentence-transformers stored the encoder in 0_Transformer, 0_BERT and so on.
_FIRST_MODULE = "0_*/"


def local_directory(source: str, revision: str | None) -> tuple[Path, str | None]:
    """Return a model's local directory, downloading the model first if it is on the hub.

    Args:
      source: a directory, or the name of a model on the hub.
      revision: a branch, tag or commit on the hub; defaults to the main branch.

    Returns:
      (directory, commit), where `commit` is None for a model that was already a local directory.

    Raises:
      ValueError: `source` is neither a directory nor a valid name, or the download fails.
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
        raise ValueError(f"{source} is a file. Pass the directory that contains it")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) or source.startswith("."):
        raise ValueError(
            f"{source}: neither a local directory nor a valid name for a model on the hub. "
            "Pass a directory or OWNER/NAME"
        )
    directory = _download(source, revision)
    # In the hub's cache, the directory of a snapshot is named after its commit.
    return directory, directory.name


def _anywhere(patterns: list[str]) -> list[str]:
    return [*patterns, *(_FIRST_MODULE + pattern for pattern in patterns)]


def _download(name: str, revision: str | None) -> Path:
    # Import this only when needed, since it loads an HTTP client.
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
            f"{name}: no such local directory, and the hub cannot be reached to look for a model "
            "with that name. Download the model on a machine with internet access and pass its "
            "directory"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{name}: no such local directory, and no accessible model with that name on the hub: "
            f"{reason}. Check the name; for a private or gated model, run `hf auth login` first"
        ) from error
    return directory
