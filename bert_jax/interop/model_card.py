"""Write a model card (README.md) on the architecture, training and evaluation of an export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.conversion import to_dataclass
from bert_jax.finetuning.registry import kind_of_head, task_kinds
from bert_jax.finetuning.task_kind import TaskConfig
from bert_jax.interop.huggingface.families import family_of
from bert_jax.json_files import expecting_fields, read_json_object
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.parameters import count
from bert_jax.models.sentence_embedding import SentenceEmbedding
from bert_jax.runs.ownership import RESOLVED_NAME
from bert_jax.training.metrics_log import LOG_NAME, read_metrics
from bert_jax.version import __version__

# The hub's name for the pipeline that matches each pretraining head.
_PRETRAINING_PIPELINES = {
    "encoder": "feature-extraction",
    "pretraining": "fill-mask",
    "masked_lm": "fill-mask",
}


def model_card(
    work_dir: Path,
    config: ModelConfig,
    origin: Mapping[str, str],
    step: int,
    library: str,
    usage: str,
    dtype: str,
    sentence_embedding: SentenceEmbedding | None = None,
) -> str:
    """Return the text of a model card, including the front matter that the Hugging Face Hub reads.

    Args:
      work_dir: the model's work directory. For a training run, the card also describes its config,
        corpora and metrics.
      config: the config of the exported model.
      origin: the model's origin, as in model.json. For a local path, the card contains only the
        file name, since the rest is private.
      step: the training step of the checkpoint.
      library: the hub's name for the library that loads the model.
      usage: Python code that loads and runs the model.
      dtype: the data type in which the parameters are stored.
      sentence_embedding: the model's sentence-embedding settings, or None if it has none.
    """
    definition = define_model(config, ComputeConfig(dtype="float32", attention="xla"))
    family = family_of(config.encoder)
    lines = ["---", f"library_name: {library}"]
    if library == "sentence-transformers":
        lines.append("pipeline_tag: sentence-similarity")
    elif (pipeline := _pipeline(config.head)) is not None:
        lines.append(f"pipeline_tag: {pipeline}")
    lines += ["tags:", f"- {family.model_type}", "---", "", f"# {work_dir.resolve().name}", ""]
    lines.append(
        f"{family.title} (`{config.head}` head) with {count(definition.shapes):,} parameters in "
        f"{dtype}, exported by bert_jax {__version__}."
    )
    lines += ["", "```python", usage.strip(), "```"]
    lines += ["", "## Model", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in config.encoder.identity.items()]
    if config.labels:
        labels = ", ".join(config.labels).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| labels | {labels} |")
    if sentence_embedding is not None:
        lines += _embedding_section(sentence_embedding, library, config)
    lines += ["", "## Origin", ""]
    for name in {"source", "sizes and tokenizer of"} & origin.keys():
        if "revision" not in origin:
            origin = {**origin, name: Path(origin[name]).name}
    lines += [f"- {name}: {value}" for name, value in origin.items()]
    lines += _training(work_dir, step)
    return "\n".join(lines) + "\n"


def _pipeline(head: str) -> str | None:
    """Return the hub's pipeline name for a head, or None if there is no such pipeline."""
    kind = kind_of_head(head)
    if kind is None or kind.huggingface is None:
        return _PRETRAINING_PIPELINES.get(head)
    return kind.huggingface.pipeline


def _embedding_section(settings: SentenceEmbedding, library: str, config: ModelConfig) -> list[str]:
    """Return the section that explains how to pool token vectors into a sentence embedding."""
    if library in ("transformers", "sentence-transformers"):
        intro = (
            "sentence-transformers reads these settings from `modules.json` and the files listed "
            "there."
        )
    else:
        output = "last_hidden_state" if library == "onnx" else "hidden"
        with_head = " of an export with `--head encoder`" if config.head != "encoder" else ""
        intro = (
            f"The program does not pool. The token vectors are in the output `{output}`"
            f"{with_head}. Prepend the prompt to the text, truncate it to `max_length` tokens, "
            "pool without the padding, normalize if the table says so, and keep the first "
            "`truncate_dim` values."
        )
    rows = {name: value.replace("|", "\\|") for name, value in settings.described().items()}
    table = [f"| {name} | {value} |" for name, value in rows.items()]
    return ["", "## Sentence embedding", "", intro, "", "| | |", "|---|---|", *table]


def _training(work_dir: Path, step: int) -> list[str]:
    """Return the section on the training run, which is empty for an imported model."""
    resolved = work_dir / RESOLVED_NAME
    if not resolved.is_file():
        return []
    with expecting_fields(resolved):
        return _run_lines(work_dir, step, read_json_object(resolved))


def _run_lines(work_dir: Path, step: int, run: Mapping[str, Any]) -> list[str]:
    lines = ["", "## Training", "", f"- steps: {step:,}", f"- seed: {run['seed']}"]
    if run["init_from"]:
        scratch = run.get("from_scratch", False)
        random = "random parameters, with the sizes and the tokenizer of " if scratch else ""
        lines.append(f"- started from: {random}{Path(run['init_from']).name}")
    optimizer = run["optimizer"]
    lines.append(
        f"- optimizer: {optimizer['name']}, peak learning rate {optimizer['peak_learning_rate']}"
    )
    lines += _objective(run)
    if "phases" not in run:
        return lines + _task(run) + _measured(work_dir / LOG_NAME, step, "on the validation set")
    for name, phase in run["phases"].items():
        lines.append(
            f"- {name}: {phase['num_steps']:,} steps of {phase['batch_size']} sequences of "
            f"{phase['sequence_length']} tokens"
        )
        # Configs written by earlier versions do not contain a batch-size warm-up.
        if sizes := phase.get("warmup_batch_sizes"):
            lines.append(
                f"  - batch-size warm-up: {phase['warmup_batch_steps']:,} steps each with "
                f"{', '.join(map(str, sizes))} sequences"
            )
        manifest = work_dir / f"manifest-{name}.json"
        if manifest.is_file():
            with expecting_fields(manifest):
                lines.append(_corpus(read_json_object(manifest)))
    return lines + _measured(work_dir / LOG_NAME, step, "losses in nats per token")


def _objective(run: Mapping[str, Any]) -> list[str]:
    """Return lines about the objective of a pretraining run, or [] for a fine-tuning run."""
    if "sentence_pairs" not in run:
        return []
    masking = run["masking"]
    rate = f"{masking['rate']:g}"
    rate += f" to {masking['final_rate']:g}" if masking["final_rate"] else ""
    # Configs written by earlier versions do not contain `masking.later_rates`.
    rate += "".join(f", then {later:g}" for later in masking.get("later_rates", ()))
    repetition = (
        f"{masking['num_maskings']} fixed maskings"
        if masking["num_maskings"]
        else "new masks in every epoch"
    )
    lines = [f"- masked: {rate} of the tokens, unit {masking['unit']}, {repetition}"]
    joined = ", documents joined" if run["join_documents"] else ""
    lines.append(f"- sentence pairs: {run['sentence_pairs']}{joined}")
    if replaced := run.get("replaced_token"):
        lines.append(
            "- trained to detect tokens replaced by a generator of size "
            f"{replaced['generator_size']:g}, with a loss weight of {replaced['weight']:g}"
        )
    if run.get("distillation"):
        settings = dict(run["distillation"])
        teacher = Path(settings.pop("teacher")).name
        values = ", ".join(f"{name} {value}" for name, value in settings.items())
        lines.append(f"- distilled from: {teacher} ({values})")
    return lines


def _task(run: Mapping[str, Any]) -> list[str]:
    """Return lines about the task, epochs and batches of a fine-tuning run."""
    (kind,) = (kind for kind in task_kinds() if run.get(kind.section) is not None)
    task: TaskConfig = to_dataclass(kind.config, run[kind.section], kind.section)
    name = f" ({task.official_name})" if task.official_name else ""
    return [
        f"- task: {kind.section}{name}, from {', '.join(Path(file).name for file in task.inputs)}",
        f"- at most {run['num_epochs']} epochs, batches of {run['batch_size']} examples, sequences "
        f"of at most {run['max_length']} tokens",
    ]


def _measured(log: Path, step: int, what: str) -> list[str]:
    """Return lines about the last evaluation at or before `step`; `what` describes its metrics."""
    entries = read_metrics(log) if log.is_file() else []
    evaluations = [e for e in entries if e["kind"] == "evaluation" and e["step"] <= step]
    if not evaluations:
        return []
    last = evaluations[-1]
    lines = ["", f"Held-out metrics after step {last['step']:,} ({what}):", ""]
    lines += ["| metric | value |", "|---|---|"]
    return lines + [
        f"| {name} | {value:.4f} |"
        for name, value in last.items()
        if name not in ("kind", "step") and value is not None
    ]


def _corpus(manifest: Mapping[str, Any]) -> str:
    train = manifest["train"]
    return (
        f"  - corpus {manifest['fingerprint']}: {train['num_tokens']:,} tokens in "
        f"{train['num_documents']:,} documents; tokenizer {manifest['tokenizer_fingerprint']}"
    )
