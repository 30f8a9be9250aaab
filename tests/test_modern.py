"""Test `experiments/modern`: how it samples text, equalizes FLOPs, scores models and resumes."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .commands import REPOSITORY, xla_flags

SCRIPT = REPOSITORY / "experiments/modern/run.py"
WORDS = "the a good bad old new man woman house river sees finds likes and then very soon".split()
VARIANTS = ("bert", "all", "muon_50")


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(4, 9))).capitalize() + "."


def write_lines(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write small data sets with the names and formats of the real ones."""
    folder, rng = tmp_path_factory.mktemp("data"), random.Random(0)
    for name in ("corpus_small/books", "corpus_large/books", "corpus_large/wiki"):
        texts = [" ".join(sentence(rng) for _ in range(20)) for _ in range(30)]
        write_lines(folder / f"{name}.jsonl", [json.dumps({"text": text}) for text in texts])
    for split, count in (("train", 40), ("dev", 20)):
        rows = [f"{sentence(rng)}\t{number % 2}" for number in range(count)]
        write_lines(folder / f"glue/SST-2/{split}.tsv", ["sentence\tlabel", *rows])
        rows = [
            f"{number}\tg\tf\t0\t0\tn\tn\t{sentence(rng)}\t{sentence(rng)}\t{number % 6}"
            for number in range(count)
        ]
        header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2"
        header += "\tsentence1\tsentence2\tscore"
        write_lines(folder / f"glue/STS-B/{split}.tsv", [header, *rows])
    pairs = [
        {
            "UID": f"paradigm_{number % 2}",
            "linguistics_term": "agreement",
            "sentence_good": sentence(rng),
            "sentence_bad": sentence(rng),
        }
        for number in range(8)
    ]
    write_lines(folder / "blimp/blimp.jsonl", [json.dumps(pair) for pair in pairs])
    return folder


def started(data: Path, work: Path, *words: str) -> subprocess.Popen[str]:
    """Start the experiment, and return the process."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(data / "cache"),
        "XLA_FLAGS": xla_flags(1),
    }
    command = [sys.executable, SCRIPT, "--data", data, "--work", work, "--fast"]
    command += ["--variants", *VARIANTS, *words]
    return subprocess.Popen(
        list(map(str, command)),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(data: Path, work: Path, *words: str, code: int = 0) -> str:
    """Run the experiment, check its exit code, and return its output."""
    process = started(data, work, *words)
    try:
        printed, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == code, printed
    return printed


def files_of(work: Path) -> dict[str, int]:
    """Return a dict that maps the path of each job's results to the file's modification time."""
    return {
        str(file): file.stat().st_mtime_ns
        for file in (work / "runs").glob("*/*.json")
        if not file.name.endswith(".recipe.json")
    }


def run_of(work: Path, name: str) -> Path:
    """Return the folder of a variant's run with seed 0 at the tuned learning rate."""
    runs = json.loads((work / "results.json").read_text())["variants"][name]["runs"]
    (folder,) = (work / "runs").glob(f"{name}-{runs['0']['learning_rate']:g}-*0")
    return folder


def python(program: str, *words: str) -> str:
    """Run a program that can import the experiment's modules, and return its output."""
    folders = [SCRIPT.parent, SCRIPT.parent.parent, REPOSITORY]
    ended = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "JAX_PLATFORMS": "cpu",
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return ended.stdout


@pytest.mark.parametrize("number", [1, 2, 9])
def test_parallel_processes_divide_the_cores(number: int) -> None:
    # A single write keeps the lines of different processes apart.
    code = "import os; os.write(1, f'{os.sched_getaffinity(0)}\\n'.encode())"
    program = f"from jobs import in_parallel; in_parallel({number}, ['-c', {code!r}], {{}})"
    shares = [set(map(int, re.findall(r"\d+", line))) for line in python(program).splitlines()]
    cores = os.sched_getaffinity(0)
    assert len(shares) == number
    assert set.union(*shares) == cores
    if number <= len(cores):
        assert sum(map(len, shares)) == len(cores)
    else:
        assert all(len(share) == 1 for share in shares)


def test_a_failing_process_stops_the_others(tmp_path: Path) -> None:
    # Only one copy can create the folder. It fails, and the other one does not end by itself.
    code = f"""
import os, sys, time
try:
    os.mkdir({str(tmp_path / "folder")!r})
except FileExistsError:
    time.sleep(600)
sys.exit(3)
"""
    program = f"""
from jobs import in_parallel
try:
    in_parallel(2, ["-c", {code!r}], {{}})
except SystemExit as error:
    print(error)
"""
    assert python(program).startswith("--parallel=2: a process failed with exit code 3.")


def test_published_runs_are_adopted_as_a_whole(tmp_path: Path) -> None:
    program = """
import json, sys
from pathlib import Path
from extension import forget_if_incomplete
from jobs import Job, Published, adopt, run_all

def job(run, name, rate):
    output = Path(sys.argv[1], run, f"{name}.json")
    return Job(f"{run}, {name}", output, {"rate": rate}, lambda: {"local": True})

def adopted(run, published_rate):
    jobs = [job(run, name, 1) for name in ("pretrained", "BLiMP")]
    hashes = [job(run, "", published_rate).recipe_hash] * 2
    model, score = map(Published, jobs, [{"loss": 2.0}, {"score": 0.6}], hashes)
    return adopt(model, [score]), [each.result() for each in jobs]

outcomes = [adopted("new", 1)]
run_all([job("started", "pretrained", 1)])
outcomes.append(adopted("started", 1))
try:
    adopted("other", 2)
except SystemExit as error:
    outcomes.append(str(error))
# If adopting is interrupted before the last file is written, it can be repeated. Until then, the
# score is removed, so that it is not mistaken for the score of another model.
Path(sys.argv[1], "new/pretrained.recipe.json").unlink()
forget_if_incomplete(job("new", "pretrained", 1), {"BLiMP": job("new", "BLiMP", 1)})
outcomes.append(job("new", "BLiMP", 1).result())
outcomes.append(adopted("new", 1))
print(json.dumps(outcomes))
"""
    new, started, refusal, forgotten, repeated = json.loads(
        python(program, str(tmp_path)).splitlines()[-1]
    )
    assert new == repeated == [True, [{"loss": 2.0}, {"score": 0.6}]]
    assert forgotten is None
    # A run that was started keeps its own results, and does not get the scores of another model.
    assert started == [False, [{"local": True}, None]]
    assert refusal.startswith("other, pretrained: the published results have different settings.")
    assert not (tmp_path / "other").exists()


def test_finished_models_are_scored_while_others_are_trained(tmp_path: Path) -> None:
    # Another process trains the model "b". It finishes when the model "a" has been scored.
    program = """
import json, sys
from contextlib import ExitStack
from pathlib import Path
from jobs import Job
from run import train_and_score

folder, order = Path(sys.argv[1]), []
other = ExitStack()

def job(model, name, diverged=""):
    def measure():
        order.append(f"{model}, {name}")
        if order[-1] == "a, score":
            jobs["b"][0].adopt({"diverged": ""})
            other.close()
        return {"diverged": diverged}
    return Job(f"{model}, {name}", folder / model / f"{name}.json", {}, measure)

jobs = {
    "a": (job("a", "model"), {"score": job("a", "score")}),
    "b": (job("b", "model"), {"score": job("b", "score")}),
    "c": (job("c", "model", "diverged"), {"score": job("c", "score")}),
}
other.enter_context(jobs["b"][0].locked(wait=True))
train_and_score(list(jobs.values()), ["train", "score"])
print(json.dumps(order))
"""
    order = json.loads(python(program, str(tmp_path)).splitlines()[-1])
    assert order == ["a, model", "c, model", "a, score", "b, score"]


@pytest.mark.parametrize(
    ("held_out", "vocabularies", "problem"),
    [
        (0, [8, 8], "corpora/32: has no held-out text. Prepare it with `bert-jax prepare --held-"),
        (1, [8, 9], "corpora: contains vocabularies of different sizes (8 in 32/; 9 in 128/)."),
    ],
)
def test_unusable_corpora_are_refused(
    held_out: int, vocabularies: list[int], problem: str, tmp_path: Path
) -> None:
    for length in (32, 128):
        write_lines(tmp_path / f"corpora/{length}/manifest.json", ["{}"])
    program = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
import corpus

folder, held_out, sizes = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
corpus.read_manifest = lambda path: SimpleNamespace(
    max_length=int(path.name),
    vocab_size=sizes[path.name == "128"],
    heldout=SimpleNamespace(num_documents=held_out),
)
try:
    corpus.opened(folder, (32, 128))
except SystemExit as error:
    print(error)
"""
    words = (str(tmp_path / "corpora"), str(held_out), json.dumps(vocabularies))
    assert problem in python(program, *words)


def test_damaged_text_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "corpus_large/books.jsonl", ['{"text": "One."}', '{"text": "Two'])
    program = """
import sys
from pathlib import Path
import corpus

try:
    corpus.draw(Path(sys.argv[1]) / "corpus_large", Path(sys.argv[1]) / "text", 10)
except SystemExit as error:
    print(error)
"""
    printed = python(program, str(tmp_path)).splitlines()[-1]
    assert printed.startswith(f"{tmp_path}/corpus_large/books.jsonl:2: ")
    assert printed.endswith(". Correct the file") and "--on-bad-line" not in printed
    assert not list((tmp_path / "text").iterdir())


def test_the_table_contains_means_and_deviations() -> None:
    tasks = {"SST-2-0.0001": {"score": 0.5}, "SST-2-0.001": {"score": None}}
    runs = {
        seed: {
            **{"parameters": 5_380_000, "learning_rate": 1e-3, "steps": 1_000, "tokens": 2e6},
            **{"flops": 3e14, "muon_flops": 5e13, "seconds": 60, "diverged": ""},
            **{"phase_steps": [500, 500], "phase_flops": [1e11, 2e11]},
            "curve": [[250, 7.0], [500, loss + 1], [501, 8.0], [1_000, loss]],
            "next_sentence_accuracy": loss / 8,
            "scores": {"held-out": {"32": {"mlm_loss": loss}}, "BLiMP": {"score": 0.6}} | scores,
        }
        for seed, loss, scores in (
            ("0", 4.0, tasks),
            ("1", 5.0, tasks | {"SST-2-0.0003": {"score": 0.52}}),
        )
    }
    diverged = runs["0"] | {"scores": {}, "diverged": "the loss is not finite"}
    # Results from before this accuracy was recorded lack it.
    del diverged["next_sentence_accuracy"]
    diverged["curve"] = [[250, 7.0]]
    variants = {"bert": {"title": "BERT", "runs": runs}, "muon": {"title": "+ Muon", "runs": {}}}
    variants["muon"]["runs"] = {"0": diverged}
    program = "import json, sys; from report import table; "
    program += "print(*table(json.loads(sys.argv[1]), [32, 128]), sep='\\n')"
    header, _, *rows = python(program, json.dumps(variants)).splitlines()
    names, bert, muon = (row.strip("| ").split(" | ") for row in (header, *rows))
    cells = dict(zip(names, bert, strict=False))
    assert cells["recipe"] == "BERT" and cells["FLOPs incl. Muon"] == "3.5e+14"
    assert cells["loss after phase 1"] == "5.500 ± 0.707"
    assert cells["held-out loss, rows of 32"] == "4.500 ± 0.707"
    assert cells["held-out loss, rows of 128"] == ""
    assert cells["next-sentence accuracy, %"] == "56.2 ± 8.8"
    assert cells["BLiMP accuracy, %"] == "60.0 ± 0.0"
    # The best learning rate counts, separately for each seed.
    assert cells["SST-2 accuracy, %"] == "51.0 ± 1.4"
    cells = dict(zip(names, muon, strict=False))
    assert cells["held-out loss, rows of 32"] == "(1 diverged)"
    assert cells["loss after phase 1"] == ""
    assert not cells.keys() & {"next-sentence accuracy, %", "BLiMP accuracy, %"}


@pytest.mark.slow
def test_wrong_options_are_refused(data: Path, tmp_path: Path) -> None:
    edited = tmp_path / "edited.json"
    content = {name: {} for name in ("settings", "corpora", "learning_rates", "tuning")}
    content["settings"] = {"tokens": 8_192, "lengths": [32, 128], "batch_tokens": 512}
    content["settings"] |= {"dtype": "float32", "fast": True}
    edited.write_text(json.dumps(content | {"variants": {"bert": {"runs": {"0": {}}}}}))
    cases = {
        "--seeds 0": "argument --seeds: 0: not a positive whole number. Use 1 or more",
        "--pairs -1": "argument --pairs: -1: not a positive whole number. Use 1 or more",
        "--tokens many": "argument --tokens: many: not a positive whole number. Use 1 or more",
        "--learning-rates bert=fast": "fast: not a learning rate. Use a positive number",
        "--learning-rates muon=0.1,nan": "argument --learning-rates: nan: not a learning rate",
        "--learning-rates all=0.1": "all=0.1: 'all' is not a recipe that is tuned",
        "--learning-rates bert=0.1,0.1": "--learning-rates bert=0.1,0.1: contains the same rate",
        "--learning-rates bert=1,2 bert=1": "--learning-rates: contains the same recipe twice",
        "--learning-rates bert=1e-3": "--learning-rates: 2 rates for rotary, but 1 for bert",
        "--finetuning-rates 1e-3 1e-3": "--finetuning-rates 0.001 0.001: contains the same rate",
        "--lengths 128 32": "--lengths=128 32: not increasing",
        "--lengths 8 16 32": "--lengths=8 16 32: more than two phases",
        "--lengths 4": "--lengths=4: expected 8 to 65535 tokens. Use other lengths",
        "--batch-tokens 100": "--batch-tokens=100: not a multiple of each length in --lengths",
        "--tokens 4096": "--tokens=4096: fewer than 16 batches. Use at least 8192",
        "--extend missing.json": "--extend=missing.json: is not a file",
        f"--extend {data}/glue/SST-2/dev.tsv": "dev.tsv: contains no results. Give a results.json",
        f"--extend {edited}": "edited.json: the runs of 'bert' are incomplete. Use a file that has",
        "--steps prepare --corpora .": "--corpora=.: already contains prepared corpora",
        f"--work {SCRIPT}": f"--work={SCRIPT}: is not a folder. Use another path",
        f"--data {tmp_path}": f"--data={tmp_path}: contains no corpus_small/*.jsonl*. Cor",
    }
    program = """
import contextlib, io, json, sys
from options import arguments
messages = []
for words in json.loads(sys.argv[1]):
    errors = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(errors):
        arguments(words, "")
    messages.append(errors.getvalue().splitlines()[-1])
print(json.dumps(messages))
"""
    base = ["--data", str(data), "--work", str(tmp_path / "work"), "--fast"]
    words = [[*base, *case.split()] for case in cases]
    messages = json.loads(python(program, json.dumps(words)))
    for message, expected in zip(messages, cases.values(), strict=True):
        assert expected in message
    assert not (tmp_path / "work").exists()


def pretrained_results(name: str, losses: dict[str, float | None]) -> dict[str, Any]:
    """Return the results of a variant with given losses on held-out rows of 32 tokens, by seed."""
    steps = {"bert": 100, "muon_50": 50, "muon_70": 70, "muon": 100}[name]
    run = {"steps": steps, "flops": 10 * steps, "muon_flops": 0 if name == "bert" else 2 * steps}
    return {
        "runs": {
            seed: run | {"scores": {"held-out": {"32": {"mlm_loss": loss}}} if loss else {}}
            for seed, loss in losses.items()
        }
    }


def step_reductions(inputs: Sequence[dict[str, dict[str, float | None]]]) -> list[Any]:
    """Return Muon's step reduction for each mapping from variants to their losses by seed."""
    program = "import json, sys; from step_reduction import step_reduction; "
    program += "given = json.loads(sys.argv[1]); "
    program += "print(json.dumps([step_reduction(each, 'bert', 32) for each in given]))"
    variants = [
        {name: pretrained_results(name, losses) for name, losses in each.items()} for each in inputs
    ]
    results: list[Any] = json.loads(python(program, json.dumps(variants)))
    return results


def test_step_reduction() -> None:
    cases = [
        # The step at which the line from (50, 5) to (70, 4) reaches 4.5.
        (4.5, (5.0, 4.0, 3.0), ["", 60, 0.6]),
        (5.5, (5.0, 4.0, 3.0), ["at most", 50, 0.5]),
        (2.0, (5.0, 4.0, 3.0), ["more than", 100, 1.0]),
        # A run without a score is left out, and BERT's loss is reached between 50 and 100 steps.
        (4.5, (5.0, None, 3.0), ["", 62, 0.62]),
        (4.5, (None, None, None), None),
        # Without a shorter run, there is no reduction to report.
        (4.5, (None, None, 3.0), None),
        (None, (5.0, 4.0, 3.0), None),
    ]
    inputs = [
        {
            name: {"0": None} if mean is None else {"0": mean - 0.25, "1": mean + 0.25}
            for name, mean in zip(
                ("bert", "muon_50", "muon_70", "muon"), (bert, *losses), strict=True
            )
        }
        for bert, losses, _ in cases
    ]
    for (_, _, expected), result in zip(cases, step_reductions(inputs), strict=True):
        values = result and [result["bound"], result["steps"], result["share"]]
        assert values == expected
        if result:
            assert list(result["by_seed"]) == ["0", "1"]
            assert result["share_of_flops"] == pytest.approx(1.2 * result["share"])


def test_step_reduction_compares_the_same_seeds() -> None:
    both, incomplete, disjoint = step_reductions(
        [
            {
                "bert": {"0": 4.5, "1": 5.0},
                "muon_50": {"0": 5.0, "1": 6.0},
                "muon": {"0": 4.0, "1": 5.0},
            },
            {"bert": {"0": 4.5, "1": 9.0}, "muon_50": {"0": 5.0, "1": 9.0}, "muon": {"0": 4.0}},
            {"bert": {"0": 4.5}, "muon_50": {"0": 5.0}, "muon": {"1": 4.0}},
        ]
    )
    # The mean losses are 4.75 with BERT's recipe, and 5.5 and 4.5 with Muon.
    assert both["steps"] == 88
    assert {seed: each["steps"] for seed, each in both["by_seed"].items()} == {"0": 75, "1": 100}
    assert list(incomplete["by_seed"]) == ["0"]
    assert incomplete["adamw_loss"] == 4.5
    assert incomplete["muon_losses"] == {"50": 5.0, "100": 4.0}
    assert incomplete["steps"] == 75
    assert disjoint is None


def test_the_step_reduction_names_the_recipes_that_it_compares() -> None:
    run = {"steps": 100, "flops": 1_000, "muon_flops": 0}
    scores = {
        name: {"runs": {"0": run | {"scores": {"held-out": {"128": {"mlm_loss": loss}}}}}}
        for name, loss in {"bert": 6.0, "rotary": 4.5, "rotary_muon": 4.25}.items()
    }
    runs = {"steps": 50, "flops": 500, "muon_flops": 100}
    runs |= {"scores": {"held-out": {"128": {"mlm_loss": 4.75}}}}
    scores["rotary_muon_50"] = {"runs": {"0": runs}}
    scores["rotary_muon"]["runs"]["0"]["muon_flops"] = 200
    program = """
import json, sys
from step_reduction import reduction_lines, step_reduction
variants = json.loads(sys.argv[1])
bases = {base: {"128": step_reduction(variants, base, 128)} for base in ("bert", "rotary")}
print("\\n".join(reduction_lines(bases)))
"""
    (line,) = python(program, json.dumps(scores)).strip().splitlines()
    assert line == (
        'On rows of 128 tokens, "+ rotary positions and Muon" needs 75 steps to reach the loss of '
        '"+ rotary positions" (4.500). This is 75% of its steps (75% with seed 0) and, with '
        "Muon's matrix products included, 90% of its FLOPs."
    )


@pytest.mark.slow
def test_the_experiment_runs_in_steps_and_does_not_repeat_them(data, tmp_path):
    work = tmp_path / "work"
    assert "not a finished corpus" in run(data, work, "--steps", "tune", code=1)
    assert not work.exists()
    run(data, work, "--steps", "prepare", "tune")
    check_sample(data, work / "text")
    # Two rates for both base recipes with both optimizers.
    assert len(trials := files_of(work)) == 2 * 2 * 2
    run(data, work, "--parallel", "2")
    first, before = results(work), files_of(work)
    # The best trial of BERT's recipe is not repeated. Shorter runs are scored on held-out text
    # only.
    assert trials.items() <= before.items()
    assert len(before) == len(trials) + 2 + 2 * 4 + 1
    check_results(first)
    check_configs(first, work)

    # Finished jobs are not repeated. If only the results file of a run is missing, it is
    # rewritten without retraining.
    everything = run_of(work, "all") / "pretrained.json"
    everything.unlink()
    printed = run(data, work, "--parallel", "1")
    assert printed.count("started") == 1
    assert re.search(r"all at 0\.00[12], seed 0: started", printed)
    after = files_of(work)
    assert {name for name in before if before[name] != after[name]} == {str(everything)}
    assert results(work) == first
    printed = run(data, work, "--dtype", "bfloat16", code=1)
    assert "contains runs with other settings (dtype: 'float32' -> 'bfloat16'). Use" in printed
    # A run that was stopped does not resume with a different learning rate.
    (run_of(work, "muon_50") / "pretrained.json").unlink()
    recipe = run_of(work, "muon_50") / "pretrained.recipe.json"
    changed = json.loads(recipe.read_text())
    changed["config"]["optimizer"]["peak_learning_rate"] = 0.5
    original = recipe.read_text()
    recipe.write_text(json.dumps(changed))
    assert "was started with different settings" in run(data, work, "--steps", "train", code=1)
    recipe.write_text(original)

    # Results without a recipe are not accepted, since their settings are unknown.
    recipe = run_of(work, "all") / "pretrained.recipe.json"
    original = recipe.read_text()
    recipe.unlink()
    assert "the settings of pretrained.json are unknown" in run(
        data, work, "--steps", "report", code=1
    )
    recipe.write_text(original)

    check_extension(data, tmp_path, work)
    check_a_single_length(data, tmp_path / "short", work / "corpora")

    # A wider grid of learning rates reuses the runs of the narrower one.
    added = {"bert": "1e-06", "rotary": "3e-06", "muon": "0.008", "rotary_muon": "0.009"}
    grids = [f"{name}=1e-3,2e-3,{rate}" for name, rate in added.items()]
    printed = run(data, work, "--steps", "tune", "--learning-rates", *grids)
    assert printed.count("started") == 2 * 2
    for name, rate in added.items():
        assert f"\n{name} at {rate}, seed 0: started" in f"\n{printed}"


def check_extension(data: Path, folder: Path, work: Path) -> None:
    """Check that other work folders in `folder` can reuse the published results in `work`."""
    first = results(work)
    # Published runs are not repeated in another folder, unless their settings differ. Their
    # learning rates are used without trials.
    words = ["--corpora", f"{work / 'corpora'}", "--extend", f"{work / 'results.json'}"]
    assert "started" not in run(data, folder / "extended", *words)
    extended = results(folder / "extended")
    for part in ("learning_rates", "tuning", "variants"):
        assert extended[part] == first[part]
    assert len(files_of(folder / "extended")) == 2 * 5 + 2
    # The names of the source files do not matter, but their content does. Runs with other learning
    # rates are not used.
    content = json.loads((work / "results.json").read_text())
    published, other = folder / "renamed.json", folder / "other.json"
    content["corpora"]["32"]["sources"] = ["books.jsonl.xz"]
    published.write_text(json.dumps(content))
    content["corpora"]["32"]["fingerprint"] = "another"
    other.write_text(json.dumps(content))
    report = ["--corpora", f"{work / 'corpora'}", "--steps", "report", "--extend"]
    run(data, folder / "renamed", *report, f"{published}")
    assert results(folder / "renamed")["variants"] == first["variants"]
    printed = run(data, folder / "other", *report, f"{other}", code=1)
    assert "was measured with different corpora. Use the same data" in printed
    assert not (folder / "other").exists()
    rate = ["--learning-rates", "bert=0.5", "--variants", "bert"]
    printed = run(data, folder / "renamed", *report, f"{published}", *rate, code=1)
    assert "bert: the published runs are not used, since --learning-rates contains" in printed
    # Other settings are refused, even for variants that have not been published.
    printed = run(data, folder / "other", *words, "--tokens", "9216", "--variants", "wsd", code=2)
    assert "was measured with --tokens 8192, not 9216. Use the same settings" in printed
    # An adopted run has no model, so another score requires training again.
    words += ["--variants", "bert", "--finetuning-rates", "3e-4", "1e-3"]
    printed = run(data, folder / "extended", *words)
    assert "seed 0: will be measured again, since its model is not in this folder" in printed
    assert printed.count("started") == 1 + 2 + 2 * 2
    # The best score of a task is not reported until all rates have been tried.
    run(data, folder / "extended", *words, "3e-3", "--steps", "report")
    content = json.loads((folder / "extended/results.json").read_text())
    assert content["variants"]["bert"]["runs"]["0"]["scores"].keys() == {"held-out", "BLiMP"}


@pytest.mark.slow
def test_runs_resume_and_may_diverge(data: Path, tmp_path: Path) -> None:
    words = ["--variants", "bert", "--tokens", f"{512 * 400}", "--corpora", f"{tmp_path}/corpora"]
    run(data, tmp_path, "--steps", "prepare")
    rate = ["--learning-rates", "bert=1e-3"]
    # The number of cores of a process can change the last bits of a loss.
    train = [*words, *rate, "--seeds", "2", "--steps", "train", "--parallel", "2"]
    report = [*words, *rate, "--seeds", "2", "--steps", "report"]
    stopped, work = tmp_path / "stopped", tmp_path / "work"
    copies = started(data, stopped, *train)
    assert copies.stdout
    printed = ""
    while "after step 200" not in printed:
        assert (line := copies.stdout.readline()), printed
        printed += line
    copies.terminate()
    printed += copies.communicate(timeout=120)[0]
    assert copies.returncode == 1 and "stopped. Repeat the command to resume" in printed
    assert len(files_of(stopped)) < 2
    run(data, stopped, *train)
    run(data, stopped, *report)
    run(data, work, *train)
    run(data, work, *report)
    resumed, uninterrupted = (
        json.loads((folder / "results.json").read_text())["variants"]["bert"]["runs"]
        for folder in (stopped, work)
    )
    for seed in ("0", "1"):
        assert resumed[seed]["curve"] == uninterrupted[seed]["curve"]
    assert resumed["0"]["curve"] != resumed["1"]["curve"]

    # A learning rate with which the loss is not finite is not the best one.
    rates = ["--learning-rates", "bert=1e30,1e-3"]
    printed = run(data, work, *words, *rates, "--steps", "tune", "report")
    assert "| recipe | 0.001 | 1e+30 |" in printed
    assert re.search(r"\| BERT \| \d\.\d{3} \| diverged \|", printed)
    content = json.loads((work / "results.json").read_text())
    assert content["learning_rates"] == {"bert": 1e-3}
    assert content["tuning"]["bert"].keys() == {"1e+30", "0.001"}
    assert content["tuning"]["bert"]["1e+30"] is None
    rates = ["--learning-rates", "bert=1e30,2e30"]
    printed = run(data, work, *words, *rates, code=1)
    assert "--learning-rates bert=1e+30,2e+30: all trials diverged. Use lower rates" in printed
    # A run that diverged has no scores.
    printed = run(data, work, *words, "--learning-rates", "bert=1e30", "--steps", "score", "report")
    assert "(1 diverged)" in printed


def check_a_single_length(data: Path, work: Path, corpora: Path) -> None:
    """Check that a run with a single length has one phase."""
    names = ("bert", "rotary", "muon", "rotary_muon")
    words = ["--learning-rates", *(f"{name}=1e-3" for name in names)]
    words += ["--lengths", "32", "--variants", "bert", "--corpora", f"{corpora}"]
    run(data, work, *words, "--steps", "train", "report")
    content = json.loads((work / "results.json").read_text())
    (each,) = content["variants"]["bert"]["runs"].values()
    assert each["phase_steps"] == [16] and each["flops"] == 16 * each["phase_flops"][0]


def results(work: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((work / "results.json").read_text())
    lines = (work / "table.md").read_text().splitlines()
    titles = [line.split(" | ")[0] for line in lines[-7:-4]]
    assert titles == ["| BERT", "| all changes", "| + Muon, 50% of the steps"]
    assert lines[-3].startswith('On rows of 32 tokens, "+ Muon" needs')
    assert lines[-1].startswith('On rows of 128 tokens, "+ Muon" needs')
    assert (work / "comparison.png").read_bytes().startswith(b"\x89PNG")
    return content


def check_sample(data: Path, output: Path) -> None:
    """Check that documents were drawn in the order of their hashes until there were enough."""
    texts = [
        json.loads(line)["text"]
        for name in ("books", "wiki")
        for line in (data / f"corpus_large/{name}.jsonl").read_text().splitlines()
    ]
    hashes = {text: hashlib.sha256(text.encode()).hexdigest() for text in texts}
    drawn, words = [], 0
    for text in sorted(texts, key=hashes.__getitem__):
        if words < 2_000:
            drawn.append(text)
            words += len(text.split())
    with gzip.open(output / "sample.jsonl.gz", "rt") as file:
        written = [json.loads(line)["text"] for line in file]
    assert written == [text for text in texts if text in drawn]
    assert 5 < len(written) < len(texts)
    description = json.loads((output / "sample.json").read_text())
    assert description["words"] == words
    sources = description["sources"].values()
    assert sum(source["documents"] for source in sources) == len(written)
    assert sum(source["words"] for source in sources) == words


def check_results(content: dict[str, Any]) -> None:
    variants = content["variants"]
    assert list(variants) == list(VARIANTS)
    reference = variants["bert"]["runs"]["0"]
    assert reference["steps"] == 16 and reference["tokens"] == 16 * 512
    for name, variant in variants.items():
        (each,) = variant["runs"].values()
        assert sum(each["phase_steps"]) == each["steps"]
        assert each["phase_steps"][1] == round(0.5 * each["steps"])
        assert each["flops"] == np.dot(each["phase_steps"], each["phase_flops"])
        budget = reference["flops"] * (0.5 if name == "muon_50" else 1)
        assert abs(each["flops"] - budget) <= max(each["phase_flops"]) / 2
        assert (each["muon_flops"] > 0) == (name != "bert")
        tuned_with = {"bert": "bert", "all": "rotary_muon", "muon_50": "muon"}[name]
        losses = content["tuning"][tuned_with]
        assert len(losses) == 2
        assert losses[f"{each['learning_rate']:g}"] == min(losses.values())
        steps, curve = np.transpose(each["curve"])
        assert steps[-1] == each["steps"] and curve[-1] == each["loss"]
        check_held_out_losses(each)
        assert 0 <= each["next_sentence_accuracy"] <= 1
        if name == "muon_50":
            assert list(each["scores"]) == ["held-out"]
            continue
        assert 0 <= each["scores"]["BLiMP"]["score"] <= 1
        assert each["scores"]["BLiMP"]["pairs"] == 4
        assert 0 <= each["scores"]["SST-2-0.0003"]["score"] <= 1
        assert -1 <= each["scores"]["STS-B-0.0003"]["score"] <= 1
    # With twice as many predictions and a third matrix in each block, a step costs more.
    assert variants["all"]["runs"]["0"]["steps"] < reference["steps"]
    # The FLOPs of one iteration in Muon: four matrices of 32 x 32 (query, key, value and output),
    # and three of 32 x 64 (the gated feed-forward block).
    everything = variants["all"]["runs"]["0"]
    iteration = 4 * 6 * 32**3 + 3 * (4 * 32**2 * 64 + 2 * 32**3)
    assert everything["muon_flops"] == everything["steps"] * 5 * iteration


def check_held_out_losses(run: dict[str, Any]) -> None:
    """Check that the losses of the final model are close to the last evaluation of its training."""
    short, long = (run["scores"]["held-out"][length]["mlm_loss"] for length in ("32", "128"))
    assert short != long
    # The masks and the segments differ from those during training.
    assert short == pytest.approx(run["loss"], rel=0.01)
    assert long == pytest.approx(run["loss"], rel=0.01)


def check_configs(content: dict[str, Any], work: Path) -> None:
    """Check that each variant was trained with the settings that its title promises."""
    configs = {
        name: json.loads((run_of(work, name) / "run/config.json").read_text()) for name in VARIANTS
    }
    for name, config in configs.items():
        assert config["evaluation"]["masking_rate"] == 0.15
        phases = config["phases"]
        steps = [phases[phase]["num_steps"] for phase in ("phase1", "phase2")]
        assert steps == content["variants"][name]["runs"]["0"]["phase_steps"]
        rows = [(phase["batch_size"], phase["sequence_length"]) for phase in phases.values()]
        assert rows[:2] == [(16, 32), (4, 128)]
    bert, everything = configs["bert"], configs["all"]
    # With Muon, the remaining parameters have the learning rate that is best for AdamW.
    rates = content["learning_rates"]
    for name, base in (("all", "rotary"), ("muon_50", "bert")):
        muon = configs[name]["optimizer"]
        assert muon["peak_learning_rate"] * muon["adam_rate_factor"] == pytest.approx(rates[base])
    for section, values in content["variants"]["all"]["changes"].items():
        for name, value in values.items():
            if name == "ffn_dim":  # --fast uses its own size.
                continue
            assert everything[section][name] == value != bert[section][name]
    changes = content["variants"]["all"]["changes"]
    assert changes["masking"] == {"rate": 0.3, "final_rate": 0.15}
    assert changes["optimizer"] == {
        "name": "muon",
        "schedule": "wsd",
        "decay_fraction": 0.2,
        "decay_shape": "1-sqrt",
    }
    names = ("positions", "norm", "gated_ffn", "dense_bias", "norm_bias")
    assert [changes["model"][name] for name in names] == ["rotary", "pre", True, False, False]
