"""Define the export formats: how each one is written, and which Python code loads the result."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, assert_never, get_args

from bert_jax.finetuning.registry import kind_of_head
from bert_jax.interop.huggingface.families import architecture_of, family_of
from bert_jax.models.model import ClassifierHead, ModelConfig, scores_choices
from bert_jax.models.parameters import Parameters
from bert_jax.models.sentence_embedding import SentenceEmbedding
from bert_jax.tokenizers.tokenizer import Tokenizer

Format = Literal["huggingface", "onnx", "stablehlo", "savedmodel"]
ExportDType = Literal["float32", "float16", "bfloat16"]
FORMATS: tuple[Format, ...] = get_args(Format)
DTYPES: tuple[ExportDType, ...] = get_args(ExportDType)
# The library that loads each format, as named on the Hugging Face Hub; see `library`.
LIBRARIES: dict[Format, str] = {
    "huggingface": "transformers",
    "onnx": "onnx",
    "stablehlo": "jax",
    "savedmodel": "tensorflow",
}
_SENTENCES_USAGE = """
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")
vectors = model.encode(["A delightful film.", "Two hours of my life."])
print(model.similarity(vectors, vectors))
"""


def write(
    form: Format,
    config: ModelConfig,
    parameters: Parameters,
    tokenizer: Tokenizer,
    target: Path,
    *,
    hidden_states: bool,
    dtype: ExportDType,
    sentence_embedding: SentenceEmbedding | None,
) -> None:
    """Write a model to `target`, emptying `parameters` along the way to save memory.

    Args:
      form: the format to write.
      config: the model's config.
      parameters: the model's parameters; each is removed from the dict once it is written.
      tokenizer: the model's tokenizer.
      target: an existing directory to write to.
      hidden_states: whether the exported program also returns the output of every layer; must be
        False for huggingface.
      dtype: the data type to store parameters in; must be float32 except for huggingface.
      sentence_embedding: the model's sentence-embedding settings, which only huggingface stores.

    Raises:
      ValueError: the format does not support the model, or needs a library that is not installed.
    """
    # Import a format's libraries only when that format is written.
    try:
        match form:
            case "huggingface":
                from bert_jax.interop.huggingface.save import write_directory

                assert not hidden_states
                write_directory(config, parameters, tokenizer, target, dtype, sentence_embedding)
                return
            case "onnx":
                from bert_jax.interop.onnx import write_onnx as write_format
            case "stablehlo":
                from bert_jax.interop.stablehlo import write_stablehlo as write_format
            case "savedmodel":
                from bert_jax.interop.savedmodel import write_savedmodel as write_format
            case _:
                assert_never(form)
    except ImportError as error:
        extra = {"savedmodel": "tensorflow"}.get(form, form)
        raise ValueError(f"--format {form}: {error}. Run `pip install -e '.[{extra}]'`") from error
    assert dtype == "float32"
    write_format(config, parameters, tokenizer, target, hidden_states=hidden_states)


def library(form: Format, config: ModelConfig, sentences: bool) -> str:
    """Return the Hugging Face Hub's name for the library that loads an export."""
    whole = form == "huggingface" and sentences and config.head == "encoder"
    return "sentence-transformers" if whole else LIBRARIES[form]


def usage(form: Format, config: ModelConfig, *, mask: str, pairs: bool, sentences: bool) -> str:
    """Return Python code that loads and runs an exported model.

    Args:
      form: the format of the model.
      config: the model's config.
      mask: the tokenizer's mask token.
      pairs: whether the model is a classifier that was trained on text pairs.
      sentences: whether the model defines a sentence embedding.
    """
    text = _text(config, mask, pairs)
    if library(form, config, sentences) == "sentence-transformers":
        return _SENTENCES_USAGE
    match form:
        case "huggingface":
            return _huggingface_usage(config, text)
        case "onnx":
            return _onnx_usage(config, text)
        case "stablehlo":
            return _stablehlo_usage(config, text)
        case "savedmodel":
            return _savedmodel_usage(config, text)
        case _:
            assert_never(form)


def _text(config: ModelConfig, mask: str, pairs: bool) -> str:
    """Return Python source code for example arguments to the tokenizer."""
    if config.head in ("pretraining", "masked_lm"):
        return f'"The {mask} of the sea."'
    if pairs:
        return '"It rains in Rome.", "Rome is wet."'
    kind = kind_of_head(config.head)
    return '"A delightful film."' if kind is None else kind.example


def _huggingface_usage(config: ModelConfig, text: str) -> str:
    architecture = architecture_of(config)
    poolerless = config.head == "encoder" and not config.pooler and family_of(config.encoder).pooler
    bare = ", add_pooling_layer=False" if poolerless else ""
    more = "outputs = model(**inputs)"
    match config.head_kind:
        case ClassifierHead(scored="choices"):
            more = f"inputs = {{name: tensor[None] for name, tensor in inputs.items()}}\n{more}"
        case ClassifierHead(scored="sequence") if config.problem == "single_label":
            more += "\nprint(model.config.id2label[outputs.logits.argmax().item()])"
        case "pretraining" | "masked_lm":
            logits = "prediction_logits" if config.head == "pretraining" else "logits"
            more += f"""
masked = inputs.input_ids == tokenizer.mask_token_id
print(tokenizer.decode(outputs.{logits}[masked].argmax(-1)))"""
        case "replaced_token":
            more += """
replaced = (outputs.logits > 0)[0].tolist()
print(list(zip(tokenizer.convert_ids_to_tokens(inputs.input_ids[0]), replaced)))"""
    return f"""
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained(".")
model = {architecture}.from_pretrained("."{bare})
inputs = tokenizer({text}, return_tensors="pt")
{more}
"""


def _ids(config: ModelConfig, text: str, call: str, names: tuple[str, ...], dtype: str) -> str:
    """Return code that tokenizes a text and calls the model."""
    axis = "[None, None]" if scores_choices(config.head) else "[None]"
    fields = dict(zip(names, ("ids", "type_ids", "attention_mask"), strict=True))
    lines = [f'encoding = tokenizers.Tokenizer.from_file("tokenizer.json").encode({text})']
    lines += [
        f"{name} = np.array(encoding.{field}, np.{dtype}){axis}" for name, field in fields.items()
    ]
    return "\n".join([*lines, call])


def _onnx_usage(config: ModelConfig, text: str) -> str:
    names = ("input_ids", "token_type_ids", "attention_mask")
    feed = "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"
    code = _ids(config, text, f"outputs = session.run(None, {feed})", names, "int64")
    return f"""
import numpy as np
import onnxruntime
import tokenizers

session = onnxruntime.InferenceSession("model.onnx")
{code}
"""


def _stablehlo_usage(config: ModelConfig, text: str) -> str:
    names = ("token_ids", "segment_ids", "attention_mask")
    code = _ids(
        config, text, f"outputs = program.call(weights, {', '.join(names)})", names, "int32"
    )
    return f"""
# pip install jax flatbuffers tokenizers. This artifact can be loaded by JAX versions released up to
# three weeks before the one that wrote it, and by later ones for at least six months (jax.export's
# compatibility guarantees); after that, export the work directory again. Matrix multiplications use
# JAX's default precision, which is lower than float32 on a TPU or GPU.
import jax
import numpy as np
import tokenizers

with open("model.stablehlo", "rb") as file:
    program = jax.export.deserialize(bytearray(file.read()))
weights = {{name: jax.numpy.asarray(array) for name, array in np.load("weights.npz").items()}}
{code}
"""


def _savedmodel_usage(config: ModelConfig, text: str) -> str:
    names = ("token_ids", "segment_ids", "attention_mask")
    feed = ", ".join(f"{name}=tensorflow.constant({name})" for name in names)
    code = _ids(config, text, f"outputs = serve({feed})", names, "int32")
    return f"""
import numpy as np
import tensorflow
import tokenizers

serve = tensorflow.saved_model.load(".").signatures["serving_default"]
{code}
"""
