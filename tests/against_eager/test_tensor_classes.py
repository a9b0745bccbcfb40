"""Tensors of a class with a `__torch_function__`: what that does, runs while it is recorded."""

import copy
from collections.abc import Callable
from pathlib import Path
from traceback import walk_tb
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn

import foretrace


class Plain(Tensor):
    """Adds a method; its results are of its class."""

    def twice(self) -> Tensor:
        return self * 2


class Changing(Tensor):
    """Answers for other functions than it was asked for."""

    factor = 2

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.ndim.__get__:
            return 10
        if func == Tensor.requires_grad.__get__:
            return "asked"
        called = torch.Tensor.exp if func is torch.Tensor.sigmoid else func
        result = super().__torch_function__(called, types, args, kwargs or {})
        return result * cls.factor if func is torch.add else result


class Unwrapping(Tensor):
    """As torchvision's: few functions keep the class."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
        keeps = func in (Tensor.clone, Tensor.to)
        return found.as_subclass(cls if keeps else Tensor) if isinstance(found, Tensor) else found


class Marked(Tensor):
    """As MONAI's: has a constructor and attributes, which results inherit."""

    meta: Any

    def __new__(cls, data: Any, meta: Any = None) -> Self:
        new = torch.as_tensor(data).as_subclass(cls)
        new.meta = meta
        return new

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(found, cls) and "meta" not in vars(found):
            vars(found).update(next((vars(a) for a in args if isinstance(a, cls)), {"meta": None}))
        return found


def of(kind: type[Tensor]) -> Tensor:
    return (torch.arange(4.0).reshape(2, 2) / 3).as_subclass(kind)


def marked() -> Tensor:
    return Marked(torch.arange(3.0), {"scale": 3})


def shown(item: Any) -> Any:
    """All that can be seen of a result."""
    if isinstance(item, (tuple, list)):
        return [shown(each) for each in item]
    if not isinstance(item, Tensor):
        return item
    own = {name: shown(each) for name, each in vars(item).items()}
    plain = item.as_subclass(Tensor)
    return type(item), own, plain.tolist(), plain.stride(), plain.dtype


def lets_require_grad(x: Tensor) -> Any:
    y = x * 1
    same = y.requires_grad_() is y
    (y * y).sum().backward()
    return same, y.is_leaf, y.requires_grad, y.grad


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], Tensor]]] = {
    "method": (lambda x: (x.twice(), x.exp().sum()), lambda: of(Plain)),
    "another function": (lambda x: x.sigmoid(), lambda: of(Changing)),
    "another attribute": (lambda x: (x.ndim, x.requires_grad), lambda: of(Changing)),
    "unwrapped": (
        lambda x: (x + 1, x.clone(), x.to(torch.float64), x.shape),
        lambda: of(Unwrapping),
    ),
    "classes": (lambda x: (x.__class__ is Plain, isinstance(x + 1, Plain)), lambda: of(Plain)),
    "returned again": (lambda x: (x, x + 1, x), lambda: of(Plain)),
    "in place": (lambda x: (x.add_(1), x.mul_(2) is x), lambda: of(Plain)),
    "part in place": (lambda x: (x[0].add_(1), x), lambda: of(Plain)),
    "behind it": (lambda x: (x.as_subclass(Tensor).add_(1), x + 0), lambda: of(Plain)),
    "made": (lambda x: (x + 1).as_subclass(Changing).sigmoid(), lambda: of(Tensor)),
    "constructed": (lambda x: Marked(x + 1, {"of": 2}) * 2, lambda: of(Tensor)),
    "attributes": (lambda x: x * x.meta["scale"], marked),
    "attributes copied": (lambda x: (x.relu() - 1, x.sum()), marked),
    "attribute set": (lambda x: (setattr(x, "meta", 5), x + 1), marked),
    "asked": (lambda x: (x.stride(), x.is_contiguous(), x.data + 1, x.is_leaf), lambda: of(Plain)),
    "itself": (lambda x: (x.to("cpu") is x, x.float() is x, x.double()), lambda: of(Plain)),
    "leaf inside": (lets_require_grad, lambda: of(Plain)),
    "values": (lambda x: x + x.sum().item() if x.sum() > 0 else x, lambda: of(Plain)),
    "parts": (lambda x: [*x.unbind(), x[0], x[:, 1:], x.T], lambda: of(Plain)),
    "joined": (lambda x: torch.cat([x, torch.ones(1, 2)]), lambda: of(Plain)),
    "mapped": (torch.func.vmap(lambda row: row.sum()), lambda: of(Plain)),
    "named results": (lambda x: x.max(0), lambda: of(Plain)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name: str) -> None:
    fn, make = PROGRAMS[name]
    x = make()
    eager = shown(fn(x)), shown(x)
    compiled = foretrace.compile(fn, fullgraph=True)
    for call in (compiled, compiled, foretrace.capture(fn, (make(),)).cut("export")):
        x = make()
        assert (shown(call(x)), shown(x)) == eager
    assert not compiled.recaptures


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x).sigmoid() ** 2).sum()


@pytest.mark.parametrize("backend", ["eager", foretrace.aot_autograd(fw_compiler=lambda gm, _: gm)])
@pytest.mark.parametrize("kind", [Plain, Changing, Unwrapping])
def test_trains_as_in_eager(kind: type[Tensor], backend: Any) -> None:
    module, x = Squares(), of(kind)
    other = copy.deepcopy(module)
    eager, found = module(x), foretrace.compile(other, fullgraph=True, backend=backend)(x)
    assert shown(eager) == shown(found)
    eager.backward()
    found.backward()
    assert torch.equal(module.linear.weight.grad, other.linear.weight.grad)
    loss, gradients = foretrace.capture(module, (x,)).cut("joint", loss=0)(x)
    assert shown(loss) == shown(eager)
    assert torch.equal(gradients["linear.weight"], module.linear.weight.grad)


def test_a_gradient_goes_through_to_what_it_was_computed_of() -> None:
    found = list[Tensor]()
    compiled = foretrace.compile(lambda x: (x * 3).exp().sum(), fullgraph=True)
    for fn in (lambda x: (x * 3).exp().sum(), compiled):
        w = torch.linspace(-1, 1, 4).requires_grad_()
        fn((w * 2).as_subclass(Plain)).backward()
        found.append(w.grad)
    assert torch.equal(*found)


def test_the_class_and_what_it_has_are_guards() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.add(x, 1)

    compiled, before = foretrace.compile(fn, fullgraph=True), Changing.factor
    try:
        for kind in (Plain, Changing, Tensor, Unwrapping, Changing):
            assert shown(compiled(of(kind))) == shown(fn(of(kind)))
        assert len(compiled.recaptures) == 3
        Changing.factor = 5
        assert shown(compiled(of(Changing))) == shown(fn(of(Changing)))
    finally:
        Changing.factor = before


def test_one_at_two_places_is_one_object() -> None:
    def fn(x: Tensor, y: Tensor) -> Any:
        return x is y, x + y

    one, other = of(Plain), of(Plain)
    compiled = foretrace.compile(fn, fullgraph=True)
    assert [compiled(one, each)[0] for each in (one, other, one)] == [True, False, True]
    assert len(compiled.recaptures) == 1
    cut = foretrace.capture(fn, (one, other)).cut("export")
    with pytest.raises(foretrace.Refusal, match="nested in another way"):
        cut(one, one)
    assert foretrace.capture(fn, (one, one)).cut("export")(one, one)[0]


def test_a_file_names_the_class(tmp_path: Path) -> None:
    program = foretrace.capture(lambda x: x * 2, (of(Plain),))
    program.save(tmp_path / "twice.ft", "export")
    loaded = foretrace.load(tmp_path / "twice.ft", classes=[Plain])
    assert shown(loaded(of(Plain))) == shown(of(Plain) * 2)


def test_what_it_leaves_is_of_its_class() -> None:
    kept = list[Tensor]()

    def fn(x: Tensor) -> Tensor:
        kept.append(x + 1)
        return x

    compiled = foretrace.compile(fn, fullgraph=True)
    for _ in range(2):
        x = of(Plain)
        assert compiled(x) is x
    assert [type(each) for each in kept] == [Plain, Plain]
    assert torch.equal(kept[1], x + 1)


class Raising(Tensor):
    """Raises whatever it is called for."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ValueError


def test_outside_of_a_run_it_is_refused_and_reads_no_memory() -> None:
    with pytest.raises(foretrace.Refusal, match="ValueError") as caught:
        foretrace.capture(lambda x: x + 1, (of(Raising),))
    error = caught.value.with_full_traceback().__cause__ or caught.value.__context__
    assert error is not None
    frames = [frame.f_locals for frame, _ in walk_tb(error.__traceback__)]
    kept = next(each["args"][0] for each in reversed(frames) if "args" in each)
    assert isinstance(kept, Raising)
    with torch._C.DisableTorchFunctionSubclass():
        for asks in (torch.sum, torch.Tensor.tolist):
            with pytest.raises((foretrace.Refusal, RuntimeError)):
                asks(kept)
