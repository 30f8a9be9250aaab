"""Test which URLs are accepted, and how patterns match objects."""

import glob
import os
from pathlib import Path

import pytest

from bert_jax.storage.objects import write_bytes
from bert_jax.storage.patterns import matching_objects
from bert_jax.storage.urls import ObjectUrl, parse_location, parse_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("gs://bucket", ObjectUrl("gs", "bucket")),
        ("s3://a-b.c/x/y.txt", ObjectUrl("s3", "a-b.c", "x/y.txt")),
        ("gs://bucket/x/", ObjectUrl("gs", "bucket", "x")),
        (Path("gs://bucket/x/y"), ObjectUrl("gs", "bucket", "x/y")),
        (ObjectUrl("gs", "bucket", "x"), ObjectUrl("gs", "bucket", "x")),
    ],
)
def test_urls_are_parsed(text: str | Path, url: ObjectUrl) -> None:
    assert parse_url(text) == url
    assert parse_url(str(url)) == url == parse_url(Path(url))


def test_local_paths_are_not_urls(tmp_path: Path) -> None:
    for path in (tmp_path, "gs:x", "gs", "tfds:glue/sst2", "notes:/x", ""):
        assert parse_url(path) is None
        assert parse_location(path) == Path(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gs://", "key=gs://: '' is not the name of a bucket"),
        ("gs:///x", "key=gs:///x: contains no bucket"),
        ("s3://UPPER/x", "'UPPER' is not the name of a bucket"),
        ("gs://bucket/a//b", "contains '//'"),
        ("gs://bucket/../b", "'/../'"),
        ("gs://bucket/" + "x" * 1025, "longer than 1024 bytes"),
        ("az://container/x", "key=az://container/x: az:// is not supported"),
        ("https://example.org/x", "Download the file and specify its local path"),
    ],
)
def test_other_urls_are_rejected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_url(text, "key")


def test_parts_of_urls() -> None:
    url = ObjectUrl("s3", "bucket") / "a" / "b/c.txt"
    assert (str(url), url.name) == ("s3://bucket/a/b/c.txt", "c.txt")
    assert str(url.parent.parent.parent) == "s3://bucket" == str(url.parent.parent.parent.parent)
    assert url.parent.parent.relative(url) == "b/c.txt"


FILES = ("a.txt", "b.txt", ".h.txt", "x/a.txt", "x/y/a.txt", "x/.y/a.txt", "x/y/b.md", "[.txt")
PATTERNS = ("*.txt", "**/*.txt", "x/**", "x/*/a.txt", "**", "?.txt", "[ab].txt", "x/.*/*", "[[]*")


def test_patterns_match_like_glob(bucket: ObjectUrl, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in FILES:
        write_bytes(bucket / "root" / name, name)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for pattern in PATTERNS:
        found = sorted(glob.glob(f"{root}/{pattern}", recursive=True))
        expected = [os.path.relpath(name, root) for name in found if not os.path.isdir(name)]
        matched = matching_objects(bucket / "root" / pattern)
        names = [(bucket / "root").relative(info.url) for info in matched]
        assert names == sorted(expected), pattern
