"""Find recipes by name, read config files, and override keys.

In a checkout, the recipes are in the `configs` directory; in a wheel, they are in this package. In
either case, a config file can import them: `from bert_jax.recipes.pretrain.tiny import get_config`.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
RECIPES = _HERE if (_HERE / "pretrain").is_dir() else _HERE.parents[1] / "configs"
if RECIPES != _HERE:
    __path__.append(str(RECIPES))
