"""Generate models, work directories and manifests: invalid ones, and unusual but valid ones."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from assets import Assets
from cases import Case, Expectation, Job, Steps, command_case, problems_of
from damage import (
    changed,
    not_a_file_of_its_kind,
    not_json,
    same_json,
    truncations,
    without,
)
from parameters import digest
from tensor_files import header_cases, tensor_cases

# Keys in config.json that hold the model's sizes, which must be positive integers.
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
_RATES = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "layer_norm_eps",
    "initializer_range",
)


def imported(here: Path) -> tuple[str, ...]:
    """Return the arguments of a command that imports the model in a folder."""
    return ("import", str(here / "given"), "--output", str(here / "model"))


def _import_case(
    assets: Assets,
    source: str,
    name: str,
    damage: Callable[[Path], None],
    expectation: Expectation,
    seconds: float = 90,
) -> Case:
    """Return a case that imports a damaged model; if that succeeds, no parameter may change."""

    def steps(here: Path) -> Steps:
        shutil.copytree(assets / source, here / "given")
        # Remove the checksums, which would reveal any damage.
        (here / "given/SHA256SUMS").unlink(missing_ok=True)
        damage(here / "given")
        ended = yield Job(imported(here), seconds=seconds)
        problems = problems_of(ended, expectation, "given")
        if ended.code and (here / "model").exists():
            problems.append("leftover: model")
        if ended.code == 0 and expectation == "accepted":
            result = yield Job(call=lambda: [digest(here / "model"), digest(assets / "run")])
            if len(set(result.value)) > 1:
                problems.append("wrong result: parameters differ from the exported model's")
        return problems

    return Case("models", name, steps, expectation)


def _write(name: str, content: bytes, directory: Path) -> None:
    (directory / name).write_bytes(content)


def model_cases(assets: Assets, seed: int) -> Iterator[Case]:
    """Yield cases that import damaged models, or use damaged work directories and manifests."""
    rng = random.Random(f"{seed}/models")
    number = 0
    for source, file, name, content, expectation in _files(assets, rng):
        number += 1
        damage = partial(_write, file, content)
        yield _import_case(assets, source, f"{number:03d} {file} {name}", damage, expectation)
    for name, content, expectation in _model_json(assets, rng):
        number += 1
        yield _work_dir_case(assets, f"{number:03d} model.json {name}", content, expectation)
    for name, content, expectation in _manifest(assets, rng):
        number += 1
        yield _corpus_case(assets, f"{number:03d} manifest.json {name}", content, expectation)


def _files(
    assets: Assets, rng: random.Random
) -> Iterator[tuple[str, str, str, bytes, Expectation]]:
    """Yield tuples (source, file, name of the change, new content, expectation)."""
    for name, content, expectation in _config_json(assets, rng):
        yield "huggingface", "config.json", name, content, expectation
    tensors = (assets / "huggingface/model.safetensors").read_bytes()
    for name, content, expectation in [*header_cases(tensors, rng), *tensor_cases(tensors, rng)]:
        yield "huggingface", "model.safetensors", name, content, expectation
    data = (assets / "bin/pytorch_model.bin").read_bytes()
    for name, content in [*not_a_file_of_its_kind(rng), *truncations(data, rng, 8), *_bins(assets)]:
        yield "bin", "pytorch_model.bin", name, content, "refused"
    for file in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        data = (assets / "tensorflow" / file).read_bytes()
        for name, content in [*not_a_file_of_its_kind(rng), *truncations(data, rng, 2)]:
            yield "tensorflow", file, name, content, "refused"


def _config_json(assets: Assets, rng: random.Random) -> Iterator[tuple[str, bytes, Expectation]]:
    config = json.loads((assets / "huggingface/config.json").read_text())
    for name, content in same_json(config):
        yield name, content, "accepted"
    yield (
        "with other keys",
        json.dumps(config | {"torch_dtype": "x", "q": [1]}).encode(),
        "accepted",
    )
    for name, content in not_json(json.dumps(config).encode(), rng):
        yield name, content, "refused"
    for key in _SIZES:
        for value in (-1, 0, 1.5, "16", None, True, [], 10**9, 10**30, config[key] + 1):
            yield f"{key} {value!r}", json.dumps(changed(config, (key,), value)).encode(), "refused"
    for key in _RATES:
        for value in (-1, "0.1", None, True, [], float("nan"), float("inf"), 10**400):
            if value is None:
                continue  # A null value is valid, because transformers has a default for the key.
            yield f"{key} {str(value)[:9]}", _dumped(changed(config, (key,), value)), "refused"
    for key, value in (
        ("model_type", "gpt2"),
        ("model_type", 3),
        ("model_type", []),
        ("hidden_act", "swish"),
        ("hidden_act", 7),
        ("hidden_act", []),
        ("hidden_act", {}),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("sentence_pairs", "abc"),
        ("sentence_pairs", []),
    ):
        yield f"{key} {value!r}", _dumped(changed(config, (key,), value)), "refused"
    for key in ("model_type", "vocab_size", "hidden_size", "num_hidden_layers"):
        if key != "model_type":
            yield f"without {key}", _dumped(without(config, (key,))), "refused"


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def _bins(assets: Assets) -> Iterator[tuple[str, bytes]]:
    """Yield PyTorch pickles that do not contain a state_dict for the model."""
    import io

    import torch

    tensors = torch.load(assets / "bin/pytorch_model.bin", weights_only=True)
    names = sorted(tensors)
    contents: dict[str, Any] = {
        "a list": [1, 2],
        "a tensor": torch.zeros(3),
        "an empty dict": {},
        "numbers": {"a": 1},
        "names that are numbers": dict(enumerate(tensors.values())),
        "nested": {"state_dict": tensors},
        "one lacking": {name: tensors[name] for name in names[1:]},
        "one more": tensors | {"bert.extra.weight": torch.zeros(2, 2)},
        "integers": tensors | {names[0]: torch.zeros(tensors[names[0]].shape, dtype=torch.int64)},
        "booleans": tensors | {names[0]: torch.zeros(tensors[names[0]].shape, dtype=torch.bool)},
        "complex": tensors | {names[0]: tensors[names[0]].to(torch.complex64)},
        "NaN": tensors | {names[0]: tensors[names[0]] * float("nan")},
        "another shape": tensors | {names[0]: torch.zeros(3, 3, 3)},
        "sparse": tensors | {names[0]: tensors[names[0]].reshape(-1).to_sparse()},
        "on no device": tensors | {names[0]: tensors[names[0]].to("meta")},
    }
    for name, content in contents.items():
        buffer = io.BytesIO()
        torch.save(content, buffer)
        yield name, buffer.getvalue()
    yield "code", b"\x80\x02cos\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03."


def _work_dir_case(assets: Assets, name: str, content: bytes, expectation: Expectation) -> Case:
    def write(here: Path) -> None:
        shutil.copytree(assets / "tuned-table", here / "given")
        (here / "given/model.json").write_bytes(content)
        (here / "lines.txt").write_text("the boat\n")

    return command_case(
        "models",
        name,
        lambda here: ("predict", str(here / "given"), "--input", str(here / "lines.txt")),
        expectation=expectation,
        write=write,
        mentions="given",
    )


def _model_json(assets: Assets, rng: random.Random) -> Iterator[tuple[str, bytes, Expectation]]:
    content = json.loads((assets / "tuned-table/model.json").read_text())
    for name, data in same_json(content):
        yield name, data, "accepted"
    for name, data in not_json(json.dumps(content).encode(), rng):
        yield name, data, "refused"
    for key in ("model", "origin"):
        yield f"without {key}", _dumped(without(content, (key,))), "refused"
    encoder = content["model"]["encoder"]
    for key, value in encoder.items():
        if isinstance(value, bool) or value is None:
            continue
        place = ("model", "encoder", key)
        for odd in (-1, None, [], "abc"):
            yield f"{key} {odd!r}", _dumped(changed(content, place, odd)), "refused"
    for key in ("vocab_size", "hidden_dim", "num_layers", "ffn_dim", "max_positions"):
        for odd in (encoder[key] + 1, 10**12, 10**30):
            place = ("model", "encoder", key)
            yield f"{key} {odd}", _dumped(changed(content, place, odd)), "refused"
    for place, odd in (
        (("model", "head"), "nothing"),
        (("model", "head"), 3),
        (("model", "labels"), "bad"),
        (("model", "labels"), []),
        (("model", "labels"), ["a", "b", "c"]),
        (("model", "labels"), [1, 2]),
        (("model", "labels"), ["a", "a"]),
        (("model", "problem"), "x"),
        (("model", "encoder", "unknown"), 1),
        (("best_step",), "x"),
        (("best_step",), 10**9),
        (("best_step",), -1),
        (("best_step",), [1]),
        (("tokenizer",), "0" * 64),
        (("tokenizer",), 7),
        (("usage",), 7),
        (("usage",), {"x": 1}),
        (("usage", "max_length"), -1),
        (("usage", "max_length"), "x"),
    ):
        yield f"{place[-1]} {odd!r}", _dumped(changed(content, place, odd)), "refused"


def _corpus_case(assets: Assets, name: str, content: bytes, expectation: Expectation) -> Case:
    def write(here: Path) -> None:
        shutil.copytree(assets / "corpus", here / "given")
        (here / "given/manifest.json").write_bytes(content)

    options = ("--batch-size", "8", "--seconds", "0.1", "--workers", "0")
    return command_case(
        "models",
        name,
        lambda here: ("bench", "data", "--corpus", str(here / "given"), *options),
        expectation=expectation,
        write=write,
        mentions="given",
    )


def _manifest(assets: Assets, rng: random.Random) -> Iterator[tuple[str, bytes, Expectation]]:
    content = json.loads((assets / "corpus/manifest.json").read_text())
    for name, data in same_json(content):
        yield name, data, "accepted"
    for name, data in not_json(json.dumps(content).encode(), rng):
        yield name, data, "refused"
    for key in content:
        if key in ("options", "sources", "empty_files_skipped", "heldout_repeats") or (
            key == "tokenizer_files"  # Only commands that read text use this key.
        ):
            continue
        yield f"without {key}", _dumped(without(content, (key,))), "refused"
        value = rng.choice((None, -1, "abc", [], {}, 10**30))
        yield f"{key} {value!r}", _dumped(changed(content, (key,), value)), "refused"
    for key in ("name", "num_records", "num_bytes", "sha256"):
        for value in (None, -1, "../x", 10**30, []):
            place = ("train", "shards", 0, key)
            yield f"shard {key} {value!r}", _dumped(changed(content, place, value)), "refused"
