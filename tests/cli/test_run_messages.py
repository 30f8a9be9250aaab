"""What `pretrain` says of a run before it starts."""

from bert_jax.cli.run_messages import surplus_rows


def test_a_table_much_larger_than_its_vocabulary_is_pointed_out() -> None:
    assert surplus_rows(30_522, 30_522) == surplus_rows(30_522, 30_592) == []
    assert surplus_rows(1_000, 2_023) == []
    assert len(surplus_rows(1_000, 2_024)) == 1
    (line,) = surplus_rows(1_000, 30_522)
    assert "the tokenizer has 1,000 entries, model.vocab_size is 30,522" in line
    assert line.endswith("--config.model.vocab_size=1000 fits")
