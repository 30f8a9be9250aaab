"""Register the task kinds that other installed packages provide."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

GROUP = "bert_jax.task_kinds"


def register_plugins() -> None:
    """Register the `TaskKind` that each entry point in the group `GROUP` refers to.

    JAX is not imported if there are no entry points.

    Raises:
      ValueError: an entry point cannot be loaded, does not refer to a `TaskKind`, or conflicts with
        another task kind.
    """
    for entry in entry_points(group=GROUP):
        _register(entry)


def _register(entry: EntryPoint) -> None:
    from bert_jax.finetuning.registry import register
    from bert_jax.finetuning.task_kind import TaskKind

    package = "a package" if entry.dist is None else entry.dist.name
    origin = f"{GROUP}={entry.value!r} of {package}"
    try:
        kind = entry.load()
    except Exception as error:  # a package can raise any exception when it is imported
        raise ValueError(
            f"{origin}: cannot be loaded ({type(error).__name__}: {error}). Fix or uninstall the "
            "package (BERT_JAX_TRACEBACK=1 shows its traceback)."
        ) from error
    if not isinstance(kind, TaskKind):
        raise ValueError(
            f"{origin}: refers to a {type(kind).__name__}. It must refer to a TaskKind."
        )
    try:
        register(kind)
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from error
