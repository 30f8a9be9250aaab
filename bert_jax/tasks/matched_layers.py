"""Match the layers of a student with those of its teacher."""

from __future__ import annotations


def matched_layers(student: int, teacher: int) -> list[int]:
    """Return the teacher layer, counted from 1, that each student layer is trained to match.

    The layers are evenly spaced, and the last layers match each other. For example, 4 student
    layers match layers 3, 6, 9 and 12 of a 12-layer teacher (Jiao et al. 2020, section 4.2).

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

    The layers are evenly spaced, and the first layers match each other.

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
