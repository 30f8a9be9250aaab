"""Name the categories of a run's time after those in Google's goodput library.

The names are the members of `BadputType` in ml-goodput-measurement 0.2.3, in lower case. Categories
that the library does not have are in its group `custom_badput_events`.
"""

from __future__ import annotations

from typing import Literal, get_args

# The categories of time that a running process records.
Activity = Literal[
    "productive",
    "tpu_initialization",
    "training_prep",
    "program_startup",
    "data_loading_sync",
    "unproductive_checkpoint_save_time",
    "unproductive_checkpoint_restore_time",
    "evaluation",
    "downstream",
    "data_stall",
    "other",
]
# These two categories of time can only be derived from a run's history. They contain the steps that
# had to be repeated, and the time during which no process was running.
Loss = Literal["wasted_progress_from_disruption", "infrastructure_recovery_from_disruption"]
Category = Activity | Loss

ACTIVITIES: tuple[Activity, ...] = get_args(Activity)
CATEGORIES: tuple[Category, ...] = (*ACTIVITIES[:-1], *get_args(Loss), ACTIVITIES[-1])
CUSTOM: tuple[Category, ...] = ("evaluation", "downstream", "data_stall")

PRODUCTIVE: Activity = "productive"
INITIALIZATION: Activity = "tpu_initialization"
PREPARATION: Activity = "training_prep"
COMPILATION: Activity = "program_startup"
FIRST_BATCH: Activity = "data_loading_sync"
SAVE: Activity = "unproductive_checkpoint_save_time"
RESTORE: Activity = "unproductive_checkpoint_restore_time"
EVALUATION: Activity = "evaluation"
DOWNSTREAM: Activity = "downstream"
STALL: Activity = "data_stall"
OTHER: Activity = "other"
REPEATED: Loss = "wasted_progress_from_disruption"
IDLE: Loss = "infrastructure_recovery_from_disruption"

DESCRIPTIONS: dict[Category, str] = {
    "productive": "training steps",
    "tpu_initialization": "starting the program and its devices",
    "training_prep": "opening the corpus, preparing the state",
    "program_startup": "tracing and compiling",
    "data_loading_sync": "waiting for the first batch",
    "unproductive_checkpoint_save_time": "saving checkpoints",
    "unproductive_checkpoint_restore_time": "verifying and restoring checkpoints",
    "evaluation": "evaluating",
    "downstream": "fine-tuning checkpoints",
    "data_stall": "waiting for later batches",
    "wasted_progress_from_disruption": "steps that were lost and repeated",
    "infrastructure_recovery_from_disruption": "not running, between two starts",
    "other": "anything else",
}
