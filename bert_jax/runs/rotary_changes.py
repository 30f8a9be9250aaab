"""Find the rotary angles that a run uses at each step, if they change between its phases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bert_jax.models.config import EncoderConfig


@dataclass(frozen=True)
class RotaryChange:
    """A change of the base of the rotary angles during a run.

    Attributes:
      after_step: the last step with the former base; 0 if the first step uses the new one.
      rotary_theta: the base in all later steps, up to the next change.
    """

    after_step: int
    rotary_theta: float


def rotary_changes(
    encoder: EncoderConfig, phases: Iterable[tuple[int, EncoderConfig]]
) -> tuple[RotaryChange, ...]:
    """Return the changes that a run makes to the rotary angles of its encoder.

    Args:
      encoder: the run's encoder.
      phases: (first step, encoder) for each phase, in running order.
    """
    changes, theta = [], encoder.rotary_theta
    for first_step, own in phases:
        if own.rotary_theta != theta:
            theta = own.rotary_theta
            changes.append(RotaryChange(first_step, theta))
    return tuple(changes)


def encoder_at(encoder: EncoderConfig, changes: Sequence[RotaryChange], step: int) -> EncoderConfig:
    """Return the encoder that the parameters after `step` steps were trained with.

    Args:
      encoder: the run's encoder.
      changes: the changes that the run makes, in order.
      step: the number of completed steps. A change that takes effect with the next step is not
        included, except at the start of the run.
    """
    for change in changes:
        if step > change.after_step or change.after_step == 0:
            encoder = dataclasses.replace(encoder, rotary_theta=change.rotary_theta)
    return encoder
