r"""ModernBERT-large as published (Warner et al. 2024), first stage: rows of 1,024 tokens.

The objective, the optimizer, the dropout and the rotary angles are the same as in modernbert_base,
which names the sections of the paper. According to table 3, batches have 4,928 rows of 1,024 tokens
after a batch-size warm-up. The warm-up starts at 448 rows, lasts 10 billion tokens, and takes the
same number of steps at each size (appendix A.1). In this recipe, it takes 396 steps at each
multiple of 448. The learning rate rises to 5e-4 over 2 billion tokens and then stays constant for
900 billion tokens. With this rate, the loss stopped falling for a few hundred billion tokens, so
the authors went back and trained with a rate of 5e-5 for the rest of the 1.719 trillion tokens
(section 2.2.2 and appendix C.2). The released configuration recommends a lower rate from the start.

The fully decoupled weight decay of 1e-5 in table 3 (1e-6 with the lower rate) is 0.02 times the
peak learning rate; see modernbert_base.

Differences from the paper, besides the initializer range (see modernbert_base): the parameters are
randomly initialized instead of being tiled from ModernBERT-base's (section 2.2.2 and appendix A.3),
and during the warm-up, the learning rate rises linearly with the steps, not with the tokens.

Corpus: the same as for modernbert_base.py.
Commands, the second one for the lower learning rate:
    bert-jax pretrain --config configs/pretrain/modernbert_large.py
    bert-jax pretrain --config configs/pretrain/modernbert_large.py \
        --config.optimizer.peak_learning_rate=5e-5 --config.phases.phase1.num_steps=342628
The second command continues the run with its optimizer state. To go back to an earlier checkpoint,
add --from-step.
Hardware: any, if the number of data-parallel devices divides 448; with few devices, also set
--config.accumulation_steps=N. Published: 425 hours on eight H100 GPUs (table 3). This recipe has
not been run.
"""

from ml_collections import ConfigDict

from .modernbert_base import get_config as base


def get_config() -> ConfigDict:
    config = base()
    config.work_dir = "runs/modernbert_large"
    config.model.update(hidden_dim=1024, num_layers=28, num_heads=16, ffn_dim=2624)
    config.phases.phase1.update(
        batch_size=4_928,
        warmup_batch_sizes=tuple(range(448, 4_928, 448)),
        warmup_batch_steps=396,
        num_steps=180_330,
    )
    config.optimizer.update(peak_learning_rate=5e-4, warmup_steps=1_664, weight_decay=1e-5 / 5e-4)
    return config
