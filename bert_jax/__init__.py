"""BERT in JAX: from raw text to a pretrained and fine-tuned encoder.

The public API consists of the names below, which `import bert_jax as bj` provides. Each name is
imported on first use, so importing the package does not import JAX. Everything else is private and
may change.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from bert_jax.version import __version__

if TYPE_CHECKING:
    from bert_jax.corpus.corpus import Corpus
    from bert_jax.corpus.prepare import PreparedCorpus, prepare
    from bert_jax.corpus.train_tokenizer import train_tokenizer
    from bert_jax.downstream.follow import follow
    from bert_jax.downstream.pretraining import pretrain
    from bert_jax.finetuning.config import EvaluationConfig, FinetuneConfig
    from bert_jax.finetuning.evaluation import evaluate
    from bert_jax.finetuning.sweep import sweep
    from bert_jax.finetuning.training import finetune
    from bert_jax.inference.answer_question import AnswerQuestion
    from bert_jax.inference.classify import Choose, Classify
    from bert_jax.inference.embed import Embed, cosine_similarity
    from bert_jax.inference.fill_mask import FillMask, NextSentence
    from bert_jax.inference.tag import Tag
    from bert_jax.interop.export import export
    from bert_jax.interop.import_model import import_model
    from bert_jax.interop.small_models import small_model
    from bert_jax.interop.verify import verify
    from bert_jax.interpretability.attention import Attention
    from bert_jax.interpretability.look import look
    from bert_jax.labeled_data.tokenized_text import tokenize
    from bert_jax.language_scores.minimal_pairs import score_minimal_pairs
    from bert_jax.language_scores.pseudo_likelihood import PseudoLikelihood
    from bert_jax.language_scores.text_scores import score_text
    from bert_jax.models.compute_config import ComputeConfig
    from bert_jax.models.config import EncoderConfig
    from bert_jax.models.encoder import Encoder
    from bert_jax.models.pretraining_models import PretrainingModel
    from bert_jax.pipeline.corpus_loader import CorpusLoader
    from bert_jax.pipeline.masking import MaskingConfig
    from bert_jax.pretraining.config import PretrainConfig
    from bert_jax.pretraining.plan import plan
    from bert_jax.processes import tune_malloc_for_training
    from bert_jax.recipes.inspect_corpus import inspect_corpus
    from bert_jax.recipes.load import load_config
    from bert_jax.recipes.show_batch import show_batch
    from bert_jax.runs.checkpoints import load_model
    from bert_jax.runs.extraction import extract
    from bert_jax.runs.new_words import add_words
    from bert_jax.runs.trainer import Trainer
    from bert_jax.tasks.custom import CustomTask
    from bert_jax.tasks.pretraining import Pretraining
    from bert_jax.tasks.task import cross_entropy, weighted_mean
    from bert_jax.tokenizers.tokenizer import Tokenizer
    from bert_jax.training.distributed import StopRequest
    from bert_jax.training.divergence import DivergenceConfig
    from bert_jax.training.reports import (
        DivergenceReport,
        EvaluationReport,
        Message,
        TrainReport,
    )
    from bert_jax.training.sharding import MeshConfig

__all__ = [
    "AnswerQuestion",
    "Attention",
    "Choose",
    "Classify",
    "ComputeConfig",
    "Corpus",
    "CorpusLoader",
    "CustomTask",
    "DivergenceConfig",
    "DivergenceReport",
    "Embed",
    "Encoder",
    "EncoderConfig",
    "EvaluationConfig",
    "EvaluationReport",
    "FillMask",
    "FinetuneConfig",
    "MaskingConfig",
    "MeshConfig",
    "Message",
    "NextSentence",
    "PreparedCorpus",
    "PretrainConfig",
    "Pretraining",
    "PretrainingModel",
    "PseudoLikelihood",
    "StopRequest",
    "Tag",
    "Tokenizer",
    "TrainReport",
    "Trainer",
    "__version__",
    "add_words",
    "cosine_similarity",
    "cross_entropy",
    "evaluate",
    "export",
    "extract",
    "finetune",
    "follow",
    "import_model",
    "inspect_corpus",
    "load_config",
    "load_model",
    "look",
    "plan",
    "prepare",
    "pretrain",
    "score_minimal_pairs",
    "score_text",
    "show_batch",
    "small_model",
    "sweep",
    "tokenize",
    "train_tokenizer",
    "tune_malloc_for_training",
    "verify",
    "weighted_mean",
]

_MODULES = {
    "AnswerQuestion": "inference.answer_question",
    "Attention": "interpretability.attention",
    "Choose": "inference.classify",
    "Classify": "inference.classify",
    "ComputeConfig": "models.compute_config",
    "Corpus": "corpus.corpus",
    "CorpusLoader": "pipeline.corpus_loader",
    "CustomTask": "tasks.custom",
    "DivergenceConfig": "training.divergence",
    "DivergenceReport": "training.reports",
    "Embed": "inference.embed",
    "Encoder": "models.encoder",
    "EncoderConfig": "models.config",
    "EvaluationConfig": "finetuning.config",
    "EvaluationReport": "training.reports",
    "FillMask": "inference.fill_mask",
    "FinetuneConfig": "finetuning.config",
    "MaskingConfig": "pipeline.masking",
    "MeshConfig": "training.sharding",
    "Message": "training.reports",
    "NextSentence": "inference.fill_mask",
    "PreparedCorpus": "corpus.prepare",
    "PretrainConfig": "pretraining.config",
    "Pretraining": "tasks.pretraining",
    "PretrainingModel": "models.pretraining_models",
    "PseudoLikelihood": "language_scores.pseudo_likelihood",
    "StopRequest": "training.distributed",
    "Tag": "inference.tag",
    "Tokenizer": "tokenizers.tokenizer",
    "TrainReport": "training.reports",
    "Trainer": "runs.trainer",
    "cosine_similarity": "inference.embed",
    "cross_entropy": "tasks.task",
    "evaluate": "finetuning.evaluation",
    "export": "interop.export",
    "add_words": "runs.new_words",
    "extract": "runs.extraction",
    "finetune": "finetuning.training",
    "follow": "downstream.follow",
    "import_model": "interop.import_model",
    "inspect_corpus": "recipes.inspect_corpus",
    "load_config": "recipes.load",
    "load_model": "runs.checkpoints",
    "look": "interpretability.look",
    "plan": "pretraining.plan",
    "prepare": "corpus.prepare",
    "pretrain": "downstream.pretraining",
    "score_minimal_pairs": "language_scores.minimal_pairs",
    "score_text": "language_scores.text_scores",
    "show_batch": "recipes.show_batch",
    "small_model": "interop.small_models",
    "sweep": "finetuning.sweep",
    "tokenize": "labeled_data.tokenized_text",
    "train_tokenizer": "corpus.train_tokenizer",
    "tune_malloc_for_training": "processes",
    "verify": "interop.verify",
    "weighted_mean": "tasks.task",
}

# Type checkers must not see `__getattr__`, because they would then accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            message = f"module {__name__!r} has no attribute {name!r}"
            # These arguments let Python's traceback suggest a similar name.
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
