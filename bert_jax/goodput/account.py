"""Add up the entries of a ledger: where a run's wall-clock time went, over all of its starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from bert_jax.goodput.categories import (
    CATEGORIES,
    CUSTOM,
    IDLE,
    PRODUCTIVE,
    REPEATED,
    STALL,
    Category,
)
from bert_jax.goodput.entries import EndState, Entry


@dataclass(frozen=True)
class Goodput:
    """Where the wall-clock time of a run went, from its first start to its last entry.

    Attributes:
      began: the time of the first start, in seconds since 1970.
      last_seen: the time of the last entry, in seconds since 1970.
      seconds: the time in every category; the sum is `total_seconds`.
      starts: the number of starts.
      killed: how many starts, not counting the newest, ended without writing a final entry.
      state: how the newest start ended; None if it is running or was killed.
      error: the error that ended the newest start; None if there was none.
      step: the number of optimizer steps completed.
      total_steps: the number of optimizer steps in the whole run.
      repeated_steps: the number of lost steps, which had to be repeated.
      tokens: the number of real tokens trained on, without lost steps.
      repeated_tokens: the number of real tokens in lost steps.
      positions: the number of positions in all batches, including padding and lost steps.
      flops: the model FLOPs, without lost steps.
      repeated_flops: the model FLOPs in lost steps.
      peak_flops: the peak FLOP/s of all devices of the newest start together; None if unknown.
      last_start: the first entry of the newest start.
    """

    began: float
    last_seen: float
    seconds: Mapping[Category, float]
    starts: int
    killed: int
    state: EndState | None
    error: str | None
    step: int
    total_steps: int
    repeated_steps: int
    tokens: float
    repeated_tokens: float
    positions: float
    flops: float
    repeated_flops: float
    peak_flops: float | None
    last_start: Entry

    @property
    def total_seconds(self) -> float:
        """The wall-clock time from the first start to the last entry."""
        return self.last_seen - self.began

    @property
    def goodput(self) -> float:
        """The fraction of the wall-clock time spent on steps that were not lost."""
        return self.seconds[PRODUCTIVE] / self.total_seconds if self.total_seconds > 0 else 0.0

    @property
    def training_seconds(self) -> float:
        """The time spent on steps and on waiting for their batches, including lost steps."""
        return self.seconds[PRODUCTIVE] + self.seconds[REPEATED] + self.seconds[STALL]

    @property
    def tokens_per_second(self) -> float | None:
        """Real tokens per second during training; None before the first report."""
        return _ratio(self.tokens + self.repeated_tokens, self.training_seconds)

    @property
    def overall_tokens_per_second(self) -> float | None:
        """Real tokens in steps that were not lost, per second of wall-clock time."""
        return _ratio(self.tokens, self.total_seconds)

    @property
    def fill_rate(self) -> float | None:
        """The fraction of positions in the batches that were not padding; None if unknown."""
        return _ratio(self.tokens + self.repeated_tokens, self.positions)

    @property
    def utilization(self) -> float | None:
        """The model FLOP/s during training as a fraction of the peak; None if unknown."""
        peak = (self.peak_flops or 0.0) * self.training_seconds
        return _ratio(self.flops + self.repeated_flops, peak)

    @property
    def overall_utilization(self) -> float | None:
        """The model FLOP/s over the whole time, without lost steps, as a fraction of the peak."""
        return _ratio(self.flops, (self.peak_flops or 0.0) * self.total_seconds)

    @property
    def stall(self) -> float | None:
        """The fraction of the training time spent waiting for batches after the first one."""
        # This can be slightly negative if more time was moved to other activities than measured.
        return _ratio(max(0.0, self.seconds[STALL]), self.training_seconds, zero=True)

    def to_json(self) -> dict[str, Any]:
        """Return the values as plain JSON, grouped as in Google's goodput library."""
        badput: dict[str, Any] = {
            name: round(self.seconds[name], 3)
            for name in CATEGORIES
            if name != PRODUCTIVE and name not in CUSTOM
        }
        badput["custom_badput_events"] = {name: round(self.seconds[name], 3) for name in CUSTOM}
        return {
            "goodput": self.goodput,
            "total_elapsed_time": round(self.total_seconds, 3),
            "goodput_time": round(self.seconds[PRODUCTIVE], 3),
            "badput_time": badput,
            "starts": self.starts,
            "killed": self.killed,
            "repeated_steps": self.repeated_steps,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens_per_second,
            "overall_tokens_per_second": self.overall_tokens_per_second,
            "fill_rate": self.fill_rate,
            "utilization": self.utilization,
            "overall_utilization": self.overall_utilization,
            "data_stall": self.stall,
        }


def _ratio(part: float, whole: float, *, zero: bool = False) -> float | None:
    return part / whole if whole > 0 and (part > 0 or zero) else None


@dataclass
class _Segment:
    """Consecutive steps between two entries: those after `first`, up to and including `last`."""

    first: int
    last: int
    seconds: float
    tokens: float
    flops: float

    def split(self, step: int) -> _Segment:
        """Cut off and return the part after `step`, assuming that all steps cost the same."""
        share = (self.last - step) / (self.last - self.first)
        rest = _Segment(
            step, self.last, self.seconds * share, self.tokens * share, self.flops * share
        )
        self.last = step
        self.seconds -= rest.seconds
        self.tokens -= rest.tokens
        self.flops -= rest.flops
        return rest


class Account:
    """Adds up entries in the order in which they were written.

    When a run resumes from step S, all earlier work on steps after S is lost: its time moves from
    "productive" to "wasted_progress_from_disruption". A run writes an entry before it saves a
    checkpoint, so an entry always ends exactly at S.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._seconds: dict[Category, float] = dict.fromkeys(CATEGORIES, 0.0)
        self._kept: list[_Segment] = []
        self._totals = _Segment(0, 0, 0.0, 0.0, 0.0)  # sums over `_kept`
        self._lost = _Segment(0, 0, 0.0, 0.0, 0.0)
        self._positions = 0.0
        self._starts = self._killed = 0
        self._newest: Entry | None = None
        self._start: Entry | None = None
        self._began = 0.0
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Add an entry.

        Raises:
          ValueError: the first entry is not a start.
        """
        match entry.event:
            case "start":
                self._add_start(entry)
                begun = entry.step
            case "rewind":
                self._lose(entry.step)
                begun = entry.step
            case "progress" | "end":
                begun = entry.step if self._newest is None else self._newest.step
            case _:
                assert_never(entry.event)
        if self._start is None:
            raise ValueError("the first entry of a goodput ledger must be a start")
        for name, seconds in entry.seconds.items():
            if name != PRODUCTIVE:
                self._seconds[name] += seconds
        steps = _Segment(
            begun, entry.step, entry.seconds.get(PRODUCTIVE, 0.0), entry.tokens, entry.flops
        )
        if steps.seconds or steps.tokens or steps.last > steps.first:
            self._kept.append(steps)
            _add(self._totals, steps, 1)
        self._positions += entry.positions
        self._newest = entry

    def _add_start(self, entry: Entry) -> None:
        assert entry.began is not None
        newest = self._newest
        if newest is None:
            self._began = entry.began
        else:
            # Clocks of different machines may differ a little.
            self._seconds[IDLE] += max(0.0, entry.began - newest.time)
            self._killed += newest.event != "end"
        self._start = entry
        self._starts += 1
        self._lose(entry.step)

    def _lose(self, step: int) -> None:
        """Count the steps after `step` as lost."""
        while self._kept and self._kept[-1].last >= step:
            newest = self._kept[-1]
            if newest.first < newest.last == step:
                break
            lost = newest.split(step) if newest.first < step else self._kept.pop()
            _add(self._totals, lost, -1)
            _add(self._lost, lost, 1)

    def goodput(self) -> Goodput | None:
        """Return the sums; None if there is no entry."""
        if self._newest is None or self._start is None:
            return None
        seconds = dict(self._seconds)
        seconds[PRODUCTIVE], seconds[REPEATED] = self._totals.seconds, self._lost.seconds
        return Goodput(
            began=self._began,
            last_seen=self._began + sum(seconds.values()),
            seconds=seconds,
            starts=self._starts,
            killed=self._killed,
            state=self._newest.state,
            error=self._newest.error,
            step=self._newest.step,
            total_steps=self._start.total_steps or 0,
            repeated_steps=self._lost.last,
            tokens=self._totals.tokens,
            repeated_tokens=self._lost.tokens,
            positions=self._positions,
            flops=self._totals.flops,
            repeated_flops=self._lost.flops,
            peak_flops=self._start.peak_flops,
            last_start=self._start,
        )


def _add(total: _Segment, part: _Segment, sign: int) -> None:
    """Add or subtract a segment. In `total`, `last` is the number of steps in all segments."""
    total.last += sign * (part.last - part.first)
    total.seconds += sign * part.seconds
    total.tokens += sign * part.tokens
    total.flops += sign * part.flops
