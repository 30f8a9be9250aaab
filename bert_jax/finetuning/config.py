"""The config of a fine-tuning run, and the same config with another file of the task.

`configs/finetune/*.py` fill it in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from pathlib import Path

from bert_jax.finetuning.choices import ChoicesConfig, open_choices
from bert_jax.finetuning.sentences import GlueConfig, SentencesConfig, open_glue, open_sentences
from bert_jax.finetuning.spans import SpansConfig, open_spans
from bert_jax.finetuning.tags import TagsConfig, open_tags
from bert_jax.finetuning.task_data import ExampleSet, TaskData
from bert_jax.labeled_data.column_detection import detect_columns
from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.labeled_data.files import Split
from bert_jax.local_paths import LocalPath, check_config_paths
from bert_jax.models.config import ComputeConfig
from bert_jax.models.model import ModelConfig
from bert_jax.text.files import COMPRESSIONS, is_tfds
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.loop import Intervals
from bert_jax.training.optimizer import OptimizerConfig, TuningConfig
from bert_jax.training.sharding import MeshConfig
from bert_jax.validation import check_seed, renamed_in_errors

SECTIONS = ("glue", "sentences", "choices", "tags", "spans")
# Full keys of a table's format, by the names in errors, for each section that has one.
FORM_KEYS = {
    section: {
        f"form.{field.name}": f"{section}.files.form.{field.name}" for field in fields(TableFormat)
    }
    for section in ("sentences", "choices")
}


def default_optimizer() -> OptimizerConfig:
    """AdamW with bias correction and a tenth of warm-up.

    Without either, small tasks collapse to one answer on some seeds (Mosbach et al. 2021, "On the
    Stability of Fine-tuning BERT"; Zhang et al. 2021, "Revisiting Few-sample BERT Fine-tuning").
    """
    return OptimizerConfig(peak_learning_rate=3e-5, warmup_steps=0, warmup_fraction=0.1)


@dataclass(frozen=True)
class FinetuneConfig:
    """A fine-tuning run. Of the sections glue, sentences, choices, tags and spans one is given.

    init_from: the work directory of `pretrain`, `import` or `finetune` whose parameters and
      tokenizer are taken; a run that has begun goes on without it. from_scratch: its sizes and
      tokenizer only, all parameters randomly initialized.
    seed: of random parameters, the order of the examples and dropout.
    max_length: tokens of a sequence; longer ones are cut or, with spans and tags, windowed.
    num_epochs, batch_size: examples a step, over all devices.
    evaluation_batch_size: the most examples at once; 0 takes four batches of training. On a CPU
      batches of long examples are smaller (`Scorer`).
    max_shapes: lengths that rows are padded to, at most: each compiles a program. They are chosen
      for the training examples; of a set with a longer one to be scored the last is longer.
    dropout: of the encoder and its attention; -1 takes what `init_from` was trained with.
      head_dropout: on what the classifier reads; -1 is 0.1, or 0 for a head that has none.
    evaluations_per_epoch: on the validation set, evenly spaced, the last at the epoch's end; each
      may prove the best.
    best_metric: by which the kept checkpoint is chosen; empty for the task's own.
    patience: end when so many evaluations in a row were no better than the best; 0: never. Of
      equal evaluations the last is kept, but does not count as better.
    report_every_steps: steps between progress lines.
    allow_unknown: whether more than a fifth of the tokens of a set may be unknown to the tokenizer.
    """

    work_dir: LocalPath
    init_from: LocalPath
    glue: GlueConfig | None = None
    sentences: SentencesConfig | None = None
    choices: ChoicesConfig | None = None
    tags: TagsConfig | None = None
    spans: SpansConfig | None = None
    from_scratch: bool = False
    seed: int = 0
    max_length: int = 128
    num_epochs: int = 3
    batch_size: int = 32
    evaluation_batch_size: int = 0
    accumulation_steps: int = 1
    max_shapes: int = 6
    dropout: float = -1.0
    head_dropout: float = -1.0
    evaluations_per_epoch: int = 1
    best_metric: str = ""
    patience: int = 0
    report_every_steps: int = 50
    allow_unknown: bool = False
    tensorboard: bool = False
    tuning: TuningConfig = field(default_factory=TuningConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    optimizer: OptimizerConfig = field(default_factory=default_optimizer)
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self) -> None:
        check_config_paths(self)
        given = [name for name in SECTIONS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"the task is given by one of the sections {', '.join(SECTIONS)}; there are "
                f"{', '.join(given) or 'none'}"
            )
        for name in ("work_dir", "init_from"):
            if not getattr(self, name):
                hint = " (--init on the command line)" if name == "init_from" else ""
                raise ValueError(f"{name} is empty; expected a directory{hint}")
        for name in (
            *("num_epochs", "batch_size", "accumulation_steps", "max_shapes"),
            *("evaluations_per_epoch", "report_every_steps"),
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("patience", "evaluation_batch_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be 0 or more")
        for name in ("dropout", "head_dropout"):
            if (x := getattr(self, name)) != -1.0 and not 0.0 <= x < 1.0:
                raise ValueError(f"{name}={x}: expected 0 <= x < 1, or -1")
        check_seed(self.seed)

    @property
    def rows_evaluated(self) -> int:
        """Examples in a batch of evaluation: without gradients there is room for more of them."""
        return self.evaluation_batch_size or 4 * (self.batch_size // self.accumulation_steps)

    def intervals(self, steps_per_epoch: int) -> Intervals:
        """When the run reports and evaluates; it saves what it has evaluated, and its end."""
        return Intervals(
            report=self.report_every_steps,
            evaluate=Fraction(steps_per_epoch, self.evaluations_per_epoch),
            save=self.num_epochs * steps_per_epoch,
            save_evaluated=True,
        )

    def open(
        self, tokenizer: Tokenizer, splits: Collection[Split], labels: tuple[str, ...] = ()
    ) -> TaskData:
        """Reads the task's files of these splits; test files are those that have no labels.

        labels: those of a model that is there already, which tags would else be collected for.

        Raises:
          ValueError: a file is missing or not what it should be; names file, line and value.
        """
        length = self.max_length
        if self.glue is not None:
            return open_glue(self.glue, tokenizer, length, splits)
        if self.sentences is not None:
            with renamed_in_errors(FORM_KEYS["sentences"]):
                return open_sentences(self.sentences, tokenizer, length, splits)
        if self.choices is not None:
            with renamed_in_errors(FORM_KEYS["choices"]):
                return open_choices(self.choices, tokenizer, length, splits)
        if self.tags is not None:
            return open_tags(self.tags, tokenizer, length, splits, labels)
        assert self.spans is not None
        return open_spans(self.spans, tokenizer, length, splits)


_FORMATS = (
    *(".tsv", ".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".pq", ".txt", ".text"),
    *(".conll", ".conll03", ".conll2003", ".conllu", ".bio", ".iob", ".iob2"),
)


def with_file(config: FinetuneConfig, path: str, split: Split) -> FinetuneConfig:
    """Return the config with `path` as its training, validation or test file.

    Args:
      config: the config of any task.
      path: a file in the same format or, for a GLUE task, a directory or "tfds:glue/...". A GLUE
        validation set may also be a file; training and test sets may not, since submissions are
        named after the files in the directory.
      split: the split that the file replaces.

    Raises:
      ValueError: the path is a directory where a file is needed, or the reverse.
    """
    if config.glue is None and Path(path).is_dir():
        raise ValueError(f"{path} is a directory; expected a file with {split} examples")
    if config.glue is not None and split == "train":
        if not (is_tfds(path) or Path(path).is_dir()):
            raise ValueError(
                f"{path} is not a directory: {config.glue.task} is trained on a directory with the "
                "official files (train.tsv and the others) or on tfds:glue/.... For a file of your "
                "own, use configs/finetune/table.py"
            )
        kept = config.glue.tfds_data_dir if is_tfds(path) else ""
        return replace(config, glue=replace(config.glue, directory=path, tfds_data_dir=kept))
    if config.glue is not None:
        if is_tfds(path) or Path(path).is_dir():
            kept = config.glue.tfds_data_dir if is_tfds(path) else ""
            glue = replace(config.glue, directory=path, validation="", tfds_data_dir=kept)
            return replace(config, glue=glue)
        if split == "test":
            raise ValueError(
                f"{path} is no directory: the test sets of {config.glue.task} are taken from one "
                "with the official files in it (test.tsv), or from TensorFlow Datasets"
            )
        return replace(config, glue=replace(config.glue, validation=path))
    for name in ("sentences", "choices", "tags", "spans"):
        section = getattr(config, name)
        if section is not None:
            files = replace(section.files, **{split: path})
            if split != "train" and name in FORM_KEYS:
                files = replace(files, form=files.form.for_another(path))
            return replace(config, **{name: replace(section, files=files)})
    raise AssertionError("a config has a section")


def with_columns(
    config: FinetuneConfig, split: Split = "train", model: ModelConfig | None = None
) -> FinetuneConfig:
    """Return the config with detected columns and labels instead of "auto".

    Args:
      config: the config of any task.
      split: the split whose file is read.
      model: an existing classifier, whose labels are used if they fit; None to train a new one.

    Raises:
      ValueError: see `detect_columns`.
    """
    if config.sentences is None or not config.sentences.files.detected:
        return config
    labels = None
    if model is not None:
        labels = () if model.problem == "regression" else model.labels
    with renamed_in_errors(FORM_KEYS["sentences"]):
        files = detect_columns(config.sentences.files, split, labels)
    try:
        return replace(config, sentences=replace(config.sentences, files=files))
    except ValueError as error:
        raise ValueError(f"config.sentences: {error}") from error


def named_after(path: str, sets: Mapping[str, ExampleSet]) -> dict[str, ExampleSet]:
    """Return the set that was read from the file `path`, named after the file.

    The name leaves out the extension of a known format but keeps others, as in "eng.testa". The
    sets of a directory or of TensorFlow Datasets keep their names.
    """
    if is_tfds(path) or Path(path).is_dir():
        return dict(sets)
    (examples,) = sets.values()
    file = Path(path)
    file = file.with_suffix("") if file.suffix.lower() in COMPRESSIONS else file
    return {file.stem if file.suffix.lower() in _FORMATS else file.name: examples}


def source_of(config: FinetuneConfig, split: Split) -> str:
    """Return a permanent name for a split's input: an absolute path, or "tfds:..."."""
    if config.glue is not None:
        given = config.glue.directory
        if split == "validation" and config.glue.validation:
            given = config.glue.validation
    else:
        section = config.sentences or config.choices or config.tags or config.spans
        assert section is not None
        given = getattr(section.files, split)
    return given if is_tfds(given) else str(Path(given).resolve())


def paths_of(config: FinetuneConfig) -> list[str]:
    """The task's files on disk, of GLUE its directory, as they are given."""
    if config.glue is not None:
        paths = [f"{config.glue.directory}/train.tsv", config.glue.validation]
        if is_tfds(config.glue.directory):
            del paths[0]
    else:
        section = config.sentences or config.choices or config.tags or config.spans
        assert section is not None
        paths = [section.files.train, section.files.validation, section.files.test]
    return [path for path in paths if path and not is_tfds(path)]
