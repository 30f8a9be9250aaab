"""Write the shards in tests/text/mds with the library that defines the format.

The library requires older versions of NumPy and transformers than this package, so it needs a
separate environment::

    pip install mosaicml-streaming==0.13.0
    python tests/text/write_mds.py tests/text/mds

The tests expect to read `TEXTS`.
"""

import json
import shutil
import sys
from pathlib import Path

TEXTS = [
    "The first sample. It has two sentences.",
    "Ein Satz mit Umlauten: äöü, und mit 漢字.",
    "",
    "A text\nwith two lines and a tab\tinside.",
    *(
        f"Sample {number} is about {'rivers ' * (number % 7 + 1)}and the sea."
        for number in range(4, 24)
    ),
]
COMPRESSIONS = ("none", "br", "bz2", "gz", "snappy", "zstd")


def main(directory: Path) -> None:
    """Write a dataset with each compression, and one whose text is encoded as JSON."""
    from streaming import MDSWriter
    from streaming.base.util import merge_index

    columns = {"id": "int", "score": "float32", "tags": "json", "text": "str", "url": "str"}
    for compression in COMPRESSIONS:
        out = directory / compression
        shutil.rmtree(out, ignore_errors=True)
        options = {} if compression == "none" else {"compression": compression}
        with MDSWriter(
            out=str(out), columns=columns, size_limit=1500, hashes=["sha1"], **options
        ) as writer:
            for number, text in enumerate(TEXTS):
                writer.write(
                    {
                        "id": number,
                        "score": number / 7,
                        "tags": ["a", {"b": number}],
                        "text": text,
                        "url": f"https://example.org/{number}",
                    }
                )
    out = directory / "json"
    shutil.rmtree(out, ignore_errors=True)
    with MDSWriter(out=str(out), columns={"text": "json"}) as writer:
        for text in [*TEXTS[:3], None]:
            writer.write({"text": text})
    merged = directory / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    for part, texts in (("0", TEXTS[:12]), ("1", TEXTS[12:])):
        with MDSWriter(out=str(merged / part), columns={"text": "str"}) as writer:
            for text in texts:
                writer.write({"text": text})
    merge_index(str(merged), keep_local=True)
    index = json.loads((merged / "index.json").read_text())
    assert len(index["shards"]) == 2


if __name__ == "__main__":
    main(Path(sys.argv[1]))
