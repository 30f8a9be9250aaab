"""Format tables of model sizes: for a config, for a work directory, or for multiple models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import assert_never, get_args

from bert_jax.analysis.shapes import shape_table
from bert_jax.analysis.tables import flops_table, parameter_table
from bert_jax.corpus.bucket_workspace import is_corpus
from bert_jax.html_pages import check_page_path
from bert_jax.local_paths import SMALL_MODELS
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig, PretrainingHead, define_model
from bert_jax.models.parameters import count
from bert_jax.models.variants import VARIANTS, variant
from bert_jax.objectives import SentencePairs
from bert_jax.pretraining.messages import rotary_line
from bert_jax.recipes.files import recipe_names
from bert_jax.recipes.inspect_corpus import inspect_corpus
from bert_jax.recipes.load import Overrides, Source, load_config
from bert_jax.runs.model_location import local_model
from bert_jax.runs.named_checkpoint import shortest_names
from bert_jax.runs.summary import model_table
from bert_jax.runs.work_dir import PAIRS, read_model
from bert_jax.storage.urls import parse_location
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.replaced_token import ReplacedToken
from bert_jax.tasks.task import Task
from bert_jax.validation import nearest

# Parameter and FLOP counts do not depend on the dtype or the attention backend.
_COMPUTE = ComputeConfig(dtype="float32", attention="xla")


def inspection(
    models: Sequence[str],
    config: str | None,
    overrides: Sequence[str] = (),
    *,
    shapes: bool,
    page: str | None = None,
    color: bool = False,
) -> Iterator[str]:
    """Yield the lines that `bert-jax inspect` prints: a title and tables.

    Args:
      models: work directories or published encoders, or one corpus; empty to use `config` instead.
      config: a recipe or a config file, or None. For a corpus, the config determines the
        examples to show.
      overrides: arguments such as "--config.seed=1".
      shapes: whether to list the shape of every parameter.
      page: an HTML file to write for a corpus, or None.
      color: whether to print the examples of a corpus in color.

    Raises:
      ValueError: the arguments contradict each other, or a model or config cannot be read.
    """
    if len(models) == 1 and is_corpus(parse_location(models[0])):
        if shapes:
            raise ValueError("--shapes: a corpus has no parameters. Omit the option")
        yield from _corpus_lines(models[0], config, overrides, page, color=color)
        return
    if page is not None:
        raise ValueError(f"--page={page}: applies only to a corpus. Omit the option")
    if bool(models) == (config is not None):
        raise ValueError("expected either a work directory or --config RECIPE")
    if config is not None:
        yield f"config {config}"
        if config in VARIANTS:
            yield f"(for the published encoder, run `bert-jax inspect {config}`)"
        yield from ["", *config_tables(config, overrides, shapes=shapes)]
    elif overrides:
        raise ValueError(f"{overrides[0]}: applies only with --config. Omit it")
    elif len(models) == 1:
        yield from model_tables(models[0], shapes=shapes)
    elif shapes:
        raise ValueError("--shapes: supports only one model at a time. Specify one model")
    else:
        yield from comparison_table(models)


def _corpus_lines(
    corpus: str,
    config: str | None,
    overrides: Sequence[str],
    page: str | None,
    *,
    color: bool,
) -> Iterator[str]:
    if page is not None:
        check_page_path(page, "--page")
    view = inspect_corpus(corpus, config, overrides)
    yield from view.lines(color=color)
    if page is not None:
        view.save(page)
        yield f"page: {page}"


def config_tables(
    source: Source, overrides: Overrides = (), *, shapes: bool = False
) -> Iterator[str]:
    """Yield the lines of a parameter table, followed by a FLOP table for each phase.

    Args:
      source: the config; see `load_config`.
      overrides: the keys to change; see `load_config`.
      shapes: whether the first table lists the shape of every parameter.

    Raises:
      ValueError: `load_config` fails.
    """
    config = load_config(source, overrides, kind="pretrain")
    task: Task = Pretraining(config.model, _COMPUTE, sentence_pairs=config.sentence_pairs)
    generator = None
    if config.replaced_token is not None:
        task = pair = ReplacedToken(config.model, _COMPUTE, config.replaced_token)
        generator = pair.generator
    table = shape_table if shapes else parameter_table
    yield from table(task.definition.shapes, config.model.norm_kind)
    for name, _, phase in config.ordered_phases():
        yield ""
        yield from flops_table(
            config.model,
            name,
            length=phase.sequence_length,
            batch_size=phase.batch_size,
            num_steps=phase.num_steps,
            num_sequences=phase.num_sequences,
            predictions=config.masking.max_predictions(phase.sequence_length),
            next_sentence=config.sentence_pairs != "none",
            generator=generator,
        )
        yield from rotary_line(phase, width=2)


def model_tables(name: str, *, shapes: bool = False) -> Iterator[str]:
    """Yield a title and a parameter table, line by line.

    The title names the published encoder or the work directory. For a work directory, the model's
    settings follow the title.

    Args:
      name: a work directory, or a published encoder such as "base" or "albert-base-v2".
      shapes: whether the parameter table lists the shape of every parameter.

    Raises:
      ValueError: there is no such work directory or encoder.
    """
    model, _ = _named(name)
    if name not in VARIANTS or Path(name).is_dir():
        yield from [f"work directory {name}", "", *model_table(local_model(name)), ""]
    else:
        yield f"published encoder {name}, with its pretraining heads"
        if name in recipe_names("pretrain"):
            yield f"(for the recipe, run `bert-jax inspect --config {name}`)"
        yield ""
    table = shape_table if shapes else parameter_table
    yield from table(define_model(model, _COMPUTE).shapes, model.encoder.norm_kind)


def comparison_table(names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table with a column for each model.

    Args:
      names: work directories, or published encoders such as "base" or "albert-base-v2".

    Raises:
      ValueError: there is no such work directory or encoder.
    """
    rows = [
        {"model": title, **_column(name)}
        for title, name in zip(shortest_names(names), names, strict=True)
    ]
    titles = list(rows[0])
    first = max(map(len, titles))
    widths = [max(len(value) for value in row.values()) for row in rows]
    for title in titles:
        cells = (f"{row[title]:>{width}}" for row, width in zip(rows, widths, strict=True))
        yield f"{title:{first}}  {'  '.join(cells)}"


def _column(name: str) -> dict[str, str]:
    model, pairs = _named(name)
    encoder = model.encoder
    parameters = count(define_model(model, _COMPUTE).shapes)
    return {
        "trained for": _objective(model, pairs),
        "parameters": f"{parameters:,}",
        "size in float32": f"{4 * parameters / 2**20:,.0f} MiB",
        "layers": f"{encoder.num_layers}",
        "layers with their own parameters": _own_layers(model),
        "hidden dimension": f"{encoder.hidden_dim:,}",
        "embedding dimension": f"{encoder.table_dim:,}",
        "heads": f"{encoder.num_heads}",
        "feed-forward dimension": f"{encoder.ffn_dim:,}",
        "vocabulary": f"{encoder.vocab_size:,}",
        "positions": f"{encoder.max_positions:,}",
        "segments": f"{encoder.num_segments}",
    }


def _own_layers(model: ModelConfig) -> str:
    owners = [model.encoder.parameter_owners(n) for n in range(model.encoder.num_layers)]
    attention, ffn = (len(set(layers)) for layers in zip(*owners, strict=True))
    return f"{attention}" if attention == ffn else f"{attention} attention, {ffn} feed-forward"


def _named(name: str) -> tuple[ModelConfig, SentencePairs | None]:
    """Return a model and the kind of sentence pairs it was pretrained on (None if unknown)."""
    directory = local_model(name)
    if directory.is_dir() or name not in VARIANTS:
        if not directory.is_dir():
            plain = name.removeprefix("bert-")  # BERT's sizes are named "base", "large" etc.
            similar = plain if plain in VARIANTS else name
            raise ValueError(
                f"{name}: neither a work directory nor the name of a model; "
                f"{nearest(similar, [*SMALL_MODELS, *VARIANTS])}."
            )
        model, origin = read_model(directory)
        pairs = origin.get(PAIRS)
        return model, next((kind for kind in get_args(SentencePairs) if kind == pairs), None)
    pairs_of_family: dict[str, SentencePairs] = {
        "roberta": "none",
        "albert": "sentence_order",
        "distilbert": "none",
        "electra": "none",
    }
    kind = pairs_of_family.get(name.partition("-")[0], "next_sentence")
    head: PretrainingHead = "masked_lm" if kind == "none" else "pretraining"
    if name.startswith("electra") and not name.endswith("generator"):
        head = "replaced_token"
    return ModelConfig(variant(name), head=head), kind


def _objective(model: ModelConfig, pairs: SentencePairs | None) -> str:
    if model.head == "replaced_token":
        return "replaced tokens"
    if model.head not in ("pretraining", "masked_lm"):
        return model.head
    match pairs:
        case "next_sentence":
            return "masked LM, next sentence"
        case "sentence_order":
            return "masked LM, sentence order"
        case "none" | None:
            return "masked LM"
        case _:
            assert_never(pairs)
