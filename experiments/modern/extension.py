"""Reuse published results instead of measuring them again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs import Job, Published, adopt


def adopt_published(run: Mapping[str, Any], pretrained: Job, scoring: Mapping[str, Job]) -> None:
    """Adopt a published run if it is fully scored; exit if its settings differ.

    Args:
      run: the published results of the run. Runs that diverged have no scores.
      pretrained: the job that pretrains the model.
      scoring: the jobs that score the model, keyed by the name of the score.
    """
    forget_if_incomplete(pretrained, scoring)
    scores, hashes = run["scores"], run["recipes"]
    if not run["diverged"] and scoring.keys() - scores.keys():
        if not pretrained.started:
            reason = "since its published scores are incomplete"
            print(f"{pretrained.name}: will be measured again, {reason}")
        return
    result = {name: value for name, value in run.items() if name not in ("scores", "recipes")}
    adopt(
        Published(pretrained, result, hashes[pretrained.output.stem]),
        [
            Published(job, scores[name], hashes[name])
            for name, job in scoring.items()
            if name in scores
        ],
    )


def forget_if_incomplete(pretrained: Job, scoring: Mapping[str, Job]) -> None:
    """Forget an adopted run if some of its scores are missing, so that it is measured again.

    An adopted run has no model that could be scored. If a run was only partly adopted, its scores
    are forgotten too: they would be mistaken for the scores of a model that is trained here.
    """
    folder = pretrained.output.parent
    if not folder.is_dir():
        return
    with pretrained.locked(wait=False) as acquired:
        if not acquired or (folder / "run").is_dir():
            return
        if not pretrained.started:
            for file in folder.glob("*.json"):
                file.unlink()
            return
        result = pretrained.result()
        if result is None or result["diverged"]:
            return
        if all(job.result() is not None for job in scoring.values()):
            return
        for job in (*scoring.values(), pretrained):
            job.forget()
        print(f"{pretrained.name}: will be measured again, since its model is not in this folder")
