"""Config files: find recipes by name, read files, and override keys.

The recipes are in the directory `configs` of a checkout, and in this package in a wheel. In both
cases, a config file can import them: `from bert_jax.recipes.pretrain.tiny import get_config`.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
RECIPES = _HERE if (_HERE / "pretrain").is_dir() else _HERE.parents[1] / "configs"
if RECIPES != _HERE:
    __path__.append(str(RECIPES))
