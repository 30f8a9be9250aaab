"""Everything a model gives for a batch, by name: what is exported, compared and looked at."""

from __future__ import annotations

import jax

from bert_jax.models.model import Model


def infer(
    model: Model,
    token_ids: jax.Array,
    segment_ids: jax.Array | None,
    attention_mask: jax.Array | None,
    *,
    hidden_states: bool = False,
) -> dict[str, jax.Array]:
    """Runs a model without dropout, its head at every position.

    Args:
      token_ids, segment_ids: [batch, length]; for multiple choice [batch, choices, length], and
        every choice is a row of a batch of batch * choices to all but `logits`.
      attention_mask: like `token_ids`, 1 for tokens and 0 for padding; None if there is none.
      hidden_states: also give `hidden_0` (the embeddings), `hidden_1`, ... of every layer.

    Returns:
      `hidden` [batch, length, hidden_dim], the last layer's output, and what the head gives:
      `pooled` [batch, hidden_dim], `token_logits` [batch, length, vocab_size],
      `next_sentence_logits` [batch, 2], `logits` [batch, labels], [batch, choices] or
      [batch, length, labels].
    """
    choices = token_ids.shape[:-1] if token_ids.ndim == 3 else None
    if choices:
        length = token_ids.shape[-1]
        token_ids = token_ids.reshape(-1, length)
        segment_ids = None if segment_ids is None else segment_ids.reshape(-1, length)
        attention_mask = None if attention_mask is None else attention_mask.reshape(-1, length)
    output = model.encoder(
        token_ids,
        segment_ids,
        None,
        attention_mask,
        packed=False,
        return_hidden_states=hidden_states,
    )
    outputs = {"hidden": output.hidden, **model.read_out(output.hidden)}
    if choices:
        outputs["logits"] = outputs["logits"].reshape(choices)
    for number, states in enumerate(output.hidden_states or ()):
        outputs[f"hidden_{number}"] = states
    return outputs
