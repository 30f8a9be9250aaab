"""Test following runs whose checkpoints are replaced, damaged or removed meanwhile.

Fine-tuning is replaced by a function that logs a constant score.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_jax import follow
from bert_jax.downstream.scorer import DownstreamScorer, OpenCheckpoint, open_tasks, scoring
from bert_jax.downstream.tasks import load_tasks
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.models import compute_config
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.pretraining.evaluation_config import EvaluationConfig
from bert_jax.runs.locations import WorkDir
from bert_jax.runs.work_dir import read_model, read_tokenizer, write_model
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_checksums import PARAMETERS, recorded_checksum
from bert_jax.training.checkpoint_files import DamagedCheckpoint
from bert_jax.training.checkpoint_parameters import save_parameters
from bert_jax.training.distributed import StopRequest
from bert_jax.training.downstream_log import DownstreamScore, read_downstream_scores
from bert_jax.training.reports import Message, discard

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] boat oven the was salty warm".split()
MODEL = ModelConfig(
    EncoderConfig(
        vocab_size=len(WORDS),
        hidden_dim=8,
        num_layers=1,
        num_heads=2,
        ffn_dim=8,
        max_positions=16,
    ),
    "masked_lm",
)
TASK = """
from ml_collections import ConfigDict


def get_config():
    file = "{0}/places.csv"
    files = dict(train=file, validation=file, first="text", label="place", labels=("port", "home"))
    return ConfigDict(
        dict(work_dir="", init_from="", sentences=dict(files=files), max_length=8, batch_size=8)
    )
"""


def save(work_dir: Path, step: int, value: float) -> None:
    """Save a checkpoint whose parameters are all equal to `value`."""
    shapes = define_model(MODEL, ComputeConfig(dtype="float32", attention="xla")).shapes
    params = {name: np.full(x.shape, value, np.float32) for name, x in shapes.items()}
    save_parameters(work_dir / "checkpoints", params, {}, step)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the work directory of a run of 6 steps with checkpoints at steps 2, 4 and 6."""
    work_dir = tmp_path_factory.mktemp("run")
    for step in (2, 4, 6):
        save(work_dir, step, step / 10)
    vocabulary = work_dir / "vocab.txt"
    vocabulary.write_text("".join(f"{word}\n" for word in WORDS))
    tokenizer = Tokenizer.load(vocabulary)
    write_model(MODEL, {}, work_dir, tokenizer=tokenizer)
    tokenizer.save(work_dir / "tokenizer")
    config = {"phases": {"phase1": {"num_steps": 6}}, "reporting": {"tensorboard": False}}
    (work_dir / "config.json").write_text(json.dumps(config))
    (work_dir / "places.csv").write_text("text,place\nThe salty boat,port\nThe warm oven,home\n")
    (work_dir / "places.py").write_text(TASK.format(work_dir), encoding="utf-8")
    return work_dir


@pytest.fixture
def work_dir(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def log_score(
        scorer: DownstreamScorer, name: str, run: FinetuneRun, checkpoint: OpenCheckpoint
    ) -> bool:
        config = scorer.checksums[name]
        score = DownstreamScore(
            name, checkpoint.step, "accuracy", {"accuracy": 0.5}, 1.0, checkpoint.checksum, config
        )
        scorer.log.append(score)
        scorer.report(Message(str(score)))
        return True

    monkeypatch.setattr(DownstreamScorer, "_finetune", log_score)


def lines_of(work_dir: Path, after: Callable[[str], None] = lambda _: None) -> list[str]:
    """Follow a run to its end, and return the lines that are reported; call `after` on each."""
    lines: list[str] = []

    def report(line: object) -> None:
        lines.append(str(line))
        after(lines[-1])

    task = str(work_dir / "places.py")
    assert follow(work_dir, [task], poll_seconds=0.05, on_report=report).finished
    return lines


def scored(*steps: int) -> list[str]:
    return [f"fine-tuned after step {step}:  places accuracy 50.0%" for step in steps]


def test_checkpoints_are_scored_again_after_the_run_goes_back(
    work_dir: Path, tmp_path: Path
) -> None:
    checkpoints = work_dir / "checkpoints"
    (checkpoints / "6").rename(tmp_path / "6")

    def go_back(line: str) -> None:
        if line.startswith("waiting"):
            shutil.rmtree(checkpoints / "4")
            save(work_dir, 4, 0.7)
            (tmp_path / "6").rename(checkpoints / "6")

    waiting = "waiting for a checkpoint after step 4 of 6"
    assert lines_of(work_dir, go_back) == [*scored(2, 4), waiting, *scored(4, 6)]
    for score in read_downstream_scores(work_dir):
        assert score.checkpoint == recorded_checksum(checkpoints, score.step, PARAMETERS)


@pytest.mark.parametrize("name", ["checksums.json", "_CHECKPOINT_METADATA"])
def test_a_damaged_checkpoint_is_skipped_until_it_is_restored(
    work_dir: Path, tmp_path: Path, name: str
) -> None:
    checkpoints = work_dir / "checkpoints"
    (checkpoints / "6").rename(tmp_path / "6")
    damaged = checkpoints / "2" / name
    intact = damaged.read_bytes()
    damaged.write_bytes(intact[:20])

    def restore(line: str) -> None:
        if line.startswith("warning"):
            damaged.write_bytes(intact)
        if line.startswith("fine-tuned after step 2"):
            (tmp_path / "6").rename(checkpoints / "6")

    lines = lines_of(work_dir, restore)
    (warning,) = (line for line in lines if line.startswith("warning"))
    assert warning.startswith("warning    step 2 is skipped: ")
    assert f"the checkpoint at step 2 is damaged: {name} cannot be read" in warning
    assert "(intact: 4)" in warning
    assert [line for line in lines if line.startswith("fine")] == scored(4, 2, 6)


def test_an_error_that_passes_is_not_reported(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, failures = DownstreamScorer.open, [2]

    def fail_once(scorer: DownstreamScorer, step: int) -> OpenCheckpoint:
        if step in failures:
            failures.remove(step)
            raise OSError("the checkpoint is intact but cannot be loaded")
        return original(scorer, step)

    monkeypatch.setattr(DownstreamScorer, "open", fail_once)
    # Checkpoints are compared with the log after each score, so step 2 is tried again after step 4.
    assert lines_of(work_dir) == scored(4, 2, 6)


def test_a_finished_run_with_a_damaged_checkpoint_is_followed_to_its_end(work_dir: Path) -> None:
    (file,) = (work_dir / "checkpoints/6/params").glob("d/*")
    file.write_bytes(file.read_bytes()[:-1])
    lines = lines_of(work_dir)
    assert lines[:2] == scored(2, 4) and len(lines) == 3
    assert "step 6 is skipped" in lines[2] and "bytes instead of" in lines[2]
    assert [score.step for score in read_downstream_scores(work_dir)] == [2, 4]


def test_a_checkpoint_that_is_removed_slowly_is_not_called_damaged(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, attempts = DownstreamScorer.open, []

    def remove_a_file(scorer: DownstreamScorer, step: int) -> OpenCheckpoint:
        if step == 2:
            attempts.append(step)
            checkpoint = work_dir / "checkpoints/2"
            files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
            # The first file to be removed is one that every complete checkpoint has.
            files.sort(key=lambda path: path.name != "checksums.json")
            files[0].unlink()
            if len(attempts) == 5:
                shutil.rmtree(checkpoint)
        return original(scorer, step)

    monkeypatch.setattr(DownstreamScorer, "open", remove_a_file)
    *others, last = lines_of(work_dir)
    assert others == scored(4, 6) and len(attempts) == 5
    assert last.startswith("skipped    step 2: the run removed the checkpoint")


def opened(work_dir: Path, *words: str) -> dict[str, FinetuneRun]:
    model, _ = read_model(work_dir)
    overrides = [f"--config.{word}" for word in words]
    tasks = load_tasks([str(work_dir / "places.py")], overrides, work_dir, "--config")
    place = WorkDir.on_disk(work_dir)
    return open_tasks(tasks, place, model, read_tokenizer(work_dir, model.encoder))


def open_scorer(work_dir: Path, *words: str) -> DownstreamScorer:
    runs = opened(work_dir, *words)
    place, stop = WorkDir.on_disk(work_dir), StopRequest()
    with scoring(place, runs, tensorboard=False, stop=stop, report=discard) as scorer:
        return scorer


def test_a_run_that_scores_its_own_checkpoints_names_a_damaged_one(work_dir: Path) -> None:
    (work_dir / "checkpoints/2/checksums.json").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"step 2 is damaged: checksums.json is missing"):
        open_scorer(work_dir).open(2)


def test_training_from_scratch_does_not_need_the_checkpoint(work_dir: Path) -> None:
    scorer = open_scorer(work_dir, "from_scratch=True")
    source = scorer.open(2).sources["places"]
    shutil.rmtree(work_dir / "checkpoints/2")
    run = scorer.opened["places"].with_source(source)
    assert run.identity()["init_from"] == {"path": str(work_dir), "parameters": None}


def test_scores_in_another_dtype_are_not_the_same(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksums = []
    for dtype, bfloat16 in (("auto", False), ("auto", True), ("float32", False)):
        monkeypatch.setattr(compute_config, "supports_bfloat16", lambda _, able=bfloat16: able)
        checksums.append(open_scorer(work_dir, f"compute.dtype={dtype}").checksums["places"])
    assert checksums[0] != checksums[1] and checksums[0] == checksums[2]


def test_a_string_is_not_a_list(work_dir: Path) -> None:
    with pytest.raises(ValueError, match=r"configs='sst2': expected a list, .* Use \['sst2'\]"):
        follow(work_dir, "sst2")
    with pytest.raises(ValueError, match="overrides='--config.seed=1': expected a list"):
        follow(work_dir, ["sst2"], overrides="--config.seed=1")
    for key in ("downstream", "texts"):
        with pytest.raises(ValueError, match=f"evaluation.{key}='sst2': expected a list"):
            EvaluationConfig(**{key: "sst2"})
