"""Define the transformer encoder: embeddings and a stack of layers."""

from __future__ import annotations

from typing import NamedTuple, assert_never

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.attention import View
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.layout import constrain
from bert_jax.models.norms import Norm, norm_layer
from bert_jax.models.rematerialization import keeps_dense_and_attention
from bert_jax.models.rotary import Rotation, rotation
from bert_jax.models.transformer_layer import (
    Layer,
    LayerOutput,
    LayerStep,
    SharedLayer,
    apply_layer,
)


class EncoderOutput(NamedTuple):
    """The outputs of an encoder.

    Attributes:
      hidden: [batch, length, hidden_dim], the last layer's output.
      hidden_states: the embeddings and each layer's output: num_layers + 1 arrays shaped like
        `hidden`. None unless requested.
      attention_scores: each layer's scores before masking and softmax: num_layers float32 arrays
        [batch, num_heads, from, to]. None unless requested.
    """

    hidden: jax.Array
    hidden_states: tuple[jax.Array, ...] | None
    attention_scores: tuple[jax.Array, ...] | None = None


def difference_of_layers(config: EncoderConfig) -> str:
    """Return the setting that makes the layers differ, or "" if they are all alike."""
    match config.sharing:
        case "attention" | "ffn":
            return f"sharing={config.sharing!r}"
        case "none" | "all":
            pass
        case _:
            assert_never(config.sharing)
    if config.attention_window is not None:
        return f"attention_window={config.attention_window}"
    return "" if config.first_norm else "first_norm=False"


class Encoder(nnx.Module):
    """Embeddings followed by `num_layers` layers, without a pooler or a head.

    Args:
      config: the architecture.
      compute: options for the computation.
      rngs: the keys for randomly initialized parameters.
    """

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        if compute.scan_layers and (difference := difference_of_layers(config)):
            raise ValueError(
                f"compute.scan_layers=True: with model.{difference}, the layers differ, so they "
                "cannot be scanned. Set compute.scan_layers=False"
            )
        self.config = config
        self.compute = compute
        self.embeddings = Embeddings(config, compute, rngs)
        layers = []
        for number in range(config.num_layers):
            attention, ffn = (owner == number for owner in config.parameter_owners(number))
            norm = number > 0 or config.first_norm
            layers.append(Layer(config, compute, rngs, attention=attention, ffn=ffn, norm=norm))
        self.layers = nnx.List(layers)
        match config.norm:
            case "post":
                pass
            case "pre":
                self.final_norm = norm_layer(config.hidden_dim, config, compute, rngs)
            case _:
                assert_never(config.norm)

    def __call__(
        self,
        token_ids: jax.Array,
        segment_ids: jax.Array | None = None,
        position_ids: jax.Array | None = None,
        document_ids: jax.Array | None = None,
        *,
        packed: bool = True,
        dropout_key: jax.Array | None = None,
        return_hidden_states: bool = False,
        return_attention_scores: bool = False,
        positions: jax.Array | None = None,
    ) -> EncoderOutput:
        """Encode a batch.

        Args:
          token_ids: [batch, length] integers.
          segment_ids: [batch, length], or None for all zeros.
          position_ids: [batch, length], or None for 0, 1, 2, ...
          document_ids: [batch, length]; 0 for padding, and the same positive number for all tokens
            of a document, which attend only to each other. This may be an ordinary 0/1 attention
            mask, or None to let every token attend to every token.
          packed: whether a row may contain multiple documents. If False, each row must be one
            document followed by padding, so that no attention backend needs a full mask.
          dropout_key: None during evaluation; the same key gives the same dropout masks.
          return_hidden_states: whether to also return the output of every layer; if so, the layers
            are unrolled.
          return_attention_scores: whether to also return every layer's attention scores; if so, the
            layers are unrolled.
          positions: [batch, count], the only positions whose output is needed (in evaluation only);
            None for all. If set, the output has the shape [batch, count, hidden_dim], the last
            layer does less work, and the layers are unrolled.
        """
        assert positions is None or (dropout_key is None and not return_hidden_states)
        count = self.config.num_layers + 1
        keys = None if dropout_key is None else jax.random.split(dropout_key, count)
        x = self.embeddings(token_ids, segment_ids, position_ids, None if keys is None else keys[0])
        x = constrain(x, "batch", None, None)
        views = self.views(document_ids, packed, position_ids, token_ids.shape[1])
        states = [x]
        scores: list[jax.Array] = []
        unrolled = return_hidden_states or return_attention_scores or positions is not None
        normed = None
        if self.compute.scan_layers and not unrolled:
            x = self._scan(x, views[0], None if keys is None else keys[1:])
        else:
            for number, view in enumerate(views):
                rows = positions if number == self.config.num_layers - 1 else None
                step = self._layer_step(view, return_attention_scores, rows)
                key = None if keys is None else keys[number + 1]
                layer, next_norm = self.shared_layer(number), self._next_norm(number)
                x, layer_scores, normed = step(layer, x, key, normed, next_norm)
                states.append(x)
                if layer_scores is not None:
                    scores.append(layer_scores)
        if self.config.norm == "pre":
            x = self.final_norm(x) if normed is None else normed
            states[-1] = x
        return EncoderOutput(
            x,
            tuple(states) if return_hidden_states else None,
            tuple(scores) if return_attention_scores else None,
        )

    def views(
        self,
        document_ids: jax.Array | None,
        packed: bool,
        position_ids: jax.Array | None,
        length: int,
    ) -> list[View]:
        """Return a `View` for each layer; see `__call__` for the arguments."""
        config = self.config
        windows = [config.window_of(number) for number in range(config.num_layers)]
        match config.positions:
            case "learned" | "sinusoidal":
                return [View(document_ids, packed, window) for window in windows]
            case "rotary":
                thetas = [config.theta_of(number) for number in range(config.num_layers)]
                rotations: dict[float, Rotation] = {
                    theta: rotation(position_ids, length, config.head_dim, theta)
                    for theta in sorted(set(thetas))
                }
                return [
                    View(document_ids, packed, window, rotations[theta])
                    for window, theta in zip(windows, thetas, strict=True)
                ]
            case _:
                assert_never(config.positions)

    def shared_layer(self, number: int) -> SharedLayer:
        """Return the layers that provide the parameters for layer `number`, counted from 0."""
        attention, ffn = self.config.parameter_owners(number)
        return SharedLayer(self.layers[attention], self.layers[ffn])

    def _layer_step(
        self, view: View, return_scores: bool, positions: jax.Array | None = None
    ) -> LayerStep:
        """Return a function that applies a layer, with remat as configured."""

        def step(
            layer: SharedLayer,
            x: jax.Array,
            key: jax.Array | None,
            normed: jax.Array | None,
            next_norm: Norm | None,
        ) -> LayerOutput:
            output = apply_layer(
                *(self.config, layer, x, view, key),
                return_scores=return_scores,
                positions=positions,
                normed=normed,
                next_norm=next_norm,
            )
            return output._replace(x=constrain(output.x, "batch", None, None))

        match self.compute.remat:
            case "none":
                return step
            case "dots":
                return jax.checkpoint(step, policy=keeps_dense_and_attention)
            case "layer":
                return jax.checkpoint(step)
            case _:
                assert_never(self.compute.remat)

    def _next_norm(self, number: int) -> Norm | None:
        """Return the norm that layer `number` applies to its output, or None.

        With norm="pre", a layer may also compute the norm that follows it, so that one kernel
        computes both the layer's output and this norm. With remat, this would not help, since both
        arrays would have to be kept for the backward pass.
        """
        norms, remat = self.compute.norms, self.compute.remat
        if (self.config.norm, norms, remat) != ("pre", "triton", "none"):
            return None
        if number + 1 == self.config.num_layers:
            return self.final_norm
        return self.shared_layer(number + 1).attention.attention_norm

    def _scan(self, x: jax.Array, view: View, keys: jax.Array | None) -> jax.Array:
        """Run the layers as one `lax.scan` over their stacked parameters.

        If a group of layers shares its parameters, an inner scan applies that layer repeatedly.
        """
        step = self._layer_step(view, return_scores=False)
        owners = sorted({self.config.parameter_owners(n)[0] for n in range(self.config.num_layers)})
        layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[self.layers[n] for n in owners])
        repeats = self.config.num_layers // len(owners)
        if keys is not None:
            keys = keys.reshape(len(owners), repeats, *keys.shape[1:])

        def body(
            x: jax.Array, layer_and_keys: tuple[Layer, jax.Array | None]
        ) -> tuple[jax.Array, None]:
            layer, keys = layer_and_keys
            shared = SharedLayer(layer, layer)
            if repeats == 1:
                return step(shared, x, None if keys is None else keys[0], None, None).x, None

            def repeat(x: jax.Array, key: jax.Array | None) -> tuple[jax.Array, None]:
                return step(shared, x, key, None, None).x, None

            return jax.lax.scan(repeat, x, keys, length=repeats)

        return jax.lax.scan(body, x, (layers, keys))[0]
