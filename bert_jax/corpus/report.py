"""Format the lines that commands print about corpora, tokenizers and their preparation."""

from __future__ import annotations

from bert_jax.corpus.benchmark import PreparationSpeed
from bert_jax.corpus.inputs import SPLIT_KEY
from bert_jax.corpus.manifest import Manifest, SplitInfo
from bert_jax.corpus.parts import PreparedPart
from bert_jax.corpus.progress import Progress
from bert_jax.corpus.screening_report import PAGE
from bert_jax.corpus.train_tokenizer import DEFAULTS, ReadingProgress, TokenizerKind
from bert_jax.terminal import format_clock
from bert_jax.text.documents import SourceCounts
from bert_jax.tokenizers.tokenizer import Tokenizer


def preparation_line(progress: Progress) -> str:
    """Return a line that shows the progress of a preparation."""
    if progress.screened_bytes is not None:
        return _screening_line(progress, progress.screened_bytes)
    parts = [
        f"{progress.text_bytes / 1e6:,.1f} MB",
        f"{progress.shards} shards",
        f"{progress.new_text_bytes / progress.seconds / 1e6:.2f} MB/s",
        f"{progress.new_tokens / progress.seconds:,.0f} tokens/s",
    ]
    if progress.fraction is not None:
        parts.insert(0, f"{progress.fraction:6.1%}")
    if progress.seconds_left is not None:
        parts.append(f"ETA {format_clock(progress.seconds_left)}")
    return "prepare: " + "  ".join(parts)


def _screening_line(progress: Progress, screened_bytes: int) -> str:
    rate = f"{screened_bytes / progress.seconds / 1e6:.2f} MB/s"
    parts = [f"{screened_bytes / 1e6:,.1f} MB", rate]
    if progress.fraction is not None:
        parts.insert(0, f"{progress.fraction:6.1%}")
    return "screen: " + "  ".join(parts)


def preparation_speed(progress: Progress, num_workers: int) -> str:
    """Return a line that shows the speed of a finished preparation."""
    if not progress.new_shards:
        return f"all {progress.shards} shards already existed"
    kept = progress.shards - progress.new_shards
    return (
        f"{progress.new_text_bytes / 1e6:,.1f} MB of text in {progress.seconds:.1f} s: "
        f"{progress.new_text_bytes / progress.seconds / 1e6:.2f} MB/s, "
        f"{progress.new_tokens / progress.seconds:,.0f} tokens/s with {num_workers} "
        f"worker{'s' * (num_workers != 1)}; at most "
        f"{progress.peak_worker_memory / 2**20:.0f} MiB of memory per worker"
        + (f"; {kept} shard{'s' * (kept != 1)} already existed" if kept else "")
    )


def comparison_lines(speed: PreparationSpeed, num_workers: int) -> list[str]:
    """Return lines that compare the speeds of preparation and of a plain loop."""
    megabytes = speed.counts.text_bytes / 1e6
    times = {"plain encode_batch": speed.plain_seconds, "prepare": speed.prepare_seconds}
    return [
        f"{megabytes:.1f} MB of text, {speed.counts.documents:,} documents, {num_workers} workers",
        *(
            f"{name:18}  {seconds:8.2f} s  {megabytes / seconds:6.2f} MB/s"
            for name, seconds in times.items()
        ),
        f"ratio {speed.plain_seconds / speed.prepare_seconds:.2f}; at most "
        f"{speed.peak_worker_memory / 2**20:.0f} MiB of memory per worker",
    ]


def corpus_table(manifest: Manifest) -> list[str]:
    """Return lines that show the sizes of a corpus's splits and how much input was left out."""
    splits = (manifest.train, manifest.heldout)
    rows = [_counts(split) for split in splits]
    lines = [f"{'':12}{'train':>18}{'held out':>18}"]
    lines += [
        f"{name:12}" + "".join(f"{row[name]:>18,}" for row in rows) for name in _counts(splits[0])
    ]
    lines.append(f"{'fill rate':12}" + "".join(f"{split.fill_rate:>18.4f}" for split in splits))
    shares = [split.unknown_share for split in splits]
    shown = ["not counted" if share is None else f"{share:.2%}" for share in shares]
    lines.append(f"{'unknown':12}" + "".join(f"{share:>18}" for share in shown))
    held_out_inputs = any(SPLIT_KEY in source for source in manifest.sources)
    repeats = {"training documents removed because they are held out": manifest.heldout_repeats}
    excluded = {
        "exact duplicates removed": manifest.duplicates_removed,
        **(repeats if held_out_inputs else {}),
        "documents without tokens": manifest.empty_documents,
        "unusable lines skipped": manifest.bad_lines_skipped,
        "inputs without documents skipped": manifest.empty_files_skipped,
        "long documents split": manifest.documents_split,
    }
    excluded |= _left_out(manifest)
    lines += [f"{name}: {count:,}" for name, count in excluded.items()]
    if manifest.filters is not None:
        lines.append(f"examples of documents that were left out: {PAGE} in the corpus directory")
    return lines


def _left_out(manifest: Manifest) -> dict[str, int]:
    """Return the number of documents that filters removed or counted, keyed by description."""
    if manifest.filters is None:
        return {}
    filters = manifest.filters
    counts = {f"removed by {rule}": count for rule, count in filters["filtered"].items()}
    if filters["contaminated_kept"]:
        counts["contaminated, but kept"] = filters["contaminated_kept"]
    if filters["clusters"]:
        counts["clusters of near-duplicates"] = filters["clusters"]
        counts["near-duplicates removed"] = filters["near_duplicates"]
    return counts


def _counts(split: SplitInfo) -> dict[str, int]:
    return {
        "documents": split.num_documents,
        "sentences": split.num_sentences,
        "tokens": split.num_tokens,
        "records": split.num_records,
        "shards": len(split.shards),
    }


def part_line(part: PreparedPart) -> str:
    """Return a line that describes a finished part and the remaining work."""
    return (
        f"part {part.part} of {part.path} is finished. It consists of {part.num_shards} of the "
        f"corpus's {part.total_shards} shards. After all parts, run the same command with --merge "
        "instead of --part"
    )


def reading_line(reading: ReadingProgress) -> str:
    """Return a line that shows the progress of one pass over a tokenizer's training text."""
    share, seconds, counts = reading.fraction, reading.seconds, reading.counts
    left = seconds / share - seconds if share else 0.0
    return (
        f"{reading.phase}: {share:6.1%}  {counts.documents} documents  "
        f"{counts.text_bytes / 1e6:,.1f} MB  "
        f"{counts.text_bytes / 1e6 / seconds:.1f} MB/s  ETA {format_clock(left)}"
    )


def verification_line(num_bytes: int, total: int) -> str:
    """Return a line that shows how much of a finished corpus has been verified."""
    return f"checking the finished corpus: {num_bytes / total:6.1%} of {total / 1e6:,.1f} MB"


def describe_tokenizer(tokenizer: Tokenizer) -> str:
    """Describe a tokenizer: its size, how it treats case and accents, and its fingerprint."""
    case = "uncased" if tokenizer.lowercase else "cased"
    accents = " with accents" if tokenizer.lowercase and not tokenizer.strips_accents else ""
    return (
        f"vocabulary of {tokenizer.vocab_size:,} tokens, {case}{accents}, fingerprint "
        f"{tokenizer.fingerprint[:12]}"
    )


def training_lines(
    counts: SourceCounts, kind: TokenizerKind, max_bytes: int | None, seconds: float
) -> list[str]:
    """Return lines that describe the text that a tokenizer was trained on.

    Args:
      counts: the document and byte counts of the inputs.
      kind: the kind of tokenizer.
      max_bytes: the limit on the amount of text; None for the kind's default.
      seconds: how long training took.
    """
    limit = DEFAULTS[kind].max_bytes if max_bytes is None else max_bytes
    sampled = min(1.0, limit / counts.text_bytes)
    use = "trained on" if kind.startswith("sentencepiece") else "words counted in"
    lines = [
        f"from {counts.documents} documents in {counts.files} inputs, "
        f"{counts.text_bytes / 1e6:.1f} MB of text"
        + (f" ({use} {sampled:.1%} of it)" if sampled < 1 else "")
        + f", in {seconds:.1f} s"
    ]
    skipped = {
        "bad lines": counts.bad_lines,
        "files without documents": counts.empty_files,
        "empty documents": counts.empty_documents,
    }
    if any(skipped.values()):
        shown = ", ".join(f"{count} {name}" for name, count in skipped.items())
        lines.append(f"skipped: {shown}")
    return lines
