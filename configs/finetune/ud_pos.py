"""Universal Dependencies: tag each word with its part of speech (UPOS), using CoNLL-U files.

Data: a treebank from https://universaldependencies.org. The default paths are for English EWT; to
train on another language, set the paths to the files of a treebank in that language. To predict
another column, set, for example, --config.tags.files.tag=XPOS.
Command:
    bert-jax finetune --config configs/finetune/ud_pos.py --init DIR
Hardware: any. The BERT paper does not report a score for this task.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/ud_pos",
            init_from="",
            tags=dict(
                files=dict(
                    train="data/ud_ewt/en_ewt-ud-train.conllu",
                    validation="data/ud_ewt/en_ewt-ud-dev.conllu",
                    test="data/ud_ewt/en_ewt-ud-test.conllu",
                    kind="conllu",
                    learn_as="as_written",
                )
            ),
            max_length=128,
        )
    )
