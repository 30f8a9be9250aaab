"""Compiled programs kept on disk from one run to the next."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def keep_programs() -> None:
    """Has JAX keep what takes it a second or more to compile, in JAX_COMPILATION_CACHE_DIR.

    Where that is not set, a process alone keeps it in bert_jax/programs of the user's cache
    directory. Of several the first alone writes, and where the others do not see its directory they
    would compile what it finds there; on GPUs they then wait for its share of the tuning for ever.
    Runs that differ in seed, learning rate or number of steps alone have the same programs. To be
    called when the processes have joined.
    """
    alone = jax.process_count() == 1
    if alone and jax.config.values["jax_compilation_cache_dir"] is None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "bert_jax" / "programs"))
