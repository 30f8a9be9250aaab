"""Check that the values of an `EncoderConfig` are valid and compatible with one another.

Every function raises a ValueError whose message names a key and suggests a fix.
"""

from __future__ import annotations

import math
from typing import Any, assert_never, get_args

from bert_jax.models.options import NormKind, NormPlacement, PositionKind, Sharing

# JAX indexes arrays with 32-bit integers.
MAX_DIM = 2**31 - 1
# The numbers of layers and segments are limited because both are traced one by one: just naming the
# parameters takes 19 ms per layer (2026-11). The maximum number of layers is twice the depth of the
# deepest published Transformer (Wang et al. 2022, "DeepNet").
MAX_LAYERS = 2_000
MAX_SEGMENTS = 1_000
# The base of the rotary angles in Su et al. 2021, section 3.2.2.
ROTARY_THETA = 10_000.0


def require(condition: bool, message: str) -> None:
    """Raise a ValueError with this message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def require_choice(name: str, value: Any, choices: Any) -> None:
    """Check that a value is one of the values of a Literal."""
    require(
        value in get_args(choices),
        f"{name}={value!r}: expected one of {', '.join(map(repr, get_args(choices)))}",
    )


def check_limits(
    *,
    num_layers: int,
    num_segments: int,
    max_positions: int,
    position_offset: int,
    **dims: int | None,
) -> None:
    """Check that no dimension is too large; None stands for a dimension that does not exist."""
    for name, value, most, why in (
        ("num_layers", num_layers, MAX_LAYERS, "every layer is traced separately"),
        ("num_segments", num_segments, MAX_SEGMENTS, "every segment is traced separately"),
        *(
            (name, dim, MAX_DIM, "arrays are indexed with 32-bit integers")
            for name, dim in dims.items()
        ),
        ("max_positions", max_positions, MAX_DIM - position_offset, "rows have 32-bit indices"),
    ):
        require((value or 0) <= most, f"{name}={value}: expected at most {most:,} ({why})")


def check_groups(num_layers: int, num_groups: int, sharing: Sharing) -> None:
    """Check that the layers can be split into groups that share parameters."""
    require(
        num_groups == 1 or sharing != "none",
        f"num_groups={num_groups}: has no effect if sharing='none'. Set sharing to "
        "'all', 'attention' or 'ffn'",
    )
    divisors = (n for n in range(1, num_layers + 1) if num_layers % n == 0)
    require(
        1 <= num_groups <= num_layers and num_layers % num_groups == 0,
        f"num_groups={num_groups}: does not divide num_layers={num_layers}, but all "
        f"groups must be the same size. Use one of {', '.join(map(str, divisors))}",
    )


def check_rotary(
    positions: PositionKind,
    rotary_theta: float,
    local_rotary_theta: float | None,
    attention_window: int | None,
    num_heads: int,
    head_dim: int,
) -> None:
    """Check the bases of the rotary angles, which may be set only for rotary positions."""
    match positions:
        case "rotary":
            _check_angles(local_rotary_theta, attention_window, num_heads, head_dim)
        case "learned" | "sinusoidal":
            for name, value, default in (
                ("rotary_theta", rotary_theta, ROTARY_THETA),
                ("local_rotary_theta", local_rotary_theta, None),
            ):
                require(
                    value == default,
                    f"{name}={value}: has no effect with positions={positions!r}. Set "
                    f"positions='rotary', or leave it at {default}",
                )
        case _:
            assert_never(positions)


def _check_angles(
    local_rotary_theta: float | None, attention_window: int | None, num_heads: int, head_dim: int
) -> None:
    require(
        head_dim % 2 == 0,
        f"num_heads={num_heads}: rotary positions rotate pairs of features, but "
        f"hidden_dim / num_heads is {head_dim}. Make it even",
    )
    require(
        local_rotary_theta is None or 0.0 < local_rotary_theta < math.inf,
        f"local_rotary_theta={local_rotary_theta}: must be positive and finite",
    )
    require(
        local_rotary_theta is None or attention_window is not None,
        f"local_rotary_theta={local_rotary_theta}: has no effect without layers with local "
        "attention. Set attention_window, or leave it at None",
    )


def check_window(attention_window: int | None, global_every: int) -> None:
    """Check the window of local attention and which layers have it."""
    require(global_every >= 1, f"global_every={global_every}: must be at least 1")
    if attention_window is None:
        require(
            global_every == 1,
            f"global_every={global_every}: has no effect without local attention. Set "
            "attention_window, or leave it at 1",
        )
        return
    nearest = max(attention_window, 0) + 1 - max(attention_window, 0) % 2
    require(
        attention_window >= 1 and attention_window % 2 == 1,
        f"attention_window={attention_window}: must be odd and positive, because a token sees "
        f"equally many tokens on both sides. Use {nearest}",
    )
    require(
        global_every >= 2,
        f"attention_window={attention_window}: has no effect if every layer has global "
        "attention. Set global_every to 2 or more",
    )


def check_norms(
    norm: NormPlacement, norm_kind: NormKind, norm_bias: bool, first_norm: bool, sharing: Sharing
) -> None:
    """Check that `norm_bias` and `first_norm` are compatible with the other settings."""
    require(
        norm_kind != "rms" or not norm_bias,
        "norm_bias=True: RMSNorm has no bias. Set norm_bias=False or norm_kind='layer'",
    )
    require(
        first_norm or norm == "pre",
        f"first_norm=False: only supported by norm='pre', not {norm!r}. Set it to True",
    )
    require(
        first_norm or sharing == "none",
        f"first_norm=False: the first layer shares its norm with others (sharing="
        f"{sharing!r}). Set first_norm=True or sharing='none'",
    )
