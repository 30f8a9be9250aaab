r"""../modernbert_large.py scaled down for two CPU cores: 7 layers of 128 features.

As published (Warner et al. 2024, section 2.2.2 and table 3), compared with modernbert_base.py in
this directory: more layers, wider feed-forward blocks, and five eighths of the peak learning rate.
The weight decay per step is the same at the peak rate. The last steps use a tenth of the rate.
Every third layer has global attention: the first, the fourth and the last of the seven. All other
settings are the same as in modernbert_base.py.

Scaled down: 400 steps with the higher rate, then 100 with the lower one. The published model is
also a third wider than ModernBERT-base; here, both have 128 features. As in ../modernbert_large.py,
the parameters are randomly initialized.

Corpus:
    the commands in roberta_base.py in this directory
Commands, the second one for the lower learning rate:
    bert-jax pretrain --config configs/pretrain/small/modernbert_large.py
    bert-jax pretrain --config configs/pretrain/small/modernbert_large.py \
        --config.optimizer.peak_learning_rate=1.25e-4 --config.phases.phase1.num_steps=500
Hardware: two CPU cores.
Measured on one core of an AMD EPYC while another run used the second one (2026-11-30): 8 min 15 s.
The held-out masked-LM loss was 4.75 nats after the first command and 4.64 after the second one,
compared with a unigram cross-entropy of 6.85. With the same text, modernbert_base.py reached 4.40
with its higher rate; a deeper model of this width does not pay off in so short a run.
"""

from ml_collections import ConfigDict

from .modernbert_base import get_config as base


def get_config() -> ConfigDict:
    config = base()
    config.work_dir = "runs/small/modernbert_large"
    config.model.update(num_layers=7, ffn_dim=320)
    config.phases.phase1.num_steps = 400
    config.optimizer.update(peak_learning_rate=1.25e-3, weight_decay=1e-5 / 5e-4)
    return config
