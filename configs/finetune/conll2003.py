"""CoNLL-2003: find people, places, organizations and other entities in news articles.

Each sentence is tagged in the context of its document.

Data: train.txt, valid.txt and test.txt (eng.train, eng.testa, eng.testb) with four columns and
-DOCSTART- lines. Use a cased model, since capital letters help to identify names.
Command:
    bert-jax finetune --config configs/finetune/conll2003.py --init DIR
Hardware: any. With document context, all rows have max_length tokens.
Published (Devlin et al. 2019, table 7; entity F1 on the dev / test set): BERT-base
96.4 / 92.4, BERT-large 96.6 / 92.8.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/conll2003",
            init_from="",
            tags=dict(
                files=dict(
                    train="data/conll2003/train.txt",
                    validation="data/conll2003/valid.txt",
                    test="data/conll2003/test.txt",
                ),
                document_context=True,
            ),
            max_length=256,
        )
    )
