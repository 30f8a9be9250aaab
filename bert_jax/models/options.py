"""Define types that list the allowed values of options in `EncoderConfig` and `ComputeConfig`."""

from __future__ import annotations

from typing import Literal

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh", "quick_gelu"]
PositionKind = Literal["learned", "sinusoidal", "rotary"]
NormPlacement = Literal["post", "pre"]
NormKind = Literal["layer", "rms"]
Sharing = Literal["none", "all", "attention", "ffn"]
PoolerActivation = Literal["tanh", "relu", "gelu"]
ClassifierTransform = Literal["pooler", "prediction"]
Pooling = Literal["cls", "mean"]
DTypeName = Literal["auto", "float32", "bfloat16"]
AttentionBackend = Literal["auto", "xla", "cudnn", "splash"]
Remat = Literal["none", "dots", "layer"]
Ops = Literal["fast", "plain"]
