"""The kernels that are registered for an operator, parsed from the dispatcher's own text."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from foretrace import torch_api

REGISTERED = re.compile(
    r"^(?P<key>\w+)(?P<marks>(?:\[alias\]| \(inactive\))*): (?:fallthrough )?"
    r"registered (?:at|by) (?P<file>.+?)(?::(?P<line>\d+))? :: .* \[ (?P<flags>[a-z ]*)\]$"
)
COMPUTED = re.compile(
    r"^(?P<key>\w+): (?P<falls>fallthrough )?registered (?:at|by) (?P<file>.+?)(?::(?P<line>\d+))?"
    r" \[(?P<tag>[a-z ]+)\]$"
)
CPLUSPLUS = re.compile(r"^.*?/(?=(?:build/|aten/src/|torch/csrc/|c10/))")
PACKAGES = str(Path(torch_api.TORCH_DIR).parent) + "/"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: its key, and the place of its registration.

    `line` is None if only the file is known.
    """

    key: str
    file: str
    line: int | None
    fallthrough: bool = False

    @property
    def place(self) -> str:
        """`aten/src/ATen/...:12`; of torch's Python, `torch/_meta_registrations.py:12`."""
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Computed:
    """One row of the dispatcher's table: the kernel at a key, and the tag of its rule."""

    kernel: Kernel
    tag: str


def registered(op: str) -> dict[str, Kernel]:
    """The active kernel of each key, alias keys included."""
    found = {}
    for line in torch_api.registrations_text(op).splitlines():
        row = REGISTERED.match(line)
        if row is not None and "inactive" not in row["marks"]:
            falls = "fallthrough" in row["flags"]
            found[row["key"]] = _kernel(row, falls)
    return found


def computed(op: str) -> dict[str, Computed]:
    """The dispatcher's own table."""
    return _rows(torch_api.table_text(op))


def fallbacks() -> dict[str, Kernel]:
    """By key, the kernel that serves operators without one."""
    return {key: row.kernel for key, row in _rows(torch_api.fallbacks_text()).items()}


def _rows(text: str) -> dict[str, Computed]:
    found = {}
    for line in text.splitlines():
        row = COMPUTED.match(line)
        if row is not None:
            falls = row["falls"] is not None
            found[row["key"]] = Computed(_kernel(row, falls), row["tag"])
    return found


def _kernel(row: re.Match[str], falls: bool) -> Kernel:
    line = None if row["line"] is None else int(row["line"])
    return Kernel(row["key"], short(row["file"]), line, falls)


@cache
def short(file: str) -> str:
    """The name of a file in torch's repository or in its package."""
    if file.startswith(PACKAGES):
        return file.removeprefix(PACKAGES)
    return CPLUSPLUS.sub("", file) if file.endswith((".cpp", ".cu", ".h", ".mm")) else file
