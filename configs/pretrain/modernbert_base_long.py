r"""ModernBERT-base as published (Warner et al. 2024), second stage: rows of 8,192 tokens.

The run starts from the model that modernbert_base has trained with rows of 1,024 tokens. The base
of the rotary angles rises from 10,000 to 160,000 in the layers with global attention (section
2.2.2, "Context Length Extension"). According to table 3, batches have 576 rows (72 on each of eight
GPUs). The learning rate is 3e-4 for 250 billion tokens (phase1). Over the next 50 billion tokens
(phase2), it falls to a thousandth of that (as in the released configuration), in proportion to
1 - sqrt(x), where x is the completed fraction of the decay. Everything else is as in
modernbert_base, which also explains the weight decay. Here, its value is 1e-5 / 3e-4.

Difference from the paper: instead of keeping the optimizer state of the first stage, the run starts
with a new one. The learning rate therefore rises over the first 100 steps, which is twice the
number of steps over which a beta of 0.98 averages.

Corpora (in the paper, phase1 uses texts of 8,192 tokens from the first stage's text, and phase2
takes more of its text from the better sources):
    for part in text best; do
      bert-jax prepare --input TEXT_OF_$part --tokenizer corpora/modernbert-tokenizer \
          --output corpora/modernbert8192-$part --max-length 8192
    done
Command, after running modernbert_base.py:
    bert-jax pretrain --config configs/pretrain/modernbert_base_long.py
The published model is the average of four checkpoints from the decay (appendix A.5). To average the
last four checkpoints of this run:
    bert-jax extract runs/modernbert_base_long --average 4 --output models/modernbert
Hardware: any, if the number of data-parallel devices divides 576; with few devices, also set
--config.accumulation_steps=N. Published: 40 and 12 hours on eight H100 GPUs (table 3). This recipe
has not been run.
"""

from ml_collections import ConfigDict

from .modernbert_base import get_config as first_stage


def get_config() -> ConfigDict:
    config = first_stage()
    config.work_dir = "runs/modernbert_base_long"
    config.init_from = "runs/modernbert_base"
    config.model.update(max_positions=8192, rotary_theta=160_000.0)
    config.phases = dict(
        phase1=dict(
            corpus="corpora/modernbert8192-text",
            sequence_length=8192,
            batch_size=576,
            num_steps=52_982,
        ),
        phase2=dict(
            corpus="corpora/modernbert8192-best",
            sequence_length=8192,
            batch_size=576,
            num_steps=10_596,
        ),
    )
    config.optimizer.update(
        peak_learning_rate=3e-4,
        warmup_steps=100,
        schedule="wsd",
        decay_steps=10_596,
        decay_shape="1-sqrt",
        end_learning_rate=3e-7,
        weight_decay=1e-5 / 3e-4,
    )
    # Keep the four newest checkpoints, all of them from the decay, so that they can be averaged.
    # The losses in the two phases are on different held-out sets, so they do not show which
    # checkpoint is best.
    config.checkpoint.update(every_steps=1_000, keep_last=4, keep_best=0)
    return config
