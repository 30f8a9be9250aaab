"""Provide short names, such as "mini-ner", for the small models that come with a checkout."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bert_jax.local_paths import SMALL_MODELS, cache_directory
from bert_jax.validation import nearest
from bert_jax.version import __version__

_CHECKOUT = Path(__file__).resolve().parents[2]
# The path of each model in a checkout: a Hugging Face directory with float16 parameters.
_FOLDERS = {
    "mini-bert": "experiments/finetuning/bert-mini",
    **{name: f"experiments/small_models/{name}" for name in SMALL_MODELS if name != "mini-bert"},
}


def small_model(name: str) -> Path:
    """Return the work directory of a small model that comes with a checkout of bert_jax.

    "mini-bert" and "mini-albert" are pretrained. "mini-sentiment" classifies reviews, "mini-ner"
    finds entities, and "mini-qa" answers questions about a short passage. The first call imports
    the model into the user's cache directory. No network is needed.

    Args:
      name: one of `SMALL_MODELS`.

    Raises:
      ValueError: there is no such model, or bert_jax was installed from a wheel, which does not
        contain the models.
    """
    source, directory = _locate(name)
    if not directory.is_dir():
        from bert_jax.interop.import_model import import_model  # imports JAX

        try:
            import_model(source, directory)
        except (ValueError, OSError):
            # If the directory exists now, another process has just imported the model.
            if not directory.is_dir():
                raise
    return directory


def _locate(name: str) -> tuple[Path, Path]:
    """Return (source, directory): a model's files in the checkout, and its work directory.

    The path of the work directory depends on the contents of all files and on the version, because
    another version may write work directories that this one cannot read.
    """
    if name not in _FOLDERS:
        raise ValueError(f"name={name!r}: no such small model; {nearest(name, SMALL_MODELS)}.")
    source = _CHECKOUT / _FOLDERS[name]
    if not (source / "model.safetensors").is_file():
        raise ValueError(
            f"name={name!r}: {source} does not exist. The small models come with a checkout of "
            "bert_jax, but not with an installed wheel. Clone the repository, or import a model "
            "from the hub with `bert-jax import`."
        )
    digest = hashlib.sha256()
    for file in sorted(path for path in source.iterdir() if path.is_file()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    directory = f"{__version__}-{digest.hexdigest()[:12]}"
    return source, cache_directory() / "models" / directory / name


def replace_short_names(options: dict[str, Any]) -> dict[str, str]:
    """Replace the short names of small models in a command's options with their work directories.

    A file or directory with the same name takes precedence. A model that is not in the cache yet is
    imported by another process, since a process that has used JAX cannot join a distributed run.

    Returns:
      A dict from the work directories to the short names that they replace.
    """
    used: dict[str, str] = {}

    def replaced(name: str) -> str:
        path = _with_path(name)
        if path != name:
            used[path] = name
        return path

    models = ("work_dir", "work_dir_option", "init", "tokenizer", "other", "first", "directory")
    # The value of `second` is a model only in a command that also has the option `first`.
    for option in models + ("second",) * ("first" in options):
        if options.get(option) is not None:
            options[option] = replaced(options[option])
    lists = {"models": "", "config_overrides": "--config.init_from=", "vary": "init_from="}
    for option, prefix in lists.items():
        if options.get(option):
            options[option] = [
                prefix + ",".join(map(replaced, text.removeprefix(prefix).split(",")))
                if text.startswith(prefix)
                else text
                for text in options[option]
            ]
    if options.get("source") in SMALL_MODELS and not Path(options["source"]).exists():
        options["source"] = str(_locate(options["source"])[0])
    return used


def _with_path(name: str) -> str:
    """Return the work directory of a small model; return any other name unchanged."""
    if name not in SMALL_MODELS or Path(name).exists():
        return name
    return str(_import_elsewhere(name))


def _import_elsewhere(name: str) -> Path:
    _, directory = _locate(name)
    if not directory.is_dir():
        program = "import sys; from bert_jax import small_model; small_model(sys.argv[1])"
        search = os.pathsep.join([str(_CHECKOUT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": search}
        command = [sys.executable, "-P", "-c", program, name]
        finished = subprocess.run(command, env=environment, capture_output=True, text=True)
        if finished.returncode and not directory.is_dir():
            raise ValueError(
                f"{name}: this small model could not be imported (exit code "
                f"{finished.returncode}). Fix the cause, and run the same command again.\n"
                f"{finished.stderr.strip()}"
            )
    return directory
