"""Containers and classes as arguments and results: taken apart, and given back as what they are."""

import dataclasses
import enum
import weakref
from collections import ChainMap, OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import foretrace


class Named(NamedTuple):
    x: Tensor
    y: Tensor


class OfNamed(Named):
    """A class of the user's over it."""


Untyped = namedtuple("Untyped", "x y")  # noqa: PYI024 - as older programs have it


@dataclasses.dataclass
class Data:
    x: Tensor
    y: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Tensor
    y: Tensor


@dataclasses.dataclass
class Known:
    x: Tensor
    y: Tensor


torch.export.register_dataclass(Known)


class Plain:
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


class Slots:
    __slots__ = ("x", "y")

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


class Unset(Plain):
    """As attrs makes frozen classes."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y)

    def __setattr__(self, name: str, new: object) -> None:
        raise AttributeError(name)


class Keyed(Plain):
    """Registered, with keys."""


class Unkeyed(Plain):
    """Registered, without."""


def flat(item: Any) -> tuple[list[Any], None]:
    return [item.x, item.y], None


pytree.register_pytree_node(
    Keyed, flat, lambda items, _: Keyed(*items), serialized_type_name="tests.containers.Keyed",
    flatten_with_keys_fn=lambda item: (
        [(pytree.GetAttrKey("x"), item.x), (pytree.GetAttrKey("y"), item.y)], None),
)  # fmt: skip
pytree.register_pytree_node(Unkeyed, flat, lambda items, _: Unkeyed(*items))


class Storage(MutableMapping[str, Any]):
    """A mapping behind attributes, as torch_geometric has it."""

    def __init__(self, **items: Any) -> None:
        self.__dict__["_mapping"] = items

    def __getitem__(self, key: str) -> Any:
        return self._mapping[key]

    def __setitem__(self, key: str, new: Any) -> None:
        self._mapping[key] = new

    def __delitem__(self, key: str) -> None:
        del self._mapping[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)


class Graph:
    """Its attributes are those of a store, as torch_geometric's Data has them."""

    def __init__(self, **items: Any) -> None:
        self.__dict__["_store"] = Storage(**items)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._store:
            raise AttributeError(name)
        return self._store[name]


class AttributeDict(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Ordered(OrderedDict[str, Any]):
    """A class of the user's."""


class Rows(list[Any]):
    """A class of the user's, with an attribute."""

    def __init__(self, items: Any = ()) -> None:
        super().__init__(items)
        self.name = "rows"


class Both(tuple[Any, ...]):
    """A class of the user's."""

    __slots__ = ()


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def attributes(item: Any) -> tuple[Tensor, Tensor]:
    return item.x, item.y


def entries(item: Any) -> tuple[Tensor, Tensor]:
    return item["x"], item["y"]


def places(item: Any) -> tuple[Tensor, Tensor]:
    return item[0], item[1]


Form = tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], tuple[Tensor, Tensor]], bool]
FORMS: dict[str, Form] = {
    "NamedTuple": (Named, attributes, True),
    "class of a NamedTuple": (OfNamed, attributes, True),
    "namedtuple": (Untyped, attributes, True),
    "dataclass": (Data, attributes, False),
    "frozen dataclass": (Frozen, attributes, False),
    "registered dataclass": (Known, attributes, True),
    "registered with keys": (Keyed, attributes, True),
    "registered without keys": (Unkeyed, attributes, False),
    "object": (Plain, attributes, False),
    "slots": (Slots, attributes, False),
    "refuses to be set": (Unset, attributes, False),
    "namespace": (lambda x, y: SimpleNamespace(x=x, y=y), attributes, False),
    "store": (lambda x, y: Graph(x=x, y=y), attributes, False),
    "mapping": (lambda x, y: Storage(x=x, y=y), entries, False),
    "UserDict": (lambda x, y: UserDict(x=x, y=y), entries, False),
    "ChainMap": (lambda x, y: ChainMap({"x": x}, {"y": y}), entries, False),
    "class of a dict": (lambda x, y: AttributeDict(x=x, y=y), attributes, False),
    "class of an OrderedDict": (lambda x, y: Ordered(x=x, y=y), entries, False),
    "class of a list": (lambda x, y: Rows([x, y]), places, False),
    "class of a tuple": (lambda x, y: Both([x, y]), places, False),
    "OrderedDict": (lambda x, y: OrderedDict(x=x, y=y), entries, True),
    "defaultdict": (lambda x, y: defaultdict(list, x=x, y=y), entries, True),
    "deque": (lambda x, y: deque([x, y]), places, True),
    "keys of an Enum": (
        lambda x, y: {Color.RED: x, Color.BLUE: y},
        lambda item: (item[Color.RED], item[Color.BLUE]), False),
    "numbers as keys": (lambda x, y: {1: x, 2: y}, lambda item: (item[1], item[2]), True),
    "one in the other": (
        lambda x, y: {"of": [Data(x, Named(y, x))]},
        lambda item: (item["of"][0].x, item["of"][0].y.x), False),
}  # fmt: skip


class Layer(nn.Module):
    def __init__(self, make: Callable[..., Any], read: Callable[..., Any]) -> None:
        super().__init__()
        self.make, self.read, self.line = make, read, nn.Linear(4, 4)

    def forward(self, item: Any) -> Any:
        x, y = self.read(item)
        return self.make(self.line(x).sin() * y, x + y)


ROUTES: dict[str, Callable[[Any, Any], Callable[..., Any]]] = {
    "export cut": lambda fn, item: foretrace.capture(fn, (item,), verify=True).cut("export"),
    "compile": lambda fn, item: foretrace.compile(fn, fullgraph=True),
    "backend": lambda fn, item: foretrace.compile(
        fn, backend=lambda module, _: module, fullgraph=True
    ),
    "file": lambda fn, item: foretrace.export(fn, (item,)).module(),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("form", FORMS)
def test_taken_and_given(form: str, route: str) -> None:
    make, read, in_files = FORMS[form]
    torch.manual_seed(0)
    layer, (x, y) = Layer(make, read), torch.randn(2, 3, 4).unbind()
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    if route == "file" and not in_files:
        with pytest.raises(foretrace.Refusal) as caught:
            ROUTES[route](layer, make(x, y))
        assert caught.value.kind == "unknown container"
        return
    run = ROUTES[route](layer, make(x, y))
    for _ in range(2):
        eager, found = layer(make(x, y)), run(make(x, y))
        assert type(found) is type(eager)
        for one, other in zip(read(eager), read(found), strict=True):
            assert torch.equal(one, other)
        of = [*layer.parameters(), x, y]
        pairs = [torch.autograd.grad(sum(t.sin().sum() for t in read(each)), of)
                 for each in (eager, found)]  # fmt: skip
        assert all(map(torch.equal, *pairs))


def adds_entry(item: Any) -> Any:
    item["z"] = item["x"] * 2
    return item["x"] + 1


def adds_row(item: Any) -> Any:
    item.append(item[0] * 2)
    return item[0] + 1


def sets_attribute(item: Any) -> Any:
    item.z = item.x * 2
    return item.x + 1


def sets_both(item: Any) -> Any:
    item.extra = item["x"] * 3
    item["x"] = item["x"] + 1
    return item["x"] * 2


def writes(item: Any) -> Any:
    item["x"].add_(1)
    return item["x"] * 2


def itself(item: Any) -> Any:
    return item


class Loose(dict[str, Any]):
    """A class of the user's with room for attributes."""


X = torch.arange(6.0).view(2, 3)
CHANGED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "class of a dict": (lambda: AttributeDict(x=X.clone()), adds_entry),
    "class of an OrderedDict": (lambda: Ordered(x=X.clone()), adds_entry),
    "OrderedDict": (lambda: OrderedDict(x=X.clone()), adds_entry),
    "class of a list": (lambda: Rows([X.clone()]), adds_row),
    "namespace": (lambda: SimpleNamespace(x=X.clone()), sets_attribute),
    "entry and attribute": (lambda: Loose(x=X.clone()), sets_both),
    "written": (lambda: AttributeDict(x=X.clone()), writes),
    "handed back": (lambda: AttributeDict(x=X.clone()), itself),
    "handed back in order": (lambda: Ordered(y=X.clone(), x=X.clone()), itself),
    "namespace handed back": (lambda: SimpleNamespace(x=X.clone()), itself),
}


def content(item: Any) -> list[Any]:
    held: list[Any] = [*vars(item).items()] if hasattr(item, "__dict__") else []
    if isinstance(item, dict):
        held += list(item.items())
    return held + list(item) if isinstance(item, list) else held


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


@pytest.mark.parametrize("route", ["export cut", "compile"])
@pytest.mark.parametrize("name", CHANGED)
def test_changed_as_eager_changes_them(name: str, route: str) -> None:
    make, fn = CHANGED[name]
    eager = make()
    expected = fn(eager)
    run = ROUTES[route](fn, make())
    for _ in range(2):
        item = make()
        found = run(item)
        assert (found is item) is (expected is eager)
        assert found is item or alike(expected, found)
        assert alike(content(eager), content(item))


class Called:
    """A batch that is callable beside, as torch_geometric's Data is."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __call__(self, name: str) -> Tensor:
        return getattr(self, name)


def test_a_batch_with_a_call_of_its_own() -> None:
    compiled = foretrace.compile(lambda item: item("x") * 2, fullgraph=True)
    for _ in range(3):
        x = torch.randn(3)
        assert torch.equal(compiled(Called(x)), x * 2)
    assert not compiled.recaptures


class Back:
    """It holds a way back to itself."""

    def __init__(self, way: str, x: Tensor) -> None:
        self.x = x
        self.me: Any = {
            "weak": lambda: weakref.ref(self), "weak below": lambda: Weakly(self),
            "method": lambda: self.itself, "partial": lambda: partial(Back.itself, self),
            "closure": lambda: lambda: self,
        }[way]()  # fmt: skip

    def itself(self) -> "Back":
        return self


class Weakly:
    def __init__(self, holder: Back) -> None:
        self.holder = weakref.ref(holder)

    def __call__(self) -> Back | None:
        return self.holder()


@pytest.mark.parametrize("route", ["export cut", "compile", "backend"])
@pytest.mark.parametrize("way", ["weak", "weak below", "method", "partial", "closure"])
def test_what_leads_back_to_its_holder(way: str, route: str) -> None:
    def fn(item: Back) -> Tensor:
        item.x = item.x * 2
        return item.me().x.sum() * (2 if item.me() is item else 3)

    x = torch.randn(3)
    eager, item = Back(way, x), Back(way, x)
    run = ROUTES[route](fn, item)
    assert torch.equal(fn(eager), run(item))
    assert torch.equal(eager.x, item.x)


class Attrs(nn.Module):
    def forward(self, item: Any) -> Any:
        return type(item)(x=item.x * 2, y=item.y.sin())


def test_attrs() -> None:
    attrs = pytest.importorskip("attrs")
    for options in ({}, {"frozen": True, "slots": True}):
        kind = attrs.make_class("Kind", ["x", "y"], **options)
        item = kind(torch.randn(3), torch.randn(3))
        eager, found = Attrs()(item), foretrace.capture(Attrs(), (item,)).cut("aten")(item)
        assert type(found) is kind
        assert torch.equal(eager.x, found.x)
        assert torch.equal(eager.y, found.y)


def test_classes_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    outputs = transformers.modeling_outputs.BaseModelOutput
    encoding = transformers.BatchEncoding({"x": torch.randn(3)})

    def fn(item: Any) -> Any:
        return outputs(last_hidden_state=item["x"] * 2, hidden_states=(item["x"],))

    eager = fn(encoding)
    for run in (foretrace.capture(fn, (encoding,)).cut("export"),
                foretrace.compile(fn, fullgraph=True)):  # fmt: skip
        found = run(encoding)
        assert type(found) is outputs
        assert torch.equal(found.last_hidden_state, eager.last_hidden_state)
