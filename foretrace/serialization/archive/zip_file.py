"""The zip: members of fixed names, each with its length and hash in the manifest."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch

from foretrace.errors import Attempt, Refusal
from foretrace.serialization.archive.manifest import (
    FORMAT,
    LARGEST_TEXT,
    MANIFEST,
    MEMBERS,
    TENSORS,
    VERSION,
    Manifest,
    Member,
    manifest_of,
)
from foretrace.serialization.schema.errors import PROGRAM, damaged

SUFFIX: Final = ".safetensors"
DAMAGED = (zipfile.BadZipFile, EOFError, zipfile.LargeZipFile, NotImplementedError, OSError)
"""What Python raises for a file that is no zip, is cut short, or cannot be read"""
STAMP: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every member, so that equal programs give equal files"""


def write(
    path: Path, program: Any, tensors: bytes, operators: dict[str, str], *, beside: bool
) -> None:
    """Write a file. An old one is replaced when all is written.

    Raises:
        Refusal: it cannot be written, or the file beside would have its name.
    """
    whole = json.dumps(program, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = whole.encode(errors="backslashreplace")  # surrogates: JSON's escapes are Python's
    other = path.with_suffix(SUFFIX)
    if beside and other == path:
        raise _not_written(path, f"the tensors beside have this name, {other.name}")
    members = {PROGRAM: _member(text), TENSORS: _member(tensors)}
    manifest = Manifest(
        FORMAT, list(VERSION), torch.__version__, members, other.name if beside else "", operators
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        _add(file, MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
        _add(file, PROGRAM, text)
        if not beside:
            _add(file, TENSORS, tensors, zipfile.ZIP_STORED)
    if beside:
        _put(other, tensors)
    _put(path, buffer.getvalue())  # bytes: a traceback would keep a view of the buffer alive


def _put(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        with Attempt(OSError):  # the folder cannot be written to, or is missing
            part.unlink(missing_ok=True)
        raise _not_written(path, f"{error}") from error


def _not_written(path: Path, why: str) -> Refusal:
    return Refusal(
        f"{path.name} cannot be written: {why}",
        kind="not written",
        do="give another path, in a folder that is there",
    )


def _add(file: zipfile.ZipFile, name: str, data: bytes, how: int = zipfile.ZIP_DEFLATED) -> None:
    info = zipfile.ZipInfo(name, STAMP)
    info.compress_type = how
    with file.open(info, "w", force_zip64=len(data) > zipfile.ZIP64_LIMIT // 2) as member:
        member.write(data)


def _member(data: bytes) -> Member:
    return Member(len(data), hashlib.sha256(data).hexdigest())


def read(path: Path) -> tuple[Manifest, Any, bytes]:
    """The manifest, the program's JSON, and the safetensors; nothing is written to the disk.

    Raises:
        Refusal: there is no such file, it is of another kind, or a member is damaged.
    """
    if not path.is_file():
        raise Refusal(
            f"there is no file {path}",
            kind="no artifact",
            do="save a program first: program.save(path)",
        )
    try:
        with zipfile.ZipFile(path) as file:
            infos = _infos(path, file)
            manifest = manifest_of(_json(MANIFEST, _bytes_of(file, infos, MANIFEST)))
            text = _checked(manifest, PROGRAM, _bytes_of(file, infos, PROGRAM))
            beside = manifest.beside
            data = _beside(path, beside) if beside else _bytes_of(file, infos, TENSORS)
    except DAMAGED as error:
        raise damaged(path.name, f"{error}") from error
    return manifest, _json(PROGRAM, text), _checked(manifest, TENSORS, data)


def _infos(path: Path, file: zipfile.ZipFile) -> Mapping[str, zipfile.ZipInfo]:
    """The members by name; each name is known and occurs once."""
    names = file.namelist()
    for name in names:
        if name not in MEMBERS:
            raise damaged(path.name, f"no artifact has a member {name!r:.80}")
        if names.count(name) > 1:
            raise damaged(path.name, f"it has {name} twice")
    return {info.filename: info for info in file.infolist()}


def _bytes_of(file: zipfile.ZipFile, infos: Mapping[str, zipfile.ZipInfo], name: str) -> bytes:
    """A member: JSON of a limited length, or tensors, which are never compressed."""
    info = infos.get(name)
    if info is None:
        raise damaged(name, "it is not there")
    if name != TENSORS and info.file_size > LARGEST_TEXT:
        raise damaged(
            name, f"it says that it has {info.file_size} bytes, the most is {LARGEST_TEXT}"
        )
    stored = info.compress_type == zipfile.ZIP_STORED and info.file_size == info.compress_size
    if name == TENSORS and not stored:
        raise damaged(TENSORS, "it is compressed, and tensors never are")
    try:
        member = file.open(info)
    except (RuntimeError, zipfile.BadZipFile) as error:  # an encrypted member
        raise damaged(name, f"{error}") from error
    with member:
        return member.read(info.file_size + 1)


def _beside(path: Path, name: str) -> bytes:
    """The tensors in the file beside; its name may have no folder."""
    if Path(name).name != name or name in {".", ".."}:
        raise damaged(MANIFEST, f"{name!r:.80} is no name of a file beside")
    other = path.with_name(name)
    if not other.is_file():
        raise Refusal(
            f"the tensors are in {name}, and there is no such file beside {path.name}",
            kind="damaged artifact",
            do="copy both files",
        )
    return other.read_bytes()


def _checked(manifest: Manifest, name: str, data: bytes) -> bytes:
    member = manifest.members.get(name)
    if member is None:
        raise damaged(MANIFEST, f"it has no {name}")
    if _member(data) != member:
        raise damaged(name, f"{len(data)} bytes with another hash than when it was saved")
    return data


def _json(name: str, text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(name, f"no JSON: {error}"[:200]) from error
