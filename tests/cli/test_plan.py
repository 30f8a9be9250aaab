"""Test `bert-jax plan` in a separate process, the way a user runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.cli.main import main
from bert_jax.models.variants import variant
from bert_jax.pretraining.config import PhaseConfig, PretrainConfig
from bert_jax.pretraining.phase_plan import PhasePlan
from bert_jax.pretraining.plan_text import duration
from bert_jax.pretraining.remedies import flags, remedies, with_changes
from bert_jax.training.planning import OutOfMemory
from bert_jax.training.sharding import MeshConfig

REPOSITORY = Path(__file__).resolve().parents[2]
MIB, GIB = 2**20, 2**30

VOCAB, DIM, FFN, POSITIONS = 512, 64, 128, 64
CONFIG = f"""
from ml_collections import ConfigDict

def get_config():
    return ConfigDict(dict(
        work_dir="never-written",
        model=dict(vocab_size={VOCAB}, hidden_dim={DIM}, num_layers=1, num_heads=2,
                   ffn_dim={FFN}, max_positions={POSITIONS}),
        phases=dict(phase1=dict(corpus="never-read", sequence_length=64, batch_size=16,
                                num_steps=1_000)),
        optimizer=dict(warmup_steps=10),
    ))
"""


def plan(*words: str, config: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `plan` without the environment variables that the test suite sets for JAX."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX", "XLA"))}
    program = "import sys; from bert_jax.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, "plan", "--config", str(config), *words],
        capture_output=True,
        text=True,
        env=inherited | environment,
    )


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan_me.py"
    path.write_text(CONFIG)
    return path


def parameter_bytes() -> int:
    """Compute the size of the model's float32 parameters in bytes, by explicit arithmetic."""
    embeddings = (VOCAB + POSITIONS + 2) * DIM + 2 * DIM
    attention = 4 * (DIM * DIM + DIM) + 2 * DIM
    ffn = DIM * FFN + FFN + FFN * DIM + DIM + 2 * DIM
    masked_lm = DIM * DIM + DIM + 2 * DIM + VOCAB
    next_sentence = DIM * DIM + DIM + 2 * DIM + 2
    return 4 * (embeddings + attention + ffn + masked_lm + next_sentence)


def mib_of(line_start: str, text: str, column: int) -> float:
    line = next(line for line in text.splitlines() if line.strip().startswith(line_start))
    return float(re.findall(r"([\d.,]+) MiB", line)[column].replace(",", ""))


def gib_of(line_start: str, text: str) -> float:
    line = next(line for line in text.splitlines() if line.strip().startswith(line_start))
    match = re.search(r"([\d.]+) GiB", line)
    assert match is not None
    return float(match.group(1))


def test_a_plan_for_eight_absent_devices(config_file: Path) -> None:
    result = plan("--topology", "cpu:8", "--price", "2", "--explain", config=config_file)
    assert result.returncode == 0, result.stderr
    text = result.stdout
    assert "devices   8 x cpu (8 data x 1 fsdp x 1 tensor)" in text
    assert "up to 2 documents per row" in text
    parameters = parameter_bytes()
    # In a data-parallel mesh, every device holds the parameters and two moments.
    assert gib_of("arguments", text) == pytest.approx(3 * parameters / GIB, abs=1e-3)
    # The gradients of all parameters are summed over the devices. Metrics add only scalars.
    assert mib_of("all-reduce", text, 0) == pytest.approx(parameters / MIB, rel=0.5)
    assert mib_of("all-reduce", text, 0) >= parameters / MIB - 0.01
    assert mib_of("all-reduce", text, 1) == pytest.approx(
        2 * 7 / 8 * mib_of("all-reduce", text, 0), abs=0.01
    )
    assert "roofline            unknown for cpu" in text
    assert "estimated time      none: the compiler estimates no times for cpu" in text
    assert "the run   fits" in text
    assert "the cost  is unknown, because the compiler estimates no times for cpu" in text
    assert "phase1    most expensive instructions: unknown, without estimates for cpu" in text
    assert "compiled  phase1 (16 x 64)" in result.stderr
    assert not Path("never-written").exists()


@pytest.mark.slow
def test_a_plan_suggests_changes_for_a_run_that_does_not_fit(config_file: Path) -> None:
    # The activations of 32 rows per device need about 17 MiB, and the state needs 1 MiB.
    words = ["--topology", "cpu:2", "--config.phases.phase1.batch_size=64", "--hbm", "0.01"]
    result = plan(*words, config=config_file)
    assert result.returncode == 1, result.stderr
    assert re.search(r"memory per device +[\d.]+ GiB of 0.010 GiB .*: does not fit", result.stdout)
    tried = re.findall(r"^  (--config\S+.*): phase1 ([\d.]+) GiB, (.*)$", result.stdout, re.M)
    assert [verdict for *_, verdict in tried] == ["does not fit"] * (len(tried) - 1) + ["fits"]
    changes = result.stdout.splitlines()[-1].removeprefix("the run fits with: ")
    assert changes == tried[-1][0]
    again = plan(*words, *changes.split(), config=config_file)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"{tried[-1][1]} GiB of 0.010 GiB" in again.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topology", "cpu"], "--topology=cpu: expected a kind and a shape, such as cpu:8"),
        (["--topology", "cpu:2x2"], "=cpu:2x2: expected the number of devices, such as cpu:8"),
        (["--topology", "v5e-12"], "the number must be 1, 4, 8, 16, 32, 64, 128, 256 (chips)"),
        (["--topology", "cpu:0"], "expected the number of devices, such as cpu:8"),
        (["--topology", "abacus!"], "expected a kind and a shape"),
        (
            ["--topology", "h100:8"],
            "requires JAX's CUDA plugin, which is not installed. Run pip install -e '.[cuda13]'",
        ),
        (
            ["--topology", "A100:8"],
            "run `bert-jax bench step --config FILE` on a machine that has one",
        ),
        (["--topology", "h100:16"], "expected a number of GPUs in one machine, from 1 to 8"),
        (
            ["--topology", "v100:8"],
            "compiles only for TPU slices, CPUs and some GPUs (h100, h200), not for v100",
        ),
        (["--topology", "cpu:4096"], "Run `bert-jax plan` in a separate process"),
        (["--topology", "cpu:3"], "batch_size=16 is not divisible by 3"),
        (["--topology", "cpu:8", "--config.model.max_positions=32"], "is greater than model.max"),
        (["--topology", "cpu:8", "--hbm", "0"], "--hbm: expected a number greater than 0, not '0'"),
    ],
)
def test_mistakes_are_reported(
    words: list[str], message: str, config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import jax

    jax.devices()  # Start JAX; from now on, it can use only devices that exist.
    assert main(["plan", "--config", str(config_file), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_tpu_topology_requires_libtpu(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("pip install -e '.[tpu]'")):
        from bert_jax.analysis.topology import topology_devices

        topology_devices("v5e:4x4")


def refused(state: int, needed: int) -> PhasePlan:
    phase = PhaseConfig(corpus="c", num_steps=1, batch_size=64)
    return PhasePlan(
        name="phase1",
        phase=phase,
        documents_per_row=1,
        dtype="bfloat16",
        state_bytes=state,
        model_flops=1,
        compile_seconds=0.0,
        step=None,
        refused=OutOfMemory(needed, needed - 1),
    )


def remedies_of(config: PretrainConfig, worst: PhasePlan, limit: int) -> list[str]:
    changes = remedies(
        worst,
        16,
        limit,
        mesh=config.mesh,
        remat=config.compute.remat,
        accumulation_steps=config.accumulation_steps,
        batch_sizes=[phase.batch_size for phase in config.phases.values()],
    )
    return [flags(change) for change in changes]


def test_the_cheapest_remedies_are_tried_first() -> None:
    worst = refused(state=10, needed=410)
    config = PretrainConfig(work_dir="w", phases={"phase1": worst.phase}, model=variant("tiny"))
    tried = remedies_of(config, worst, limit=150)
    assert tried[:5] == [
        # Besides the state, the step needs 400 bytes. Half of them would not fit; a quarter would.
        "--config.accumulation_steps=4",
        "--config.compute.remat=dots",
        "--config.compute.remat=layer",
        "--config.compute.remat=layer --config.accumulation_steps=2",
        "--config.compute.remat=layer --config.accumulation_steps=4",
    ]
    assert tried[5] == "--config.mesh.fsdp=16"
    heavy = remedies_of(config, refused(100, 410), limit=150)
    assert heavy[0] == "--config.mesh.fsdp=16"
    assert all("fsdp" in words for words in heavy)
    split = with_changes(config, {"mesh.fsdp": 16, "compute.remat": "layer"})
    assert split.mesh == MeshConfig(fsdp=16) and split.compute.remat == "layer"
    assert remedies_of(split, refused(100, 410), limit=200) == ["--config.accumulation_steps=4"]


def test_durations_are_readable() -> None:
    assert duration(2.4) == "2 s"
    assert duration(59 * 60) == "59 min"
    assert duration(3_600 * 25 + 60) == "1 d 1 h 1 min"
    assert duration(2 * 3_600) == "2 h 0 min"


@pytest.mark.skipif(
    os.environ.get("BERT_JAX_TEST_TPU") != "1",
    reason="compiling for a TPU takes minutes and needs libtpu: set BERT_JAX_TEST_TPU=1",
)
def test_the_tiny_recipe_compiles_for_a_tpu_slice() -> None:
    config = REPOSITORY / "configs/pretrain/tiny.py"
    result = plan("--topology", "v5e:4x4", config=config)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "devices   16 x TPU v5 lite (16 data x 1 fsdp x 1 tensor)" in result.stdout
    assert "bfloat16" in result.stdout
    assert 0 < gib_of("memory per device", result.stdout) < 16
    assert mib_of("all-reduce", result.stdout, 0) > 0
    assert re.search(r"roofline +at least [\d.]+ ms per step", result.stdout)
    assert "a lower bound, not a prediction" in result.stdout
    assert re.search(r"estimated time +[\d.]+ ms per step, MFU [\d.]+%", result.stdout)
    assert re.search(r"the run   takes an estimated .* \([\d.]+ chip-hours\)", result.stdout)
