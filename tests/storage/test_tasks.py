"""Test that fine-tuning reads its model and tables from a bucket, as from a disk."""

import json
from pathlib import Path

import pytest

from bert_jax.cli.main import main
from bert_jax.filtering.contamination import read_evaluation_ngrams
from bert_jax.filtering.options import FilterOptions
from bert_jax.labeled_data.treebank import find_treebank, read_treebank
from bert_jax.storage.objects import list_objects, read_bytes, write_bytes
from bert_jax.storage.urls import ObjectUrl

from .test_models import foreign, ours, upload_tree

__all__ = ["foreign", "ours"]

ROWS = "sentence\tlabel\n" + "the cat sat down .\tgood\nit rains in rome .\tbad\n" * 8


@pytest.mark.slow
def test_a_task_in_a_bucket_gives_the_scores_of_one_on_disk(
    ours: Path, bucket: ObjectUrl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upload_tree(ours, bucket / "ours")
    write_bytes(bucket / "train.tsv", ROWS)
    (tmp_path / "train.tsv").write_text(ROWS)
    scores = []
    for place, model in ((str(bucket), str(bucket / "ours")), (str(tmp_path), str(ours))):
        run = tmp_path / f"run{len(scores)}"
        words = ["finetune", "--config", "table", f"--config.work_dir={run}", "--init", model]
        values = {
            **{"sentences.files.train": "train.tsv", "sentences.files.validation": "train.tsv"},
        }
        words += [f"--config.{key}={place}/{value}" for key, value in values.items()]
        words += ["--config.num_epochs=1", "--config.batch_size=8", "--config.max_length=16"]
        words += ["--config.sentences.files.first=sentence", "--config.sentences.files.label=label"]
        assert main(words) == 0, capsys.readouterr().err
        output = [f"{place}/scores.json", f"{place}/predictions"]
        evaluate = ["evaluate", str(run), "--output", output[0], "--predictions", output[1]]
        assert main(evaluate) == 0, capsys.readouterr().err
        scores.append(run)
    here = json.loads((tmp_path / "scores.json").read_text())
    there = json.loads(read_bytes(bucket / "scores.json"))
    assert there["sets"] == here["sets"]
    files = {info.url.name: read_bytes(info.url) for info in list_objects(bucket / "predictions")}
    assert files and all(
        (tmp_path / "predictions" / name).read_bytes() == content
        for name, content in files.items()
        if name.endswith(".tsv")
    )


def test_treebanks_and_evaluation_data_are_read_from_a_bucket(bucket: ObjectUrl) -> None:
    lines = "1\tIt\tit\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\trains\train\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    write_bytes(bucket / "bank/xx-ud-test.conllu", lines)
    treebank = read_treebank(find_treebank(str(bucket / "bank"), "test"))
    assert treebank.num_words == 2 and treebank.path == bucket / "bank/xx-ud-test.conllu"
    words = " ".join(f"word{number}" for number in range(20))
    write_bytes(bucket / "evaluation.jsonl", json.dumps({"text": words}) + "\n")
    options = FilterOptions(decontaminate=(str(bucket / "evaluation.jsonl"),))
    assert len(read_evaluation_ngrams(options.decontaminate).hashes) == 8
    assert list(options.as_json()["decontaminate"]) == ["evaluation.jsonl"]
    with pytest.raises(ValueError, match=f"{bucket}/none: no such file to decontaminate"):
        FilterOptions(decontaminate=(str(bucket / "none"),))
