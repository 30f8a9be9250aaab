"""Test the statistics of dropout masks, and that a mask depends only on its key."""

from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.testing import assert_array_equal
from scipy.stats import chi2

from bert_jax.models import dropout_add_norm, embeddings, softmax_attention, transformer_layer
from bert_jax.models.attention import View, xla_attention
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.dropout import KeepMask, dropout, keep_mask
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.options import NormPlacement, Ops
from bert_jax.models.parameters import Parameters
from bert_jax.models.variants import variant
from bert_jax.tasks.pretraining import Pretraining

ROWS, LENGTH, FEATURES = 8, 128, 1024
SHAPE = (ROWS, LENGTH, FEATURES)
# All statistics below use fixed keys, so each test either always passes or always fails. A good
# generator would fail one in 10^6 tests.
UNLIKELY = 1e-6

mask_of = jax.jit(keep_mask, static_argnums=(1, 2))


def key_of(seed: int, step: int = 0) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed), step)


def unlikely(statistic: float, freedom: int) -> bool:
    """Return whether a chi-square statistic lies far out in either tail."""
    return not UNLIKELY < chi2.sf(statistic, freedom) < 1 - UNLIKELY


def pair_statistic(left: np.ndarray, right: np.ndarray, rate: float) -> float:
    """Return the chi-square statistic (3 degrees of freedom) for two masks' joint outcomes."""
    keep = np.array([rate, 1 - rate])
    expected = left.size * keep[:, None] * keep
    counts = np.bincount(2 * left.ravel() + right.ravel(), minlength=4).reshape(2, 2)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.fixture(scope="module", params=[0.1, 0.5])
def rate(request: pytest.FixtureRequest) -> float:
    return request.param


@pytest.fixture(scope="module")
def mask(rate: float) -> np.ndarray:
    return np.asarray(mask_of(key_of(0), rate, SHAPE))


def test_the_keep_rate_is_right_everywhere(mask: np.ndarray, rate: float) -> None:
    assert mask.size >= 10**6
    for dims in [(0, 1, 2), (1, 2), (0, 2), (0, 1), (2,)]:
        # Count the kept elements in the whole mask, and then for each row, token, feature and
        # vector.
        counts = mask.sum(axis=dims)
        size = mask.size // counts.size
        deviations = (counts - size * (1 - rate)) ** 2 / (size * rate * (1 - rate))
        assert not unlikely(float(deviations.sum()), counts.size), dims


def test_neighbors_are_independent(mask: np.ndarray, rate: float) -> None:
    for dim in range(3):
        for distance in (1, 2, 3, 4):
            size = mask.shape[dim]
            left = mask.take(range(size - distance), axis=dim)
            right = mask.take(range(distance, size), axis=dim)
            statistic = pair_statistic(left, right, rate)
            assert not unlikely(statistic, 3), (dim, distance)


def test_patterns_of_eight_neighbors_have_the_expected_frequencies(
    mask: np.ndarray, rate: float
) -> None:
    for dim in (1, 2):
        bits = np.moveaxis(mask, dim, -1).reshape(-1, 8)
        kept = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)
        # Combine patterns that are expected only rarely, such as eight drops in a row (once in 10^8
        # at rate 0.1).
        expected = len(bits) * (1 - rate) ** kept * rate ** (8 - kept)
        observed = np.bincount(np.packbits(bits, axis=1).ravel(), minlength=256)
        common = expected >= 50
        expected = np.append(expected[common], expected[~common].sum())
        observed = np.append(observed[common], observed[~common].sum())
        used = expected > 0
        statistic = float(((observed - expected)[used] ** 2 / expected[used]).sum())
        assert not unlikely(statistic, int(used.sum()) - 1), dim


def test_keys_are_independent(mask: np.ndarray, rate: float) -> None:
    # These keys may occur together: keys from consecutive steps, from a split, and from consecutive
    # seeds.
    others = [key_of(0, 1), key_of(0, 2), key_of(1), *jax.random.split(key_of(0), 2)]
    others += [jax.random.key(0), jax.random.key(1)]
    others += [jax.random.wrap_key_data(jnp.array([1, 0], "uint32"))]
    masks = [mask, *(np.asarray(mask_of(key, rate, SHAPE)) for key in others)]
    for right in range(len(masks)):
        for left in range(right):
            statistic = pair_statistic(masks[left], masks[right], rate)
            assert not unlikely(statistic, 3), (left, right)


def test_no_row_is_a_shifted_copy_of_itself_or_another(mask: np.ndarray, rate: float) -> None:
    # Compute the correlation at all circular shifts at once (Wiener-Khinchin). The chance that any
    # of 5 million normal draws reaches 7 standard deviations is 10^-5; a shifted copy would reach
    # hundreds.
    rows = mask.reshape(ROWS, -1) - (1 - rate)
    spectra = np.fft.rfft(rows / np.sqrt(rate * (1 - rate)))
    size = rows.shape[1]
    for right in range(ROWS):
        for left in range(right + 1):
            shifts = np.fft.irfft(spectra[left].conj() * spectra[right], n=size) / np.sqrt(size)
            if left == right:
                shifts = shifts[1:]
            assert np.abs(shifts).max() < 7, (left, right)


def test_many_short_rows_differ() -> None:
    # Attention probabilities have this shape: batch, heads, length, length.
    masks = np.asarray(mask_of(key_of(3), 0.1, (64, 16, 32, 32)))
    rows = masks.reshape(64 * 16, -1)
    assert len(np.unique(rows, axis=0)) == len(rows)
    alike = (rows.astype(np.float32) @ rows.T)[np.triu_indices(len(rows), 1)]
    # The number of positions that both rows keep has a binomial(1024, 0.81) distribution. Every
    # pair of rows stays within 6 standard deviations.
    assert np.abs(alike - 1024 * 0.81).max() < 6 * np.sqrt(1024 * 0.81 * 0.19)


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4), (2, 2, 3, 4), (0, 4, 4)])
def test_arrays_of_any_rank_are_accepted(shape: tuple[int, ...]) -> None:
    assert mask_of(key_of(0), 0.5, shape).shape == shape


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_backward_pass_uses_the_mask_of_the_forward_pass(dtype: str) -> None:
    x = jax.random.normal(key_of(1), (4, 16, 32), dtype)
    weights = jax.random.normal(key_of(2), x.shape, dtype)
    key, rate = key_of(5), 0.25

    @jax.jit
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gradient = jax.grad(lambda x: jnp.sum((dropout(x, rate, key) * weights).astype("float32")))
        return dropout(x, rate, key), gradient(x)

    dropped, gradient = both(x)
    assert dropped.dtype == gradient.dtype == x.dtype
    mask = mask_of(key, rate, x.shape)
    scale = jnp.asarray(1 / (1 - rate), dtype)
    assert_array_equal(dropped, jnp.where(mask, x * scale, 0))
    assert_array_equal(gradient, jnp.where(mask, weights * scale, 0))
    assert 0 < int(mask.sum()) < mask.size


@pytest.mark.parametrize(
    "spec", [("x", None, None), (None, "x", None), (None, None, "x"), ("y", "x", None)]
)
def test_the_mask_is_the_same_under_any_sharding(spec: tuple[str | None, ...]) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    x = jnp.ones((8, 16, 32))
    expected = dropout(x, 0.3, key_of(9))
    sharded = jax.jit(
        lambda x: dropout(x, 0.3, key_of(9)), in_shardings=sharding, out_shardings=sharding
    )(jax.device_put(x, sharding))
    assert sharded.sharding == sharding
    assert_array_equal(sharded, expected)


def test_nothing_is_dropped_without_a_key_or_a_rate() -> None:
    x = jnp.arange(6.0).reshape(1, 2, 3)
    assert dropout(x, 0.0, key_of(0)) is x
    assert dropout(x, 0.5, None) is x


def test_attention_dropout_depends_only_on_the_key() -> None:
    batch, length, heads = 4, 32, 2
    scores = jnp.zeros((batch, heads, length, length))
    # If all scores are zero and the values are one-hot, the output is the attention probabilities.
    values = jnp.broadcast_to(jnp.eye(length)[None, :, None], (batch, length, heads, length))
    view = View(None, packed=True)
    attend = jax.jit(lambda key: xla_attention(scores, values, view, 0.25, key))
    first, repeated, next_step = (np.asarray(attend(key_of(4, step))) for step in (0, 0, 1))
    assert_array_equal(first, repeated)
    assert set(np.unique(first)) == {0.0, np.float32(1 / length / 0.75)}
    both = ((first > 0) & (next_step > 0)).mean()
    assert both == pytest.approx(0.75**2, abs=0.03)
    per_head = np.moveaxis(first, 2, 1).reshape(batch * heads, -1) > 0
    assert len(np.unique(per_head, axis=0)) == batch * heads
    undropped = xla_attention(scores, values, view, 0.25, None)
    np.testing.assert_allclose(undropped, 1 / length, rtol=1e-6)


@pytest.fixture
def keys_used(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[jax.Array]]:
    """Return a list that records the key of each dropout that the model applies, in order."""
    used: list[jax.Array] = []

    def record(
        x: jax.Array, rate: float, key: jax.Array | None, ops: Ops, *mask: KeepMask
    ) -> jax.Array:
        assert key is not None
        used.append(jax.random.key_data(key))
        return dropout(x, rate, key, ops, *mask)

    for module in (softmax_attention, embeddings, dropout_add_norm, transformer_layer):
        monkeypatch.setattr(module, "dropout", record)
    yield used


def test_every_dropout_has_its_own_key(keys_used: list[jax.Array]) -> None:
    config = variant("tiny", vocab_size=8, num_layers=3)
    # Plain operations are traced together with the model, so that all keys can be returned.
    compute = ComputeConfig(dtype="float32", attention="xla", ops="plain")
    task = Pretraining(config, compute)
    params = {name: jnp.zeros(s.shape, s.dtype) for name, s in task.definition.shapes.items()}

    @jax.jit
    def keys() -> jax.Array:
        model = task.definition.module(params)
        model.encoder(jnp.zeros((1, 4), "int32"), dropout_key=key_of(0))
        return jnp.stack(keys_used)

    all_keys = np.asarray(keys())
    # There is one key for the embeddings and, in each of three layers, one key each for the
    # attention probabilities, the attention output and the FFN output.
    assert len(all_keys) == 1 + 3 * 3
    assert len(np.unique(all_keys, axis=0)) == len(all_keys)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_output_of_attention_can_have_its_own_rate(
    norm: NormPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apply dropout only to the output of attention, as in Warner et al. 2024, table 3."""
    rates: list[float] = []

    def record(
        x: jax.Array, rate: float, key: jax.Array | None, ops: Ops, *mask: KeepMask
    ) -> jax.Array:
        rates.append(rate)
        return x

    for module in (softmax_attention, embeddings, dropout_add_norm, transformer_layer):
        monkeypatch.setattr(module, "dropout", record)
    changes = dict(hidden_dropout=0.25, attention_dropout=0.5, attention_output_dropout=0.125)
    config = variant("tiny", vocab_size=8, num_layers=2, norm=norm, **changes)
    task = Pretraining(config, ComputeConfig(dtype="float32", attention="xla"))

    def encode(params: Parameters) -> EncoderOutput:
        model = task.definition.module(params)
        return model.encoder(jnp.zeros((1, 4), "int32"), dropout_key=key_of(0))

    jax.eval_shape(encode, task.definition.shapes)
    assert rates == [0.25, *([0.5, 0.125, 0.25] * 2)]
    assert replace(config, attention_output_dropout=None).attention_output_rate == 0.25
    assert replace(config, attention_output_dropout=0.0).attention_output_rate == 0.0
