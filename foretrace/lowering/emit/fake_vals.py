"""`node.meta["val"]`: a fake tensor for each value, created when somebody reads one of them.

Who holds a graph and asks for no `val` does not pay for 5 us a node (decision 020).
"""

from collections.abc import ItemsView, Iterator, ValuesView
from typing import Any

import sympy
import torch

from foretrace import forks, torch_api
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value
from foretrace.operators.abstract_tensors.sparse_layouts import compressed


class Vals:
    """Fake tensors: one for each value, each with a storage of its own."""

    def __init__(
        self, fakes: torch_api.FakeTensors, symbols: Symbols, *, followed: bool = False
    ) -> None:
        self.fakes, self.symbols, self.followed = fakes, symbols, followed
        self._known: dict[Value, torch.Tensor] = {}
        self._bytes: dict[TensorType, Any] = {}
        self._metadata: dict[TensorType, Any] = {}
        self._waiting: list[Waiting] = []
        self._lock = forks.Lock()

    def of(self, value: Value) -> torch.Tensor:
        """The fake tensor of a value."""
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = self._create(value.type)
        return known

    def _create(self, type: TensorType) -> torch.Tensor:
        if type.wrapped is not None:
            inner = tuple(map(self._create, type.wrapped.inner))
            created: torch.Tensor = type.wrapped.make(inner, type.shape, type.stride)
            return created.requires_grad_(self.followed and type.requires_grad)
        meta = self._meta(type)
        if self.followed and type.requires_grad:
            meta.requires_grad_()
        return self.fakes.make(meta, type.device)

    def metadata(self, value: Value) -> Any:
        """The `TensorMetadata` of a value, as torch.fx has it beside the fake tensor."""
        type = value.type
        known = self._metadata.get(type)
        if known is None:
            known = torch_api.tensor_metadata(self.of(value))
            if not type.symbols:
                self._metadata[type] = known
        return known

    def tree(self, tree: Tree) -> Any:
        """A structure with fake tensors for values; as in torch.export, a `Tensor[]` is a list."""
        if isinstance(tree, Value):
            return self.of(tree)
        if isinstance(tree, list):
            return [self.tree(item) for item in tree]
        if isinstance(tree, tuple):
            return tuple(self.tree(item) for item in tree)
        return self.symbols.symbolic(tree)

    def _meta(self, type: TensorType) -> torch.Tensor:
        if isinstance(type.sparse, str):
            known = tuple(map(self.symbols.hint, type.shape))
            with torch_api.no_dispatch_modes(), torch_api.no_dispatch():
                return compressed(type.sparse, known, type.dtype, whole=False, device="meta")
        if type.sparse:
            sizes = map(self.symbols.number, type.shape)
            return torch_api.sparse_meta(sizes, type.dtype, int(type.sparse))
        if not type.symbols:
            return torch.empty_strided(type.shape, type.stride, dtype=type.dtype, device="meta")
        number = self.symbols.number
        shape, stride = tuple(map(number, type.shape)), tuple(map(number, type.stride))
        if type not in self._bytes:
            whole = torch.empty_strided(shape, stride, dtype=type.dtype, device="meta")
            self._bytes[type] = whole.untyped_storage().nbytes()
        return torch_api.symbolic_meta(shape, stride, type.dtype, self._bytes[type])

    def meta(self, known: dict[str, Any]) -> "Waiting":
        """A `meta` with what is known; what is put there as "val", a Value or symbol, waits."""
        created = Waiting(known)
        created.vals = self
        self._waiting.append(created)
        return created

    def make_all(self) -> None:
        """Create the `val` of every node, when one is read.

        They are as if they had been created with the graph, whatever modes the reader is in.
        """
        plain = torch_api.with_autograd(), torch_api.no_torch_function()
        with self._lock, plain[0], plain[1], torch_api.no_dispatch_modes():
            for meta in self._waiting:
                meta.settle()
            self._waiting.clear()


class Meta(dict[str, Any]):
    """The `meta` of a node."""

    __slots__ = ("vals",)

    vals: Vals

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copied and pickled as a plain dict."""
        return dict, (dict(self),)

    def _created(self) -> dict[str, Any]:
        """Itself: `meta.get("val", meta.get("tensor_meta"))` looks its method up while it waits."""
        return self


CREATED = frozenset({"val", "tensor_meta"})
"""Keys of what is created when it is read"""


class Waiting(Meta):
    """A `meta` whose "val" may still be a Value or symbol: reading one creates them all.

    "tensor_meta" is there wherever "val" is a tensor, and waits with it.

    With an `__iter__` of its own, C copies it (`{**meta}`, `dict.update`) by `keys` and `[...]`.
    Source: dict_merge in CPython's Objects/dictobject.c.
    """

    __slots__ = ()

    def settle(self) -> None:
        """Make the fake tensor, or number, and be a dict like others from then on."""
        val = dict.get(self, "val")
        if type(val) is Value or isinstance(val, sympy.Symbol):
            dict.__setitem__(self, "val", self.vals.tree(val))
        metadata = dict.get(self, "tensor_meta")
        if type(metadata) is Value:
            dict.__setitem__(self, "tensor_meta", self.vals.metadata(metadata))
        self.__class__ = Meta  # type: ignore[assignment]
        del self.vals

    def _created(self) -> dict[str, Any]:
        self.vals.make_all()
        return self

    def __getitem__(self, key: str) -> Any:
        return dict.__getitem__(self._created() if key in CREATED else self, key)

    def get(self, key: str, default: Any = None) -> Any:
        """As dict has it; so are the others."""
        return dict.get(self._created() if key in CREATED else self, key, default)

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return dict.items(self._created())

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return dict.values(self._created())

    def copy(self) -> dict[str, Any]:
        return dict.copy(self._created())

    def pop(self, *args: Any) -> Any:
        return dict.pop(self._created(), *args)

    def popitem(self) -> tuple[str, Any]:
        return dict.popitem(self._created())

    def setdefault(self, key: str, default: Any = None) -> Any:
        return dict.setdefault(self._created() if key in CREATED else self, key, default)

    def __or__(self, other: Any) -> Any:
        return dict.__or__(self._created(), other)

    def __ror__(self, other: Any) -> Any:
        return dict.__ror__(self._created(), other)

    def __eq__(self, other: object) -> bool:
        return dict.__eq__(self._created(), other)

    __hash__ = None  # type: ignore[assignment]

    def __ne__(self, other: object) -> bool:
        return dict.__ne__(self._created(), other)

    def __repr__(self) -> str:
        return dict.__repr__(self._created())


for _class in (Meta, Waiting):
    torch_api.flatten_as_dict(_class)
