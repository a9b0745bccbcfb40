"""Tensors of classes that wrap others: what of them no graph has a place for."""

import enum
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import foretrace
from tests.refusals.asks import captures, cuts, exports
from tests.refusals.follow import captured, exported
from tests.refusals.registry import refuses
from tests.support.wrapped import Int8, Masked, Scaled, aten, differences, two

TWO, OTHER = two(3, 4), two(3, 4)
FOLLOWED = two(3, 4, grad=True)
X, Y = torch.randn(3, 4), torch.randn(3, 4)
WEIGHT = Int8.of(torch.randn(5, 4))
OUTSIDE = "what is done outside is no part of the program"


def taken(fn: Callable[..., Any], *args: Any) -> Callable[[], None]:
    """The program is captured, and gives what eager gives."""

    def follow() -> None:
        cut = foretrace.capture(fn, args).cut("export")
        assert differences(fn(*args), cut(*args)) == []

    return follow


def trains(fn: Callable[..., Any], *args: Any, by: Callable[..., Any]) -> Callable[[], None]:
    """What `by` makes of the program gives the gradients of eager."""

    def follow() -> None:
        of = [each for each in args if each.requires_grad]
        eager, found = fn(*args), by(fn, args)(*args)
        pairs = [torch.autograd.grad(each, of, torch.ones_like(eager)) for each in (eager, found)]
        assert differences(*pairs) == []

    return follow


def export_cut(fn: Callable[..., Any], args: Any) -> Callable[..., Any]:
    return foretrace.capture(fn, args).cut("export")


def by_compile(fn: Callable[..., Any], args: Any) -> Callable[..., Any]:
    return foretrace.compile(fn, fullgraph=True)


def doubled(w: Any) -> Any:
    return w * 2


def tags(w: Any) -> Any:
    w.tag = 1
    return w * 2  # here


def makes_anew(w: Any) -> Any:
    return TwoTensor(w.b + 1, w.a) * 2


refuses("unsupported tensor", "tracer/subclasses/dispatch.py:changed").when(
    captures(tags, two(3, 4)), taken(makes_anew, TWO), OUTSIDE
)


def writes_inside(w: Any) -> Any:
    w.a.add_(1)
    return w * 2  # here


refuses("unsupported tensor", "tracer/subclasses/dispatch.py:changed").when(
    captures(writes_inside, TWO), taken(makes_anew, TWO), OUTSIDE
)


def makes_a_leaf(x: Tensor, y: Tensor) -> Any:
    return TwoTensor(x, y) * 2  # here


def makes_of_detached(x: Tensor, y: Tensor) -> Any:
    return TwoTensor(x.detach(), y.detach()) * 2


LEAVES = X.clone().requires_grad_(), Y.clone().requires_grad_()
refuses("unsupported tensor", "tracer/subclasses/dispatch.py:_new_stand_in").when(
    captures(makes_a_leaf, *LEAVES), taken(makes_of_detached, *LEAVES)
)


def computes_with_what_is_held(w: Any, x: Tensor) -> Tensor:
    return w.a * x  # here


def computes_with_its_memory(w: Any, x: Tensor) -> Tensor:
    return w.a.detach() * x


def computes_with_an_argument(w: Any, x: Tensor) -> Tensor:
    return w.t().t() * x


HELD = "tracer/subclasses/ended_run.py:_goes_on"
OF_LEAVES = TwoTensor(*LEAVES)
refuses("unsupported tensor", HELD).when(
    captures(computes_with_what_is_held, OF_LEAVES, X),
    taken(computes_with_its_memory, OF_LEAVES, X),
    taken(computes_with_an_argument, OF_LEAVES, LEAVES[0]),
)


def makes_of_open_sizes(x: Tensor, y: Tensor) -> Any:
    return TwoTensor(x, y) * 2  # here


refuses("unsupported tensor", "tracer/subclasses/dispatch.py:check_sizes").when(
    captures(makes_of_open_sizes, X, Y, dynamic_shapes=True), taken(makes_of_open_sizes, X, Y)
)


def adds_in_place(w: Any, x: Any) -> Any:
    return w.exp().add_(x)  # here


def adds(w: Any, x: Any) -> Any:
    return w.exp().add(x)


WRITTEN = "tracer/subclasses/writes.py:refused"
refuses("unsupported tensor", WRITTEN).when(
    captures(adds_in_place, FOLLOWED, OTHER), trains(adds, FOLLOWED, OTHER, by=by_compile), OUTSIDE
)


def goes_on_with_a_leaf(w: Any) -> Any:
    with torch.no_grad():
        w.mul_(2)
    return w * 3  # here


def goes_on_with_another(w: Any) -> Any:
    return (w * 2) * 3


refuses("unsupported tensor", "tracer/subclasses/ended_run.py:_check_leaves").when(
    captures(goes_on_with_a_leaf, two(3, 4, grad=True)),
    trains(goes_on_with_another, FOLLOWED, by=by_compile),
    OUTSIDE,
)


def writes_through_a_view(w: Any) -> Any:
    made = w * 2
    made.t().add_(1)  # here
    return made


def writes_whole(w: Any) -> Any:
    made = w * 2
    made.add_(1)
    return made


refuses("unsupported tensor", WRITTEN).when(
    captures(writes_through_a_view, TWO), taken(writes_whole, TWO), OUTSIDE
)


def writes_several(w: Any) -> Any:
    made = w * 2
    torch._foreach_add_([made], 1)  # here
    return made


refuses("unsupported tensor", WRITTEN).when(
    captures(writes_several, TWO), taken(writes_whole, TWO), OUTSIDE
)


def writes_what_is_saved(w: Any, x: Any) -> Any:
    factor = x * 2
    made = w * factor
    factor.add_(1)  # here
    return made


def writes_before(w: Any, x: Any) -> Any:
    factor = x * 2
    factor.add_(1)
    return w * factor


refuses("unsupported tensor", WRITTEN).when(
    captures(writes_what_is_saved, FOLLOWED, OTHER),
    trains(writes_before, FOLLOWED, OTHER, by=by_compile),
    OUTSIDE,
)


class Other(TwoTensor):
    """It doubles one of its two in another memory."""

    @staticmethod
    def __tensor_unflatten__(inner: Any, _none: Any, size: Any, stride: Any) -> "Other":
        return Other(inner["a"], inner["b"], size, stride)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.mul_.Tensor:
            args[0].a = args[0].a * 2
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


def doubles_in_place(w: Any) -> Any:
    w.mul_(2)  # here
    return w + 1


refuses("unsupported tensor", "tracer/subclasses/dispatch.py:changed").when(
    captures(doubles_in_place, Other(X, Y)), taken(makes_anew, TWO), OUTSIDE
)


def hooks_one(x: Tensor, w: Any) -> Any:
    made = w * 2
    made.register_hook(torch.neg)  # here
    return x, made


for asks in (hooks_one,):
    refuses("unsupported tensor", "session/run/grad_attributes.py:_of_a_class").when(
        captures(asks, X, FOLLOWED), OUTSIDE
    )


class Shown(Masked):
    """Its sine is what it holds, turned."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.sin.default:
            return args[0].held.t()
        return super().__torch_dispatch__(func, types, args, kwargs)


def writes_what_is_shown(w: Any) -> Any:
    made = w * 2
    made.sin().add_(1)  # here
    return made


def writes_a_clone_of_it(w: Any) -> Any:
    made = w * 2
    made.sin().clone().add_(1)
    return made


SHOWN = Shown(X, Y > 0)
refuses("unsupported tensor", "tracer/functionalization/in_place_checks.py:check_not_wrapped").when(
    captures(writes_what_is_shown, SHOWN), taken(writes_a_clone_of_it, SHOWN), OUTSIDE
)


class Counting(Int8):
    """A class that computes with what is not its own."""

    beside = torch.ones(5, 1)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        return made if isinstance(made, cls) else made * cls.beside.t()


def by_weight(x: Tensor, w: Any) -> Any:
    return torch.mm(x, w.t())  # here


COUNTING = Counting.of(torch.randn(5, 4))
refuses("unsupported tensor", "tracer/subclasses/dispatch.py:_no_place").when(
    captures(by_weight, X, COUNTING), taken(by_weight, X, WEIGHT), OUTSIDE
)


def writes_held(w: Any) -> Any:
    made = w * 2
    w.a[0].add_(1)  # here
    return made


def writes_a_clone(w: Any) -> Any:
    made = w * 2
    w.a[0].clone().add_(1)
    return made


refuses("unsupported tensor", "tracer/subclasses/ended_run.py:_check_unwritten").when(
    captures(writes_held, TWO), taken(writes_a_clone, TWO), OUTSIDE
)


def writes_what_is_held(x: Tensor, w: Any) -> Any:
    x.add_(1)  # here
    return w * 2


def on_a_clone() -> None:
    x, w = X.clone(), TwoTensor(X, Y)
    found = foretrace.compile(writes_what_is_held, fullgraph=True)(x, w)
    assert differences(w * 2, found) == []
    assert torch.equal(x, X + 1)


HOLDING = TwoTensor(X, Y)
refuses("aliased inputs", "session/run/aliased_inputs.py:check_shared_memory").when(
    captures(writes_what_is_held, X, HOLDING), on_a_clone
)


class Foreign(TwoTensor):
    """Made again it is a TwoTensor."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs)


class Flatless(TwoTensor):
    """Its flattening names what is not there."""

    def __tensor_flatten__(self) -> Any:
        return ["a", "c"], None


def doubled_of_any(w: Any) -> Any:  # here
    return w * 2


refuses("unsupported tensor", "operators/abstract_tensors/subclass_types.py:flattened").when(
    captures(doubled_of_any, Flatless(X, Y)), taken(doubled_of_any, TWO)
)


refuses("unsupported tensor", "operators/abstract_tensors/subclass_types.py:make").when(
    captures(doubled_of_any, Foreign(X, Y)), taken(doubled_of_any, Other(X, Y))
)


class Turning(Int8):
    """Its products lie in columns."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        return made if isinstance(made, cls) else made.t().contiguous().t()


class Onward(Int8):
    """It multiplies in one direction alone."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.mm.default and not args[1].turned:
            raise NotImplementedError("the other way round")
        return super().__torch_dispatch__(func, types, args, kwargs)


TRAINED = X.clone().requires_grad_()
TURNING, ONWARD = Turning.of(torch.randn(5, 4)), Onward.of(torch.randn(5, 4))
refuses("unsupported tensor", "lowering/subclasses/desugar.py:_otherwise").when(
    cuts(by_weight, TRAINED, TURNING),
    trains(by_weight, TRAINED, TURNING, by=by_compile),
    trains(by_weight, TRAINED, TURNING, by=export_cut),
)
refuses("unsupported tensor", "lowering/subclasses/desugar.py:_raises").when(
    cuts(by_weight, TRAINED, ONWARD),
    trains(by_weight, TRAINED, WEIGHT, by=by_compile),
    taken(by_weight, X, ONWARD),
)


def called_with_a_plain_tangent() -> object:
    return foretrace.capture(doubled_of_any, (FOLLOWED,)).cut("joint")(FOLLOWED, tangents=[X])


def with_one_of_the_class() -> None:
    joint = foretrace.capture(doubled_of_any, (FOLLOWED,)).cut("joint")
    _, gradients = joint(FOLLOWED, tangents=[OTHER])
    assert differences(OTHER * 2, gradients["w"]) == []


refuses("wrong tangents", "runtime/calls/tangents.py:_as_it_holds").when(
    called_with_a_plain_tangent, with_one_of_the_class, at=doubled_of_any
)


def wrapping_asked_of_the_aten_cut() -> None:
    foretrace.capture(doubled_here, (FOLLOWED,)).cut("aten")(FOLLOWED).sum().backward()


def doubled_here(w: Any) -> Any:
    return w * 2  # here


refuses("unsupported tensor", "runtime/calls/untrainable_results.py:_opened").when(
    wrapping_asked_of_the_aten_cut,
    trains(doubled_here, FOLLOWED, by=export_cut),
    with_one_of_the_class,
    at=doubled_here,
)


class TakesApart(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        made: Any = TwoTensor(x, y) * 2  # here
        held: Tensor = made.a
        return held


def of_what_is_held(x: Tensor) -> Tensor:
    return x * 2


refuses("unsupported tensor", "frontends/program/export_checks.py:_check_op").when(
    exports(TakesApart(), X, Y), exported(of_what_is_held, TWO.a), captured(of_what_is_held, TWO.a)
)


class GivesWeight(torch.autograd.Function):
    """Gives its weight on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Any) -> Any:
        return w

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None


def given_on(x: Tensor, w: Any) -> Any:
    return GivesWeight.apply(x, w)  # here


def scaled(x: Tensor, w: Any) -> Any:
    return Scaled.apply(x, w, x.new_ones(5))


refuses("unsupported", "tracer/recorder/autograd_function.py:_refuse").when(
    captures(given_on, X, WEIGHT), taken(scaled, X, WEIGHT)
)


class Side(enum.Enum):
    LEFT = 1


class OfASide(nn.Module):
    def forward(self, sides: dict[Any, Tensor]) -> Tensor:  # here
        (x,) = sides.values()
        return x * 2


refuses("unknown container", "frontends/program/export_checks.py:check_keys").when(
    exports(OfASide(), {Side.LEFT: X}), exported(OfASide(), {"left": X})
)


class Held:
    """No dataclass."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Registered(Held):
    """Known to torch."""


torch.utils._pytree.register_pytree_node(
    Registered, lambda held: ([held.x], None), lambda items, _: Registered(*items),
    flatten_with_keys_fn=lambda held: ([(torch.utils._pytree.GetAttrKey("x"), held.x)], None),
    serialized_type_name="tests.refusals.wrapped.Registered",
)  # fmt: skip


class OfAHeld(nn.Module):
    def forward(self, held: Any) -> Tensor:  # here
        out: Tensor = held.x * 2
        return out


class OfADict(nn.Module):
    def forward(self, held: dict[str, Tensor]) -> Tensor:
        return held["x"] * 2


refuses("unknown container", "frontends/program/export_checks.py:check_plain").when(
    exports(OfAHeld(), Held(X)), exported(OfAHeld(), Registered(X)), exported(OfADict(), {"x": X})
)
