import importlib.util
import subprocess
import sys
import textwrap

import pytest
import tensorflow_datasets as tfds

from bert_jax.text.documents import SourceCounts, SourceOptions
from bert_jax.text.sources import read_documents, total_bytes
from bert_jax.text.tfds import TfdsName, parse_tfds, resolved_tfds

# TFDS looks for a builder's metadata next to its module, which must be in a package.
BUILDER = """
import numpy as np
import tensorflow_datasets as tfds

SPLITS = {"train": range(300), "test": range(300, 310)}


class TinyText(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="plain", description="numbered sentences")]

    def _info(self):
        features = {"text": tfds.features.Text(), "number": tfds.features.Scalar(np.int64)}
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, download_manager):
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split):
        for i in SPLITS[split]:
            text = b"bad \\xff" if i == 305 else f"Sentence é number {i}."
            yield i, {"text": text, "number": i}
"""


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    package = tmp_path_factory.mktemp("builders") / "tiny_builders"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tiny_text.py").write_text(BUILDER)
    directory = tmp_path_factory.mktemp("tfds")
    # Other tests in this process may already have imported TensorFlow.
    before = "tensorflow" in sys.modules
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package.parent)
        module = importlib.import_module("tiny_builders.tiny_text")
        builder = module.TinyText(data_dir=directory, config="plain", file_format="array_record")
        builder.download_and_prepare()
    assert ("tensorflow" in sys.modules) == before
    return str(directory)


def read(name, **options):
    counts = SourceCounts()
    return list(read_documents([name], SourceOptions(**options), counts)), counts


def test_the_train_split_is_read_completely(data_dir):
    name = "tfds:tiny_text/plain"
    documents, counts = read(name, tfds_data_dir=data_dir)
    assert {document.text for document in documents} == {
        f"Sentence é number {i}." for i in range(300)
    }
    assert documents[7].source == f"{name}[7]"
    again = read(name + ":1.0.0:train", tfds_data_dir=data_dir)[0]
    assert [document.text for document in again] == [document.text for document in documents]
    size = total_bytes([name], SourceOptions(tfds_data_dir=data_dir))
    assert counts.bytes_read == size > 300 * len("Sentence é number 100.")


def test_a_part_of_a_split_is_read_and_bad_rows_are_counted(data_dir):
    documents = read("tfds:tiny_text/plain:train[:10%]", tfds_data_dir=data_dir)[0]
    assert len(documents) == 30
    with pytest.raises(ValueError, match=r"tiny_text/plain:test\[\d\]: not UTF-8 at byte 4"):
        read("tfds:tiny_text/plain:test", tfds_data_dir=data_dir)
    documents, counts = read(
        "tfds:tiny_text/plain:test", tfds_data_dir=data_dir, on_bad_line="skip"
    )
    assert (len(documents), counts.bad_lines) == (9, 1)


def test_errors_of_tfds_are_reported_on_one_line(data_dir):
    for name, field, message in [
        ("tfds:tiny_text/plain", "body", "no feature 'body'; the features are"),
        ("tfds:tiny_text/plain", "number", "has the type int. Expected text"),
        (
            "tfds:tiny_text/plain:nosuch",
            "text",
            "cannot read .*plain from .*Unknown split 'nosuch'",
        ),
        ("tfds:lm1b/nosuch", "text", "cannot find lm1b/nosuch: .*nosuch"),
        ("tfds:no_such_dataset", "text", "cannot find .*no_such_dataset not found"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            read(name, text_field=field, tfds_data_dir=data_dir, on_bad_line="skip")
        assert "\n" not in str(caught.value)


def test_a_name_is_resolved_to_its_full_form(data_dir):
    full = "tfds:tiny_text/plain:1.0.0:train"
    assert resolved_tfds("tfds:tiny_text", data_dir) == full  # This is the default config.
    assert resolved_tfds("tfds:tiny_text/plain:1.0.0", data_dir) == full
    assert read(full, tfds_data_dir=data_dir)[0][0].text.startswith("Sentence")


@pytest.mark.parametrize("name", ["tfds:wikipedia", "tfds:wikipedia/20230601.en"])
def test_wikipedia_is_found_but_needs_beam(name, tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    without_beam = lambda name: None if name == "apache_beam" else find_spec(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without_beam)
    message = (
        r"no dataset in .*/wikipedia/20230601\.en/1\.0\.0, .*Apache Beam, which is not installed.*"
        r"datasets\[wikipedia\].*`tfds build wikipedia/20230601\.en:1\.0\.0 --file_format=array"
    )
    with pytest.raises(ValueError, match=message):
        read(name, tfds_data_dir=str(tmp_path))


def test_a_failed_download_names_the_dataset_and_the_directory(tmp_path, monkeypatch):
    def refuse(self, *arguments, **options):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", refuse)
    message = (
        "found no dataset in .*lm1b.* and cannot download and prepare lm1b: .*no route to host"
    )
    with pytest.raises(ValueError, match=message):
        read("tfds:lm1b", tfds_data_dir=str(tmp_path))


def test_tfds_prepares_a_random_access_format(tmp_path, monkeypatch):
    formats = []

    def record_format(self, *arguments, **options):
        formats.append(self.info.file_format)
        raise ConnectionError

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", record_format)
    with pytest.raises(ValueError, match="cannot download"):
        read("tfds:lm1b", tfds_data_dir=str(tmp_path))
    assert [file_format.value for file_format in formats] == ["array_record"]


def test_tfds_data_dir_is_read_from_the_environment(data_dir):
    # TFDS reads TFDS_DATA_DIR when it is imported. Reading data does not need the builder's code.
    program = textwrap.dedent("""
        import sys
        from bert_jax.text.documents import SourceCounts, SourceOptions
        from bert_jax.text.sources import read_documents
        documents = read_documents(["tfds:tiny_text/plain"], SourceOptions(), SourceCounts())
        print(sum(1 for _ in documents), "tensorflow" in sys.modules, "jax" in sys.modules)
    """)
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={"TFDS_DATA_DIR": data_dir, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["300", "False", "False"]


def test_names_are_parsed():
    assert parse_tfds("tfds:wikipedia") == TfdsName("wikipedia", "train")
    assert parse_tfds("tfds:wikipedia/20230601.en") == TfdsName("wikipedia/20230601.en", "train")
    assert parse_tfds("tfds:wikipedia/20230601.en:1.0.0:train[:10%]") == TfdsName(
        "wikipedia/20230601.en:1.0.0", "train[:10%]"
    )
    assert parse_tfds("tfds:c4/en:train[:1%]+validation") == TfdsName(
        "c4/en", "train[:1%]+validation"
    )
    for name in ("tfds:", "tfds:a b", "tfds:a:b:c"):
        with pytest.raises(ValueError, match="not a valid name"):
            parse_tfds(name)
