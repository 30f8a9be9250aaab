"""Measure how well pretrained models predict the same masked tokens in held-out text."""

from __future__ import annotations

from pathlib import Path

import jax

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.manifest import TOKENIZER
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.pipeline.examples import ExampleConfig, ExampleSource
from bert_jax.pipeline.loader import EvaluationSource
from bert_jax.pipeline.masking import MaskingConfig
from bert_jax.runs.checkpoints import load_model_parameters
from bert_jax.runs.work_dir import read_model
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tokenizers.special_tokens import Vocabulary
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.evaluation import evaluate
from bert_jax.training.sharding import MeshConfig, local_rows, make_mesh, to_global
from bert_jax.training.step import make_evaluation_step

_ROWS = 32


def probe(work_dir: Path, corpus: Path, masking_rate: float) -> dict[str, float]:
    """Return a model's mlm_loss (nats) and mlm_accuracy on a corpus's held-out split.

    All models are evaluated in float32 on single-segment rows with the same masks, regardless of
    their objectives and seeds.

    Args:
      work_dir: the work directory of a pretraining run.
      corpus: the directory of the corpus.
      masking_rate: the fraction of tokens to mask.
    """
    masking = MaskingConfig(rate=masking_rate)
    examples = ExampleConfig(seed=0, sentence_pairs="none", masking=masking)
    config, _ = read_model(work_dir)
    compute = ComputeConfig(dtype="float32", attention="xla")
    task = Pretraining(config.encoder, compute, sentence_pairs="none")
    params = load_model_parameters(work_dir, config, compute)
    params = {name: params[name] for name in task.definition.shapes}
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    vocabulary = Vocabulary.of(Tokenizer.load(corpus / TOKENIZER))
    rows = local_rows(mesh, _ROWS)
    source = EvaluationSource(
        ExampleSource(Corpus(corpus, "heldout"), vocabulary, examples),
        batch_size=_ROWS,
        local_rows=rows,
    )
    batches = (to_global(source[step], mesh, rows, _ROWS) for step in range(len(source)))
    metrics = evaluate(make_evaluation_step(task, mesh), params, batches)
    return {name: metrics[name] for name in ("mlm_loss", "mlm_accuracy")}
