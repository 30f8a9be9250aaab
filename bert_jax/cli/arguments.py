"""Declare the options that multiple verbs share.

This module must not import JAX, because the command line imports it before it imports a verb.
"""

from bert_jax.argument_parser import ArgumentParser, free_text


def add_work_dir_argument(
    parser: ArgumentParser, help: str = "work directory, or a small model such as mini-ner"
) -> None:
    """Declare the model's work directory, which is the first positional argument."""
    parser.add_argument("work_dir", metavar="WORKDIR", help=help)


def add_config_argument(parser: ArgumentParser, *, required: bool = True) -> None:
    """Declare `--config RECIPE`; any key can be overridden with `--config.a.b=value`."""
    parser.add_option(
        "--config",
        "RECIPE",
        "name of a recipe, such as tiny or sst2, or path of a config file (FILE.py); "
        "--config.section.key=value overrides a key (to clear an optional key, set it to None), "
        "and `bert-jax keys` lists all keys",
        required=required,
    )


def add_init_argument(parser: ArgumentParser, more: str = "") -> None:
    """Declare `--init`, and append `more` to its help text."""
    parser.add_option(
        "--init",
        "DIR",
        "work directory made by `pretrain`, `import` or `finetune`, from which the initial "
        f"parameters are loaded (--config.init_from){more}",
    )


def add_data_argument(parser: ArgumentParser) -> None:
    """Declare `--data` for commands that train on a task."""
    parser.add_option(
        "--data",
        "FILE",
        "training file to use instead of the config's, in the same format; for GLUE, the task's "
        "directory, including its validation and test files",
    )


def add_distributed_argument(parser: ArgumentParser) -> None:
    """Declare `--distributed`."""
    parser.add_flag(
        "--distributed",
        "connect to the other hosts of a Cloud TPU pod (automatic under Slurm, Open MPI and "
        "launch/local.sh)",
    )


def add_from_step_argument(parser: ArgumentParser) -> None:
    """Declare `--from-step`."""
    parser.add_number(
        "--from-step",
        "step of the checkpoint to resume from instead of the newest; later checkpoints are moved "
        "to checkpoints-set-aside/ in the work directory. This applies only once: after an "
        "interruption, the same command resumes from the newest checkpoint",
        minimum=0,
    )


def add_text_arguments(parser: ArgumentParser) -> None:
    """Declare a text, an optional second text, and `--max-length`."""
    parser.add_argument("text", type=free_text, metavar="TEXT", help="text to read")
    second = "second text of a pair, such as the passage for a question"
    parser.add_argument("second", nargs="?", type=free_text, metavar="SECOND", help=second)
    parser.add_number("--max-length", "maximum number of tokens; longer texts are truncated")
