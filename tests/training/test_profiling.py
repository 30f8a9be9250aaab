"""Test that the profiler traces the requested number of steps."""

import jax.numpy as jnp
import pytest

from bert_jax.training.profiling import SKIPPED_STEPS, StepProfiler


@pytest.mark.parametrize(
    ("requested", "run", "traced"), [(1_000, 2, 2), (1, 3, 1), (5, 0, None), (0, 3, None)]
)
def test_the_trace_of_a_run_that_ended_early_is_kept(requested, run, traced, tmp_path, caplog):
    caplog.set_level("INFO")
    state = jnp.zeros(())
    with StepProfiler(tmp_path, requested) as profiler:
        for _ in range(SKIPPED_STEPS + run):
            profiler.before_step(state)
            state = state + 1
    traces = list(tmp_path.rglob("*.xplane.pb"))
    if traced is None:
        assert not traces and not caplog.messages
    else:
        assert len(traces) == 1
        assert f"traced {traced} steps into {tmp_path}" in caplog.text
