"""Match the layers of a student with those of its teacher."""

from __future__ import annotations

from bert_jax.models.config import EncoderConfig


def matched_layers(student: int, teacher: int) -> list[int]:
    """Return the teacher layer, counted from 1, that each student layer is trained to match.

    The teacher's layers are evenly spaced, and the last layers of both models match each other. For
    example, 4 student layers match layers 3, 6, 9 and 12 of a 12-layer teacher (Jiao et al. 2020,
    section 4.2).

    Args:
      student: the number of layers in the student.
      teacher: the number of layers in the teacher.

    Raises:
      ValueError: the student has more layers than the teacher.
    """
    if student > teacher:
        raise ValueError(
            f"model.num_layers={student}: the teacher has only {teacher} layers to match. Use at "
            "most that many, or set distillation.hidden_weight=0 and attention_weight=0"
        )
    return [(number + 1) * teacher // student for number in range(student)]


def chosen_layers(student: int, teacher: int) -> list[int]:
    """Return the teacher layer, counted from 0, from which each student layer is initialized.

    The teacher's layers are evenly spaced, and the first layers of both models match each other.

    Args:
      student: the number of layers in the student.
      teacher: the number of layers in the teacher.

    Raises:
      ValueError: the student has more layers than the teacher.
    """
    if student > teacher:
        raise ValueError(
            f"model.num_layers={student}: the teacher has only {teacher} layers to start from. Use "
            "at most that many, or set distillation.init_layers=False"
        )
    return [number * teacher // student for number in range(student)]


def compared_windows(student: EncoderConfig, teacher: EncoderConfig) -> list[int | None]:
    """Return the window in which each student layer's attention is compared with the teacher's.

    Only pairs of tokens that attend to each other in both layers are compared, so the window is the
    smaller one. It is None if both layers have global attention.

    Args:
      student: the student's encoder.
      teacher: the teacher's encoder.

    Raises:
      ValueError: see `matched_layers`.
    """
    layers = matched_layers(student.num_layers, teacher.num_layers)
    pairs = [
        (student.window_of(number), teacher.window_of(layer - 1))
        for number, layer in enumerate(layers)
    ]
    return [min((window for window in pair if window is not None), default=None) for pair in pairs]
