"""Fine-tune a pretrained model on a CSV file and classify new texts with it.

    python examples/finetune_csv.py models/base reviews.csv runs/reviews

The columns and labels are detected and logged, and 10% of the rows are held out for validation.
"""

import logging
import sys
from collections.abc import Mapping

import bert_jax as bj


def main(
    init_from: str, data: str, work_dir: str, *, overrides: Mapping[str, object] | None = None
) -> None:
    """Train a model on `data`, initialized from the work directory `init_from`."""
    config = bj.load_config(
        "finetune/table",
        {
            "init_from": init_from,
            "work_dir": work_dir,
            "sentences.files.train": data,
            "num_epochs": 3,
            "optimizer.peak_learning_rate": 3e-5,
            **(overrides or {}),
        },
    )
    result = bj.finetune(config, on_report=print)  # resumes an interrupted run
    print(f"best step {result.best_step}: {result.scores}")
    evaluation = bj.evaluate(work_dir, data=data)
    for name, scored in evaluation.sets.items():
        print(f"{name}, {scored.examples} examples: {scored.scores}")
    classify = bj.Classify(work_dir)
    texts = ["A delightful film.", "Two hours of my life."]
    for text, answer in zip(texts, classify(texts), strict=True):
        print(f"{text} {answer.label}, {answer.scores}")


if __name__ == "__main__":
    bj.tune_malloc_for_training()  # makes training on a CPU faster
    logging.basicConfig(format="%(message)s")
    logging.getLogger("bert_jax").setLevel(logging.INFO)  # the detected columns
    main(*sys.argv[1:])
