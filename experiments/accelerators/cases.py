"""List the train steps that the experiment compiles."""

from __future__ import annotations

from dataclasses import dataclass

# The topology with a single chip, and the chip's name in the table.
CHIPS = {
    "v5e": ("v5e:1x1", "TPU v5e"),
    "v5p": ("v5p:1x1x1", "TPU v5p"),
    "v6e": ("v6e:1x1", "TPU v6e"),
    "h100": ("h100:1", "H100"),
    "h200": ("h200:1", "H200"),
}
GPUS = ("h100", "h200")


@dataclass(frozen=True)
class Model:
    """A model with rows of one length.

    Attributes:
      title: the name in the table.
      recipe: the config file.
      phase: the phase whose rows have this length.
      other_phase: the recipe's other phase; empty if there is none.
      length: the number of tokens per row.
      num_layers: the number of layers.
      compiled: the two numbers of layers for which steps are compiled. They differ from each other
        and from `num_layers` by whole periods of the pattern of local and global layers.
      rows: the number of rows per step on a TPU and on a GPU.
      overrides: more command-line overrides.
    """

    title: str
    recipe: str
    phase: str
    other_phase: str
    length: int
    num_layers: int
    compiled: tuple[int, int]
    rows: tuple[int, int]
    overrides: tuple[str, ...] = ()

    def words(self, chip: str, num_layers: int) -> list[str]:
        """Return the command-line overrides that give the recipe this number of layers."""
        words = [
            f"model.num_layers={num_layers}",
            f"phases.{self.phase}.batch_size={self.rows[chip in GPUS]}",
            f"phases.{self.phase}.warmup_batch_sizes=()",
            f"phases.{self.phase}.warmup_batch_steps=0",
            *self.overrides,
        ]
        return words + [f"phases.{self.other_phase}=None"] * bool(self.other_phase)


_BASE, _LARGE = "bert_base", "bert_large"
MODELS = {
    "base-128": Model("BERT-base", _BASE, "phase1", "phase2", 128, 12, (1, 2), (128, 512)),
    "base-512": Model("BERT-base", _BASE, "phase2", "phase1", 512, 12, (1, 2), (32, 128)),
    "base-512-without-attention-dropout": Model(
        "BERT-base without attention dropout",
        _BASE,
        "phase2",
        "phase1",
        512,
        12,
        (1, 2),
        (32, 128),
        ("model.attention_dropout=0.0",),
    ),
    "large-128": Model("BERT-large", _LARGE, "phase1", "phase2", 128, 24, (1, 2), (64, 256)),
    "large-512": Model("BERT-large", _LARGE, "phase2", "phase1", 512, 24, (1, 2), (16, 64)),
    "modernbert-1024": Model(
        "ModernBERT-base", "modernbert_base", "phase1", "", 1024, 22, (4, 7), (16, 64)
    ),
    "modernbert-8192": Model(
        "ModernBERT-base", "modernbert_base_long", "phase1", "phase2", 8192, 22, (4, 7), (2, 8)
    ),
}
