"""Text files as bytes: copies in UTF-8 of files in other encodings, or compressed under another extension."""

import codecs
import gzip
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from departing.model.errors import InputError

CHUNK = 2**22  # bytes decoded at a time
SCANNED = 2**26  # bytes of a compressed file that are scanned; decompressing all of it would read it twice
GZIP = b"\x1f\x8b"
MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")


def as_utf8(files: Sequence[str], folder: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """The files, or copies in `folder` that are in UTF-8 and not compressed; and sentences on what was done.

    Each path is mapped to the file as the caller knows it.
    """
    paths, sentences = dict[str, str](), []
    for i, file in enumerate(files):
        is_compressed, encoding = read_bytes(file, 2) == GZIP, find_encoding(file)
        is_named = file.lower().endswith(".gz")
        if encoding is None and is_compressed == is_named:
            paths[file] = file
            continue
        suffix = next((each for each in reversed(Path(file).suffixes) if each.lower() != ".gz"), ".csv")
        copy = folder / f"{i}-{Path(file).name.split('.')[0]}{suffix}"
        with open_bytes(file) as source, open(copy, "wb") as target:
            if encoding is None:
                shutil.copyfileobj(source, target, CHUNK)
            else:
                decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
                while chunk := source.read(CHUNK):
                    target.write(decoder.decode(chunk).encode())
                target.write(decoder.decode(b"", final=True).encode())
        paths[str(copy)] = file
        if encoding is not None:
            name = {"utf-16": "UTF-16", "cp1252": "Windows-1252 (Latin-1)"}[encoding]
            sentences.append(f"{file!r} is not UTF-8; it is read as {name}.")
        elif is_compressed:
            sentences.append(f"{file!r} is compressed by gzip.")
    return paths, tuple(sentences)


def read_bytes(file: str, n: int) -> bytes:
    """First bytes of a file as they are."""
    with open(file, "rb") as stream:
        return stream.read(n)


def open_bytes(file: str) -> IO[bytes]:
    """Open a file, decompressed if it is compressed by gzip, whatever its name."""
    return gzip.open(file) if read_bytes(file, 2) == GZIP else open(file, "rb")  # type: ignore[return-value]


def find_encoding(file: str) -> str | None:
    """Encoding of a text file in Python's terms, or None for UTF-8, also for UTF-8 with a few invalid bytes."""
    with open_bytes(file) as stream:
        start = stream.read(2)
        if start in MARKS:
            return MARKS[start]
    valid = invalid = scanned = 0
    is_compressed = read_bytes(file, 2) == GZIP
    with open_bytes(file) as stream:
        while (chunk := stream.read(CHUNK)) and not (is_compressed and scanned > SCANNED):
            scanned += len(chunk)
            if chunk.isascii():
                continue
            chunk += stream.readline()  # so that no character is cut
            rest, n = MULTIBYTE.subn(b"", chunk)
            valid += n
            invalid += len(rest) - len(rest.translate(None, bytes(range(128, 256))))
    return "cp1252" if invalid > valid else None


def check_not_empty(files: Iterable[str]) -> None:
    """Raise if a file is empty."""
    for file in files:
        with open_bytes(file) as stream:
            start = stream.read(1)
        if not start:
            raise InputError(f"{file!r} is empty; expected a log with a header.")


def check_line_ends(files: Iterable[str]) -> None:
    """Raise if a file mixes line endings, which CSV readers refuse."""
    for file in files:
        with open_bytes(file) as stream:
            start = stream.read(2**20)
        windows, unix = start.count(b"\r\n"), start.count(b"\n")
        if 0 < windows < unix or (b"\r" in start and start.count(b"\r") > windows):
            raise InputError(
                f"{file!r} mixes line endings (\\n, \\r and \\r\\n); convert it first, for instance with dos2unix."
            )
