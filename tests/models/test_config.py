"""Test the errors for invalid configs, the published variants, and how "auto" is resolved."""

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from flax import nnx

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.layers import compute_dtype
from bert_jax.models.parameters import define
from bert_jax.models.replaced_token import generator_compute, generator_of
from bert_jax.models.variants import VARIANTS, variant
from bert_jax.tasks.pretraining import Pretraining


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_size": 0}, "vocab_size=0: must be at least 1"),
        ({"num_layers": 0}, "num_layers=0: must be at least 1"),
        ({"num_heads": 0}, "num_heads=0: must be at least 1"),
        ({"ffn_dim": -4}, "ffn_dim=-4: must be at least 1"),
        ({"max_positions": 0}, "max_positions=0: must be >= 1"),
        ({"num_segments": -1}, "num_segments=-1: must be >= 0"),
        ({"hidden_dim": 100}, "hidden_dim=100: not divisible by num_heads=12"),
        ({"hidden_dropout": 1.0}, "hidden_dropout=1.0: a dropout rate must be in [0, 1)"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1: a dropout rate must be in [0, 1)"),
        ({"attention_output_dropout": 1.5}, "attention_output_dropout=1.5: a dropout rate must"),
        ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon=0.0: must be positive and finite"),
        ({"layer_norm_epsilon": float("inf")}, "layer_norm_epsilon=inf: must be positive"),
        ({"initializer_range": 0.0}, "initializer_range=0.0: must be positive"),
        ({"activation": "elu"}, "activation='elu': expected one of 'gelu', 'gelu_tanh', 'relu'"),
        (
            {"positions": "alibi"},
            "positions='alibi': expected one of 'learned', 'sinusoidal', 'rot",
        ),
        ({"norm": "rms"}, "norm='rms': expected one of 'post', 'pre'"),
        (
            {"hidden_dim": 9, "num_heads": 3, "positions": "sinusoidal"},
            "hidden_dim=9: sinusoidal positions need an even hidden_dim",
        ),
        ({"embedding_dim": 0}, "embedding_dim=0: must be at least 1, or None for hidden_dim"),
        (
            {"embedding_dim": 3, "positions": "sinusoidal"},
            "embedding_dim=3: sinusoidal positions need an even embedding_dim",
        ),
        ({"position_offset": -1}, "position_offset=-1: must be >= 0, and 0 unless"),
        (
            {"position_offset": 2, "positions": "sinusoidal"},
            "position_offset=2: must be >= 0, and 0 unless positions='learned'",
        ),
        ({"sharing": "most"}, "sharing='most': expected one of 'none', 'all', 'attention', 'ffn'"),
        ({"num_groups": 2}, "num_groups=2: has no effect if sharing='none'"),
        (
            {"sharing": "all", "num_groups": 5},
            "num_groups=5: does not divide num_layers=12, but all groups must be the same size. "
            "Use one of 1, 2, 3, 4, 6, 12",
        ),
        ({"sharing": "ffn", "num_groups": 24}, "num_groups=24: does not divide num_layers=12"),
        ({"positions": "rotary", "num_heads": 256}, "num_heads=256: rotary positions rotate pairs"),
        ({"rotary_theta": 1e5}, "rotary_theta=100000.0: has no effect with positions='learned'"),
        ({"rotary_theta": 0.0}, "rotary_theta=0.0: must be positive and finite"),
        ({"local_rotary_theta": 1.0}, "local_rotary_theta=1.0: has no effect with positions='lear"),
        (
            {"positions": "rotary", "local_rotary_theta": 1e4},
            "local_rotary_theta=10000.0: has no effect without layers with local attention",
        ),
        (
            {"positions": "rotary", "local_rotary_theta": -1.0, "attention_window": 3},
            "local_rotary_theta=-1.0: must be positive and finite",
        ),
        ({"global_every": 3}, "global_every=3: has no effect without local attention"),
        ({"global_every": 0}, "global_every=0: must be at least 1"),
        (
            {"attention_window": 128, "global_every": 3},
            "attention_window=128: must be odd and positive, because a token sees equally many "
            "tokens on both sides. Use 129",
        ),
        ({"attention_window": -2, "global_every": 3}, "must be odd and positive"),
        ({"attention_window": 5}, "attention_window=5: has no effect if every layer has global"),
        ({"norm_kind": "batch"}, "norm_kind='batch': expected one of 'layer', 'rms'"),
        ({"norm_kind": "rms"}, "norm_bias=True: RMSNorm has no bias"),
        ({"first_norm": False}, "first_norm=False: only supported by norm='pre', not 'post'"),
        (
            {"first_norm": False, "norm": "pre", "sharing": "all"},
            "first_norm=False: the first layer shares its norm with others (sharing='all')",
        ),
        (
            {"head_transform": False, "embedding_dim": 128},
            "head_transform=False: with embedding_dim=128, the masked-LM head needs its transform",
        ),
        ({"classifier_transform": "none"}, "classifier_transform='none': expected one of 'pooler'"),
        ({"pooling": "max"}, "pooling='max': expected one of 'cls', 'mean'"),
        ({"pooler_activation": "silu"}, "pooler_activation='silu': expected one of 'tanh', 'relu'"),
    ],
)
def test_invalid_encoder_configs_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        EncoderConfig(**values)


def test_defaults_are_bert_base() -> None:
    assert EncoderConfig() == variant("base")


def test_variants_have_the_published_shapes() -> None:
    # The number of layers, the hidden dim, the number of heads and the FFN dim are from Turc et al.
    # 2019, table 1, and Devlin et al. 2019, section 3.
    published = {
        "tiny": (2, 128, 2, 512),
        "mini": (4, 256, 4, 1024),
        "small": (4, 512, 8, 2048),
        "medium": (8, 512, 8, 2048),
        "base": (12, 768, 12, 3072),
        "large": (24, 1024, 16, 4096),
        # These are from Liu et al. 2019, table 9; Lan et al. 2020, table 1; and Sanh et al. 2019,
        # section 3.
        "roberta-base": (12, 768, 12, 3072),
        "roberta-large": (24, 1024, 16, 4096),
        "albert-base-v1": (12, 768, 12, 3072),
        "albert-large-v1": (24, 1024, 16, 4096),
        "albert-xlarge-v1": (24, 2048, 16, 8192),
        "albert-xxlarge-v1": (12, 4096, 64, 16384),
        "albert-base-v2": (12, 768, 12, 3072),
        "albert-large-v2": (24, 1024, 16, 4096),
        "albert-xlarge-v2": (24, 2048, 16, 8192),
        "albert-xxlarge-v2": (12, 4096, 64, 16384),
        "distilbert": (6, 768, 12, 3072),
        # These are from Clark et al. 2020, table 6. The small generator is as large as its
        # discriminator.
        "electra-small": (12, 256, 4, 1024),
        "electra-base": (12, 768, 12, 3072),
        "electra-large": (24, 1024, 16, 4096),
        "electra-small-generator": (12, 256, 4, 1024),
        "electra-base-generator": (12, 256, 4, 1024),
        "electra-large-generator": (24, 256, 4, 1024),
        # These are from Warner et al. 2024, table 4, and Le Breton et al. 2025, table 1.
        "modernbert-base": (22, 768, 12, 1152),
        "modernbert-large": (28, 1024, 16, 2624),
        "neobert": (28, 768, 12, 2048),
    }
    assert published.keys() == VARIANTS.keys()
    for name, shape in published.items():
        config = variant(name)
        assert shape == (config.num_layers, config.hidden_dim, config.num_heads, config.ffn_dim)


def test_a_variant_accepts_changes_and_an_unknown_name_is_refused() -> None:
    config = variant("tiny", vocab_size=99, num_heads=4)
    assert (config.vocab_size, config.num_heads, config.head_dim) == (99, 4, 32)
    with pytest.raises(ValueError, match="unknown variant 'huge': expected one of tiny, mini"):
        variant("huge")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dtype": "float16"}, "dtype='float16': expected one of 'auto', 'float32', 'bfloat16'"),
        ({"attention": "flash"}, "attention='flash': expected one of 'auto', 'xla', 'cudnn'"),
        ({"remat": "full"}, "remat='full': expected one of 'none', 'dots', 'layer'"),
        ({"norms": "cuda"}, "norms='cuda': expected one of 'auto', 'xla', 'triton'"),
        (
            {"norms": "triton", "ops": "plain"},
            "compute.ops='plain': not supported by compute.norms='triton'",
        ),
        ({"products": "fp4"}, "products='fp4': expected one of 'dtype', 'fp8', 'fp8_emulated'"),
        (
            {"products": "fp8", "dtype": "float32"},
            "compute.products='fp8': needs compute.dtype='bfloat16', not 'float32'",
        ),
        (
            {"products": "fp8_emulated", "ops": "plain"},
            "compute.products='fp8_emulated': not supported by compute.ops='plain'",
        ),
    ],
)
def test_unknown_compute_options_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ComputeConfig(**values)


def device(name: str) -> Any:
    """Return a fake JAX device, given its platform and, for a GPU, its compute capability."""
    platform, _, capability = name.partition(" ")
    attributes = {"compute_capability": capability} if capability else {}
    return SimpleNamespace(platform=platform, **attributes)


@pytest.mark.parametrize(
    ("name", "options", "attention_dropout", "dtype", "attention"),
    [
        ("cpu", {}, 0.0, "float32", "xla"),
        ("gpu 9.0", {}, 0.0, "bfloat16", "cudnn"),
        ("gpu 8.0", {}, 0.0, "bfloat16", "cudnn"),
        ("gpu 12.0", {}, 0.0, "bfloat16", "cudnn"),
        ("gpu 9.0", {}, 0.1, "bfloat16", "flash_gpu"),
        ("gpu 9.0", {"ops": "plain"}, 0.1, "bfloat16", "xla"),
        ("gpu 8.6", {"dtype": "float32"}, 0.0, "float32", "xla"),
        ("gpu 8.6", {"attention": "xla"}, 0.0, "bfloat16", "xla"),
        ("gpu 8.9", {"attention": "cudnn"}, 0.0, "bfloat16", "cudnn"),
        ("gpu 7.5", {}, 0.0, "float32", "xla"),  # This GPU is a T4.
        ("gpu 7.0", {"dtype": "bfloat16"}, 0.0, "bfloat16", "xla"),  # This GPU is a V100.
        ("gpu gfx90a", {}, 0.0, "bfloat16", "xla"),  # This is an AMD GPU.
        ("tpu", {}, 0.0, "bfloat16", "flash_tpu"),
        ("tpu", {}, 0.1, "bfloat16", "flash_tpu"),
        ("tpu", {"dtype": "float32"}, 0.1, "float32", "xla"),
        ("cpu", {"dtype": "bfloat16"}, 0.0, "bfloat16", "xla"),
    ],
)
def test_auto_is_resolved_by_device(
    name: str,
    options: dict[str, Any],
    attention_dropout: float,
    dtype: str,
    attention: str,
) -> None:
    config = EncoderConfig(attention_dropout=attention_dropout)
    compute = ComputeConfig(**options, remat="dots", scan_layers=True).resolve(device(name), config)
    assert (compute.dtype, compute.attention) == (dtype, attention)
    assert (compute.remat, compute.scan_layers) == ("dots", True)


@pytest.mark.parametrize(
    ("name", "dtype", "attention_dropout", "message"),
    [
        ("cpu", "auto", 0.0, "runs only on NVIDIA GPUs, not on cpu"),
        ("tpu", "auto", 0.0, "runs only on NVIDIA GPUs, not on tpu"),
        ("gpu gfx90a", "auto", 0.0, "runs only on NVIDIA GPUs, not on another vendor's GPU"),
        (
            "gpu 7.5",
            "bfloat16",
            0.0,
            "with compute capability 8.0 (Ampere) or later; this one has 7",
        ),
        ("gpu 8.6", "float32", 0.0, "needs compute.dtype='bfloat16', not 'float32'"),
        ("gpu 8.6", "auto", 0.1, "cannot apply model.attention_dropout=0.1"),
    ],
)
def test_unsupported_uses_of_cudnn_are_refused(
    name: str, dtype: Any, attention_dropout: float, message: str
) -> None:
    config = EncoderConfig(attention_dropout=attention_dropout)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        ComputeConfig(dtype=dtype, attention="cudnn").resolve(device(name), config)
    assert "compute.attention='xla'" in str(error.value)


@pytest.mark.parametrize(
    ("name", "attention_dropout", "message"),
    [
        ("cpu", 0.0, "compute.attention='splash' runs only on TPUs, not on cpu"),
        ("gpu 9.0", 0.0, "compute.attention='splash' runs only on TPUs, not on gpu"),
        ("tpu", 0.1, "compute.attention='splash' cannot apply model.attention_dropout=0.1"),
    ],
)
def test_unsupported_uses_of_the_kernel_for_tpus_are_refused(
    name: str, attention_dropout: float, message: str
) -> None:
    config, compute = EncoderConfig(attention_dropout=0.0), ComputeConfig(attention="splash")
    assert compute.resolve(device("tpu"), config).attention == "splash"
    config = dataclasses.replace(config, attention_dropout=attention_dropout)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        compute.resolve(device(name), config)
    assert "compute.attention='xla'" in str(error.value)
    with pytest.raises(ValueError, match="compute.ops='plain': not supported by compute.attention"):
        ComputeConfig(attention="splash", ops="plain")


@pytest.mark.parametrize(
    ("name", "hidden_dim", "options", "norms"),
    [
        ("gpu 8.0", 768, {}, "triton"),
        ("gpu 9.0", 1024, {"dtype": "float32"}, "triton"),
        ("gpu 9.0", 768, {"norms": "xla"}, "xla"),
        ("gpu 9.0", 768, {"ops": "plain"}, "xla"),
        ("gpu 9.0", 312, {}, "xla"),
        ("gpu 7.5", 768, {}, "xla"),
        ("gpu gfx90a", 768, {}, "xla"),
        ("tpu", 768, {}, "xla"),
        ("cpu", 768, {}, "xla"),
    ],
)
def test_the_kernels_for_norms_are_used_where_they_work(
    name: str, hidden_dim: int, options: dict[str, Any], norms: str
) -> None:
    config = EncoderConfig(hidden_dim=hidden_dim, num_heads=4)
    assert ComputeConfig(**options).resolve(device(name), config).norms == norms
    if norms == "xla" and not options:
        with pytest.raises(ValueError, match=r"compute.norms='triton' needs .*. Set") as error:
            ComputeConfig(norms="triton").resolve(device(name), config)
        assert "compute.norms='xla'" in str(error.value)


@pytest.mark.parametrize(
    ("backend", "able", "unable", "needed"),
    [
        ("flash_gpu", "gpu 8.0", "gpu 7.5", "NVIDIA GPUs since Ampere, not on this gpu"),
        ("flash_gpu", "gpu 9.0", "cpu", "NVIDIA GPUs since Ampere, not on this cpu"),
        ("flash_tpu", "tpu", "gpu 9.0", "TPUs, not on this gpu"),
    ],
)
def test_fused_kernels_are_refused_on_other_devices(
    backend: Any, able: str, unable: str, needed: str
) -> None:
    config, compute = EncoderConfig(), ComputeConfig(attention=backend)
    assert compute.resolve(device(able), config).attention == backend
    with pytest.raises(ValueError, match=re.escape(f"={backend!r} runs only on {needed}. Set")):
        compute.resolve(device(unable), config)
    with pytest.raises(ValueError, match="compute.ops='plain': not supported by compute.attention"):
        ComputeConfig(attention=backend, ops="plain")


def test_the_choice_of_auto_depends_on_the_longest_row() -> None:
    config = EncoderConfig(max_positions=8192)
    without_dropout = dataclasses.replace(config, attention_dropout=0.0)
    for encoder, longest, expected in (
        (config, 512, "flash_tpu"),
        (config, 8192, "xla"),
        (config, None, "xla"),
        (without_dropout, 8192, "splash"),
    ):
        assert ComputeConfig().resolve(device("tpu"), encoder, longest).attention == expected
    choice = ComputeConfig().attention_choice(device("tpu"), config)
    assert choice.reason.startswith("compute.attention='flash_tpu' ")
    assert choice.reason.endswith(", and 'splash' needs model.attention_dropout=0")
    choice = ComputeConfig().attention_choice(device("gpu 9.0"), config)
    assert choice.reason == "compute.attention='cudnn' needs model.attention_dropout=0"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cpu", "runs only on NVIDIA GPUs, not on cpu. Set compute.products='dtype', or 'fp8_emu"),
        ("tpu", "runs only on NVIDIA GPUs, not on tpu"),
        ("gpu gfx942", "runs only on NVIDIA GPUs, not on another vendor's GPU"),
        ("gpu 8.6", "needs a GPU with compute capability 8.9 (Ada, Hopper) or later; this one has"),
        ("gpu 7.5", "this one has 7.5. Set compute.products='dtype'"),
    ],
)
def test_fp8_is_refused_on_devices_without_it(name: str, message: str) -> None:
    config, compute = EncoderConfig(), ComputeConfig(products="fp8")
    for able in ("gpu 8.9", "gpu 9.0", "gpu 12.0"):
        assert compute.resolve(device(able), config).products == "fp8"
    with pytest.raises(ValueError, match=re.escape(message)):
        compute.resolve(device(name), config)
    emulated = ComputeConfig(products="fp8_emulated", dtype="bfloat16")
    assert emulated.resolve(device(name), config).products == "fp8_emulated"


def test_fp8_is_refused_where_auto_means_float32() -> None:
    with pytest.raises(ValueError, match="needs compute.dtype='bfloat16', not 'float32'"):
        ComputeConfig(products="fp8_emulated").resolve(device("cpu"), EncoderConfig())


@pytest.mark.parametrize(("size", "norms"), [(1 / 3, "triton"), (0.75, "xla")])
def test_a_generator_uses_the_kernels_for_norms_if_they_support_its_size(
    size: float, norms: str
) -> None:
    config = EncoderConfig()
    generator = generator_of(config, size)
    assert generator.hidden_dim == (256 if norms == "triton" else 576)
    compute = ComputeConfig().resolve(device("gpu 9.0"), config)
    assert generator_compute(generator, compute) == dataclasses.replace(compute, norms=norms)


@pytest.mark.parametrize(("hidden_dim", "num_heads"), [(312, 12), (512, 2)])
def test_xla_computes_head_sizes_unsupported_by_cudnn(hidden_dim: int, num_heads: int) -> None:
    config = EncoderConfig(hidden_dim=hidden_dim, num_heads=num_heads, attention_dropout=0.0)
    assert ComputeConfig().resolve(device("gpu 9.0"), config).attention == "xla"
    with pytest.raises(ValueError, match=f"is {hidden_dim // num_heads}. Set"):
        ComputeConfig(attention="cudnn").resolve(device("gpu 9.0"), config)


def test_an_unresolved_dtype_is_refused() -> None:
    with pytest.raises(
        ValueError, match=re.escape("compute.dtype='auto': the dtype depends on the device")
    ):
        compute_dtype(ComputeConfig())


def test_sequences_beyond_the_position_table_are_refused() -> None:
    config = variant("tiny", vocab_size=8, num_layers=1, max_positions=4)
    task = Pretraining(
        config, ComputeConfig().resolve(device("cpu"), config), sentence_pairs="none"
    )
    tokens = jax.ShapeDtypeStruct((1, 5), "int32")

    def encode(params: dict[str, jax.Array], token_ids: jax.Array) -> jax.Array:
        return task.definition.module(params).encoder(token_ids).hidden

    with pytest.raises(
        ValueError, match="model.max_positions=4: too small for sequences of 5 tokens"
    ):
        jax.eval_shape(encode, task.definition.shapes, tokens)


def test_the_compute_config_does_not_change_the_parameters() -> None:
    config = variant("tiny", vocab_size=8)
    plain = ComputeConfig(dtype="float32", attention="xla")
    others = [
        dataclasses.replace(plain, dtype="bfloat16"),
        dataclasses.replace(plain, scan_layers=True),
        dataclasses.replace(plain, remat="layer"),
        dataclasses.replace(plain, dtype="bfloat16", products="fp8_emulated"),
    ]
    expected = Pretraining(config, plain).definition
    for compute in others:
        found = Pretraining(config, compute).definition
        assert found.shapes == expected.shapes
        assert found.logical_axes == expected.logical_axes
        assert {shape.dtype for shape in found.shapes.values()} == {jax.numpy.dtype("float32")}


def test_a_definition_needs_an_axis_for_every_dim() -> None:
    def build(rngs: nnx.Rngs) -> nnx.Linear:
        return nnx.Linear(
            2,
            3,
            kernel_metadata={"logical_axes": ("embed",)},
            bias_metadata={"logical_axes": (None,)},
            rngs=rngs,
        )

    with pytest.raises(AssertionError, match="kernel: logical axes"):
        define(build)
