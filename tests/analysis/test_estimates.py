"""Compare sums of the TPU compiler's estimates with sums made by hand, for part of a real step.

`step_on_v5e.txt` was cut from the text that libtpu 0.0.42 wrote for a step of BERT-base on a TPU
v5e, with round numbers of cycles. Its loop over the layers runs twice.
"""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from bert_jax.analysis.chips import chip, clock_rate
from bert_jax.analysis.estimate_step import estimate_step
from bert_jax.analysis.estimates import StepEstimate, explain
from bert_jax.analysis.hlo import array_bytes
from bert_jax.analysis.kernel_times import TpuTimes
from bert_jax.analysis.source_lines import StackFrames

TEXT = (Path(__file__).parent / "step_on_v5e.txt").read_text(encoding="utf-8")
GHZ = 1.5e9
V5E = TpuTimes(GHZ, 197e12, 819e9)
MODELS = "bert_jax/models"


@pytest.fixture(scope="module")
def estimate() -> StepEstimate:
    estimate = estimate_step(
        TEXT, 4, V5E, link_bandwidth=200e9, memory_bandwidth=819e9, least_seconds=3.3e-3
    )
    assert estimate is not None
    return estimate


def test_the_time_of_each_kind_of_work_is_summed(estimate: StepEstimate) -> None:
    # A ring of 4 devices sends 2 * 3/4 times the array's bytes.
    sent = 2 * 3 * 30_522 * 768 * 4 / 4
    assert estimate.by_kind == pytest.approx(
        {
            "attention products": 2 * 1_500_000 / GHZ,
            "dense products": 2 * 900_000 / GHZ,
            "optimizer": 1_350_000 / GHZ,
            "vocabulary and loss": 1_200_000 / GHZ,
            "collectives": sent / 200e9,
            "elementwise": (600_000 + 2 * 75_000) / GHZ,
            "attention softmax": 2 * 300_000 / GHZ,
            "copies": 2 * 150_000 / GHZ,
        }
    )
    seconds = 9_000_000 / GHZ + sent / 200e9
    assert estimate.seconds == pytest.approx(seconds)
    assert estimate.utilization == pytest.approx(3.3e-3 / seconds)


def test_instructions_without_an_estimate_are_counted(estimate: StepEstimate) -> None:
    assert estimate.not_estimated == {
        # The loop runs twice. Each time, it increments its counter and checks its condition.
        "scalar operations": 4,
        "DMA copies": 2,
        "gathers and scatters": 1,
        "sorts": 1,
    }
    # The gather reads 16,384 rows of the table. The sort's first result is in main memory.
    moved = 16_384 * 768 * 2 + 16_384 * 4
    assert estimate.least_unestimated_seconds == pytest.approx(moved / 819e9)


def test_attributes_with_line_breaks_are_read() -> None:
    """Read a Pallas kernel whose attributes look like the end of a computation."""
    text = """HloModule jit_step

ENTRY %main (x: bf16[4,8]) -> bf16[4,8] {
  %x = bf16[4,8]{1,0:T(8,128)(2,1)} parameter(0)
  %kernel.1 = bf16[4,8]{1,0} custom-call(%x), custom_call_target="tpu_custom_call", \
frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 512}"
}}, metadata={op_name="pallas_call"}
  ROOT %add.1 = bf16[4,8]{1,0} add(%kernel.1, %x), backend_config={"estimated_cycles":"300"}
}
"""
    estimate = estimate_step(
        text, 1, V5E, link_bandwidth=1, memory_bandwidth=1e9, least_seconds=1e-7
    )
    assert estimate is not None
    assert estimate.not_estimated == {"Pallas kernels": 1}
    assert estimate.by_kind == {"elementwise": 2e-7}
    assert estimate.least_unestimated_seconds == pytest.approx(2 * 4 * 8 * 2 / 1e9)
    assert "largest buffers     none of 1 MiB or more in HBM, besides the state" in str(estimate)


def test_only_arrays_in_main_memory_count_as_traffic(estimate: StepEstimate) -> None:
    by_name = {line.name: line for line in estimate.instructions}
    scores, hidden = 32 * 12 * 512 * 512 * 2, 32 * 512 * 3072 * 2
    # The loop runs twice, and the operands are in vector memory, which is not counted.
    assert by_name["fusion.19"].bytes == 2 * scores
    assert by_name["fusion.21"].bytes == 2 * 2 * scores
    assert by_name["fusion.30"].bytes == 2 * (2 * hidden + 768 * 3072 * 4)
    assert by_name["copy.357"].bytes == 0
    assert by_name["copy-start.1"].bytes == 16_384 * 4
    assert by_name["slice-start.240"].bytes == 128 * 768 * 4
    # The loop runs five kernels in each of its two iterations, and six kernels are outside the
    # loop.
    assert estimate.kernels == 2 * 5 + 6
    buffers = [(buffer.count, buffer.shape) for buffer in estimate.largest_buffers(2)]
    assert buffers == [(1, "bf16[32,12,512,512]")] * 2
    assert estimate.largest_buffers()[0].bytes == scores


def test_the_most_expensive_instructions_name_their_source_lines(estimate: StepEstimate) -> None:
    first, second, third, fourth, *_ = estimate.most_expensive()
    # The fusion ends with the softmax, but the source line of its product is reported.
    assert first.source == f"{MODELS}/attention.py:65 scaled_scores"
    assert second.source == (
        f"{MODELS}/products.py:33 direct < {MODELS}/transformer_layer.py:36 FeedForward.__call__"
    )
    assert third.source == "optax/_src/update.py:42 <lambda>"
    # Frames of other libraries are skipped.
    assert fourth.source == (
        "bert_jax/tasks/task.py:170 cross_entropy < "
        "bert_jax/tasks/pretraining.py:121 Pretraining.metrics"
    )
    lines = explain(estimate, 1)
    assert lines[1:] == [
        "     2.000 ms in 2 runs  attention products: fusion.19 bf16[32,12,512,512]",
        f"               384.0 MiB of HBM: {first.source}",
    ]


def test_an_estimate_can_be_printed(estimate: StepEstimate) -> None:
    lines = str(estimate).splitlines()
    assert lines[0] == f"estimated time      {estimate.seconds * 1e3:.2f} ms per step, MFU 49.2%"
    assert lines[1] == "  attention products            2.00 ms   29.8%"
    assert "  copies                        0.20 ms    3.0%" in lines
    assert "DMA copies 2, gathers and scatters 1, sorts 1" in str(estimate)
    assert f"in {estimate.kernels} kernels" in str(estimate)
    assert f"192.0 MiB: {MODELS}/attention.py:65 scaled_scores" in str(estimate)


def test_without_the_peak_only_the_utilization_is_unknown(estimate: StepEstimate) -> None:
    unknown = replace(estimate, least_seconds=None)
    assert unknown.utilization is None and unknown.seconds == estimate.seconds
    first, *rest = str(unknown).splitlines()
    assert first.endswith(" ms per step, MFU unknown without the chip's peak")
    assert rest == str(estimate).splitlines()[1:]


def test_other_compilers_give_no_estimates() -> None:
    text = jax.jit(lambda x: x @ x).lower(jnp.ones((4, 4))).compile().as_text()
    assert (
        estimate_step(text, 1, V5E, link_bandwidth=1, memory_bandwidth=1, least_seconds=1) is None
    )
    frames = StackFrames(text)
    assert frames.stack("metadata={op_name=1}") == frames.stack("stack_frame_id=999") == []


def test_clock_rates_follow_from_published_figures() -> None:
    kinds = ("TPU v4", "TPU v5 lite", "TPU v5", "TPU v6 lite")
    assert [clock_rate(kind) for kind in kinds] == [1.05e9, 1.5e9, 1.75e9, 1.75e9]
    assert clock_rate("cpu") is None and clock_rate("NVIDIA H100") is None
    # These are libtpu 0.0.42's cycles for a product of two bfloat16 4096 x 4096 matrices. They are
    # close to the peak performance of each chip, but never above it.
    cycles = {"TPU v4": 596_564, "TPU v5 lite": 1_083_068, "TPU v5": 544_925}
    for kind, number in (cycles | {"TPU v6 lite": 301_616}).items():
        figures = chip(kind)
        assert figures is not None
        assert 0.85 < 4096**3 / figures.multiply_adds / number < 1
    assert array_bytes("bf16[4096,4096]") == 2 * 4096**2


# This fusion writes its result into an array that collects the results of a loop. It was cut from a
# step with compute.scan_layers=True.
COLLECTING = """HloModule jit_step

FileNames
1 "/home/me/bert_jax/models/encoder.py"
2 "/home/me/bert_jax/models/attention.py"

FunctionNames
1 "Encoder._scan"
2 "xla_attention"

FileLocations
1 {file_name_id=1 function_name_id=1 line=223}
2 {file_name_id=2 function_name_id=2 line=131}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

%fused_computation.7 (param_0.7: f32[12,16,64], param_1.7: s32[]) -> f32[16,64] {
  %param_0.7 = f32[12,16,64]{2,1,0} parameter(0)
  %param_1.7 = s32[]{:S(6)} parameter(1)
  %dynamic-slice.7 = f32[1,16,64]{2,1,0} dynamic-slice(%param_0.7, %param_1.7, %param_1.7)
  ROOT %bitcast.7 = f32[16,64]{1,0} bitcast(%dynamic-slice.7)
}

%fused_computation.8 (param_0: f32[12,16,64], param_1: s32[], param_2: f32[16,64]) -> f32[12,16,64] {
  %param_0 = f32[12,16,64]{2,1,0} parameter(0)
  %param_1 = s32[]{:S(6)} parameter(1)
  %param_2 = f32[16,64]{1,0} parameter(2)
  %fusion.7 = f32[16,64]{1,0} fusion(%param_0, %param_1), kind=kLoop, calls=%fused_computation.7
  %add.8 = f32[16,64]{1,0} add(%fusion.7, %param_2), metadata={op_name="add" stack_frame_id=2}
  %bitcast.8 = f32[1,16,64]{2,1,0} bitcast(%add.8)
  ROOT %dynamic-update-slice.8 = f32[12,16,64]{2,1,0} dynamic-update-slice(%param_0, %bitcast.8, %param_1)
}

ENTRY %main (x: f32[12,16,64], i: s32[], y: f32[16,64]) -> f32[12,16,64] {
  %x = f32[12,16,64]{2,1,0} parameter(0)
  %i = s32[]{:S(6)} parameter(1)
  %y = f32[16,64]{1,0} parameter(2)
  ROOT %fusion.8 = f32[12,16,64]{2,1,0} fusion(%x, %i, %y), calls=%fused_computation.8, metadata={stack_frame_id=1}, backend_config={"estimated_cycles":"300"}
}
"""  # noqa: E501


def test_an_update_in_place_counts_only_the_updated_slice() -> None:
    estimate = estimate_step(
        COLLECTING, 1, V5E, link_bandwidth=1, memory_bandwidth=1, least_seconds=1e-7
    )
    assert estimate is not None
    (line,) = estimate.instructions
    # One slice is read, the operand is added to it, and the sum is written back to the same place.
    assert line.bytes == 3 * 16 * 64 * 4
    assert line.source == f"{MODELS}/attention.py:131 xla_attention"
    assert line.kind == "attention softmax"


def test_parent_frames_may_be_numbered_from_zero_or_one() -> None:
    numbered = COLLECTING.replace("parent_frame_id=1}", "parent_frame_id=0}")
    numbered = numbered.replace("parent_frame_id=2}", "parent_frame_id=1}")
    stacks = [StackFrames(text).stack("stack_frame_id=2") for text in (COLLECTING, numbered)]
    assert stacks[0] == stacks[1]
    assert [frame.function for frame in stacks[0]] == ["xla_attention", "Encoder._scan"]
