"""Define the config of a pretraining run's evaluations."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bert_jax.language_scores.metric_names import text_metrics_of, text_names
from bert_jax.local_paths import LocalPath, PathOrUrl
from bert_jax.training.reports import PAIRS_ACCURACY
from bert_jax.validation import check_at_least, check_list

# A dict from the config key of evaluation data to the settings that apply only to this data.
_USERS = {
    "texts": ("text_length", "max_sentences"),
    "minimal_pairs": ("max_pairs",),
    "downstream": ("downstream_every",),
}


@dataclass(frozen=True)
class EvaluationConfig:
    """The evaluation on the held-out split of the corpora, on other texts and on minimal pairs.

    Attributes:
      every_steps: the number of steps between evaluations; the last step is always evaluated.
        0 disables evaluation.
      batch_size: the number of sequences per evaluation batch. If 0, it is the number that a train
        step processes at once: the phase's batch_size divided by accumulation_steps.
      max_records: the maximum number of records to score. A larger split is sampled at random, and
        every evaluation uses the same sample. 0 scores all records.
      masking_rate: the fraction of held-out tokens to predict; 0 for the training rate of the last
        step. Losses measured at different rates are not comparable, so set this to compare runs
        whose masking rates differ.
      texts: files or directories of text, in any format that `prepare` reads. Each evaluation
        computes the scores that `evaluate --text` prints. Metrics are named after the files, such
        as text_novel_mlm_loss.
      text_length: the maximum number of tokens in a row of these texts; 0 for the smallest
        sequence_length of any phase, so that the scores of all phases can be compared.
      max_sentences: the maximum number of sentences from each text for computing the
        pseudo-perplexity. Every evaluation uses the same sample. 0 to omit the pseudo-perplexity.
      minimal_pairs: a JSON Lines file of minimal pairs with BLiMP's fields, or a directory of such
        files; "" for none. Each evaluation computes the accuracy that `evaluate --minimal-pairs`
        prints (pairs_accuracy), and the accuracy on each phenomenon.
      max_pairs: the maximum number of pairs from each paradigm. Every evaluation uses the same
        sample. 0 for all pairs.
      downstream: names of fine-tuning recipes and paths of config files. The run saves a checkpoint
        after some evaluations, fine-tunes it on each of these tasks before it continues, and
        logs the scores in downstream.jsonl. `bert-jax follow` does the same in another process.
      downstream_every: how often to fine-tune: after every evaluation (1), every second evaluation
        (2), and so on. The last checkpoint is always fine-tuned.
    """

    every_steps: int = 1_000
    batch_size: int = 0
    max_records: int = 0
    masking_rate: float = 0.0
    texts: tuple[PathOrUrl, ...] = ()
    text_length: int = 0
    max_sentences: int = 100
    minimal_pairs: PathOrUrl = ""
    max_pairs: int = 20
    downstream: tuple[LocalPath, ...] = ()
    downstream_every: int = 10

    def __post_init__(self) -> None:
        sizes = {"batch_size": self.batch_size, "max_records": self.max_records}
        check_at_least(0, "evaluation.", every_steps=self.every_steps, **sizes)
        limits = {"max_sentences": self.max_sentences, "max_pairs": self.max_pairs}
        check_at_least(0, "evaluation.", text_length=self.text_length, **limits)
        check_at_least(1, "evaluation.", downstream_every=self.downstream_every)
        if not 0 <= self.masking_rate <= 1:
            raise ValueError(
                f"evaluation.masking_rate={self.masking_rate}: must be above 0 and at most 1, or 0 "
                "for the training rate of the last step."
            )
        check_list("evaluation.texts", self.texts)
        check_list("evaluation.downstream", self.downstream)
        text_names(self.texts, "evaluation.texts")
        self._check_used()
        for key in ("texts", "minimal_pairs", "downstream"):
            if getattr(self, key) and not self.every_steps:
                raise ValueError(
                    f"evaluation.{key} with evaluation.every_steps=0: without evaluations, {key} "
                    f"has no effect. Set every_steps, or leave out {key}."
                )

    def _check_used(self) -> None:
        """Raise ValueError if a setting is changed although the data that it applies to is missing.

        The data are the texts, the minimal pairs or the downstream tasks.
        """
        defaults = {field.name: field.default for field in fields(self)}
        for data, names in _USERS.items():
            for name in names:
                value = getattr(self, name)
                if value != defaults[name] and not getattr(self, data):
                    raise ValueError(
                        f"evaluation.{name}={value}: has no effect without evaluation.{data}. Set "
                        f"{data}, or leave {name} at {defaults[name]}."
                    )

    @property
    def scores_language(self) -> bool:
        """Whether the config has texts or minimal pairs to score."""
        return bool(self.texts or self.minimal_pairs)

    def fine_tunes_after(self, step: int, total_steps: int) -> bool:
        """Return whether the checkpoint after `step` steps is fine-tuned on `downstream`."""
        interval = self.every_steps * self.downstream_every
        return bool(self.downstream) and (step == total_steps or step % interval == 0)

    @property
    def language_metrics(self) -> list[str]:
        """The names of the scores on texts, and of the accuracy over all minimal pairs."""
        names = text_names(self.texts, "evaluation.texts")
        metrics = text_metrics_of(names, sentences=self.max_sentences > 0)
        return [*metrics, *([PAIRS_ACCURACY] if self.minimal_pairs else [])]
