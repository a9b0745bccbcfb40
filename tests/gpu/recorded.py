"""A record of a device: what eager does there, in a file that is small and the same each time.

`facts`: the device, its capability, cuDNN, the versions. `kernels`: operators by the dispatch keys
that have a kernel for them. `attention`: calls, with torch's choice and eager's kernel. `ops`:
OpInfo's operators, each sample by dtype as inputs, operators called, outputs. Texts that repeat are
kept once.
"""

import json
import lzma
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch

FOLDER: Final = Path(__file__).parents[1] / "data"
ENDING: Final = ".json.xz"
KEYS: Final = (
    *("CPU", "CUDA", "Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd"),
    *("CompositeExplicitAutogradNonFunctional", "Autograd"),
)
KERNELS: Final = "kernels"
Samples = dict[str, list[tuple[str, str, str]]]
"""Of one operator, by dtype: inputs, operators called, outputs."""


@dataclass
class Recorded:
    """One file."""

    facts: dict[str, Any]
    kernels: dict[str, list[str]] = field(default_factory=dict)
    attention: dict[str, list[Any]] = field(default_factory=dict)
    ops: dict[str, Samples] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    """what could not be recorded, and why"""

    @property
    def name(self) -> str:
        """The file's: "cuda-sm90-torch2.11.0"."""
        version = self.facts["torch"].partition("+")[0]
        return f"{self.facts['target'].replace(':', '-')}-torch{version}"

    @cached_property
    def keys_of(self) -> dict[str, frozenset[str]]:
        """The dispatch keys that have a kernel, by operator: "aten::add.Tensor"."""
        pairs = ((name, keys) for keys, names in self.kernels.items() for name in names)
        return {name: frozenset(keys.split()) for name, keys in pairs}

    def has(self, name: str, key: str) -> bool:
        """What torch._C._dispatch_has_kernel_for_dispatch_key says there."""
        return key in self.keys_of.get(name, ())

    def write(self, folder: Path) -> Path:
        """The file in the folder."""
        texts: dict[str, int] = {}

        def number(text: str) -> int:
            return texts.setdefault(text, len(texts))

        ops = {
            name: {
                dtype: [[number(text) for text in sample] for sample in found]
                for dtype, found in samples.items()
            }
            for name, samples in sorted(self.ops.items())
        }
        whole = {**vars(self), "ops": ops, "texts": list(texts)}
        whole.pop("keys_of", None)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}{ENDING}"
        path.write_bytes(lzma.compress(json.dumps(whole, separators=(",", ":")).encode()))
        return path

    @classmethod
    def read(cls, path: Path) -> "Recorded":
        """What `write` has written."""
        whole = json.loads(lzma.decompress(path.read_bytes()))
        texts = whole.pop("texts")
        ops = {
            name: {
                dtype: [(texts[a], texts[b], texts[c]) for a, b, c in found]
                for dtype, found in samples.items()
            }
            for name, samples in whole.pop("ops").items()
        }
        return cls(**whole, ops=ops)


def files() -> list[Path]:
    """The records that there are."""
    return sorted(FOLDER.glob(f"*{ENDING}"))


def kernel_table(names: Iterable[str] = ()) -> dict[str, list[str]]:
    """The aten operators of the installed torch by the keys that have a kernel for them."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    found = defaultdict[str, list[str]](list)
    every = sorted(names or torch._C._dispatch_get_all_op_names())
    for name in (name for name in every if name.startswith("aten::")):
        found[" ".join(key for key in KEYS if has(name, key))].append(name)
    return dict(found)
