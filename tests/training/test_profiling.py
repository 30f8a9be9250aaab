"""Some steps of a run as a trace."""

import jax.numpy as jnp
import pytest

from bert_jax.training.loop import SKIPPED_STEPS, StepProfiler


@pytest.mark.parametrize(
    ("asked", "run", "told"), [(1_000, 2, 2), (1, 3, 1), (5, 0, None), (0, 3, None)]
)
def test_what_was_traced_of_a_run_that_ended_is_kept(asked, run, told, tmp_path, caplog):
    caplog.set_level("INFO")
    state = jnp.zeros(())
    with StepProfiler(tmp_path, asked) as profiler:
        for _ in range(SKIPPED_STEPS + run):
            profiler.before_step(state)
            state = state + 1
    traces = list(tmp_path.rglob("*.xplane.pb"))
    if told is None:
        assert not traces and not caplog.messages
    else:
        assert len(traces) == 1
        assert f"traced {told} steps into {tmp_path}" in caplog.text
