"""Describe a run's goodput and speed as lines of text."""

from __future__ import annotations

from bert_jax.goodput.account import Goodput
from bert_jax.goodput.categories import CATEGORIES, DESCRIPTIONS

_SHOWN = 0.0005  # Categories with less than this fraction of the time are left out.


def goodput_lines(goodput: Goodput) -> list[str]:
    """Return the goodput in one line, followed by a line for each category and for the speed."""
    total = goodput.total_seconds
    starts = "1 start" if goodput.starts == 1 else f"{goodput.starts} starts"
    killed = f", {goodput.killed} of them killed" * bool(goodput.killed)
    lines = [
        f"goodput    {goodput.goodput:.1%} of {_duration(total)} were spent on training steps "
        f"({starts}{killed})"
    ]
    for name in CATEGORIES:
        seconds = goodput.seconds[name]
        if total > 0 and seconds / total >= _SHOWN:
            text = f"{DESCRIPTIONS[name]} ({name})"
            lines.append(f"  {seconds / total:6.1%}  {_duration(seconds):>10s}  {text}")
    if goodput.repeated_steps:
        lines.append(f"  {goodput.repeated_steps:,} steps were repeated")
    speed = speed_line(goodput)
    return [*lines, speed] if speed else lines


def speed_line(goodput: Goodput) -> str:
    """Return the speed in one line, or "" before the first report."""
    parts = []
    if goodput.tokens_per_second is not None:
        overall = goodput.overall_tokens_per_second or 0.0
        parts.append(
            f"{goodput.tokens_per_second:,.0f} real tokens/s in training steps, "
            f"{overall:,.0f} overall"
        )
    if goodput.fill_rate is not None:
        parts.append(f"fill rate {goodput.fill_rate:.1%}")
    if goodput.utilization is not None:
        overall = goodput.overall_utilization or 0.0
        parts.append(f"MFU {goodput.utilization:.1%}, {overall:.1%} overall")
    if goodput.stall is not None and parts:
        parts.append(f"data stall {goodput.stall:.1%}")
    return f"speed      {'; '.join(parts)}" if parts else ""


def _duration(seconds: float) -> str:
    """Format a duration, with a decimal place if it is short.

    >>> [_duration(s) for s in (4.21, 252, 7_500, 400_000)]
    ['4.2s', '4m 12s', '2h 05m', '4d 15h']
    """
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes = round(seconds) // 60
    if minutes < 60:
        return f"{minutes}m {round(seconds) % 60:02}s"
    if minutes < 48 * 60:
        return f"{minutes // 60}h {minutes % 60:02}m"
    return f"{minutes // 1440}d {minutes // 60 % 24:02}h"
