r"""ModernBERT-large as published (Warner et al. 2024), second stage: rows of 8,192 tokens.

The run starts from the model that modernbert_large has trained with rows of 1,024 tokens, and
proceeds like modernbert_base_long. According to table 3, the learning rate is 5e-5, and batches
have 616 rows for 250 billion tokens and 624 rows for the decay over 50 billion tokens. The fully
decoupled weight decay of 1e-6 is 0.02 times the peak learning rate; see modernbert_base.

Corpora: the same as for modernbert_base_long.py, and corpora/heldout.txt, a text that is in neither
of them. The losses in the two phases are on different held-out sets, so checkpoints are compared by
their loss on this text.
Command, to be run after both commands in modernbert_large.py:
    bert-jax pretrain --config configs/pretrain/modernbert_large_long.py
The published model is the best checkpoint from the decay (appendix A.5). The run evaluates the
decay every 1,000 steps. To extract the checkpoint with the lowest loss of the whole run:
    bert-jax extract runs/modernbert_large_long --step best --output models/modernbert-large
Hardware: any, if the number of data-parallel devices divides 8; with few devices, also set
--config.accumulation_steps=N. Published: 81 and 22 hours on eight H100 GPUs (table 3). This recipe
has not been run.
"""

from ml_collections import ConfigDict

from .modernbert_base_long import get_config as base_long
from .modernbert_large import get_config as first_stage


def get_config() -> ConfigDict:
    config = base_long()
    config.work_dir = "runs/modernbert_large_long"
    config.init_from = "runs/modernbert_large"
    config.model.update(first_stage().model)
    config.model.update(max_positions=8192, rotary_theta=160_000.0)
    config.phases.phase1.update(batch_size=616, num_steps=49_542)
    config.phases.phase2.update(batch_size=624, num_steps=9_781)
    config.optimizer.update(
        peak_learning_rate=5e-5,
        decay_steps=9_781,
        end_learning_rate=5e-8,
        weight_decay=1e-6 / 5e-5,
    )
    config.evaluation.update(every_steps=1_000, texts=("corpora/heldout.txt",), max_sentences=0)
    config.checkpoint.update(keep_best=1, best_metric="text_heldout_mlm_loss")
    return config
