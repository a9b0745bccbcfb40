"""`borrowed`: what a run leaves in modules is known, and undone."""

import functools
from typing import Any

import pytest
import torch
from torch import fx, nn

from foretrace.errors import Refusal
from foretrace.ir.pydata.location import Contents
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.source.state_change_lines import Lines
from foretrace.ir.values.tensor_type import TensorType
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.effects.module_owners import names_of_tensors, owners_of
from foretrace.python_state.effects.module_state import borrowed
from tests.support.trees import recorder, tree

NOWHERE = Lines({}, [])
OUTER = nn.Linear(2, 2)
WEIGHT = torch.zeros(2)


WEIGHT = nn.Parameter(torch.zeros(2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("state", torch.zeros(2))
        self.scale, self.table, self.empty = 2, {"a": 1}, []


def abstract() -> Abstract:
    """A tensor of a run."""
    value = tree("%x: f32[2]\n")[0]["x"]
    assert isinstance(value.type, TensorType)
    return recorder().abstract(value)


def by_global(x: Any) -> torch.Tensor:
    return OUTER(x) * WEIGHT


def test_names_in_the_order_of_the_code() -> None:
    """On each Python; a name that is bound to nothing yet is left out."""
    names = [f"layer_{index}" for index in range(7)]
    space = {name: nn.Linear(2, 2) for name in sorted(names, reverse=True)}
    exec(f"def fn(x): return {'(x) + '.join(names)}(x)", space)  # noqa: S102 - made of the names
    assert [*owners_of(space["fn"])] == names  # type: ignore[arg-type]

    def before_it_is_bound(x):
        return later(OUTER(x))

    assert owners_of(before_it_is_bound) == {"OUTER": OUTER}
    later = Net()
    assert [*owners_of(before_it_is_bound)] == ["later", "OUTER"]


def test_the_modules_that_a_callable_reaches_by_name() -> None:
    net = Net()
    traced = fx.symbolic_trace(nn.ReLU())

    def by_closure(x):
        return net(x)

    assert owners_of(net) == {"": net}
    assert owners_of(net.forward) == {"": net}
    assert owners_of(functools.partial(net, 1)) == {"": net}
    assert owners_of(by_closure) == {"net": net}
    assert owners_of(by_global) == {"OUTER": OUTER}
    assert owners_of(fx.Interpreter(traced)) == {"": traced}
    assert owners_of(len) == {}


def test_the_names_of_tensors() -> None:
    own = {id(each): f"OUTER.{name}" for name, each in OUTER.named_parameters()}
    assert names_of_tensors(by_global) == {id(WEIGHT): "WEIGHT", **own}


def test_every_module_has_one_path() -> None:
    net = Net()
    with borrowed({"a": net, "b": net.inner}) as loan:
        assert loan.paths() == {id(net): "a", id(net.inner): "a.inner"}
        assert [state.path for state in loan.states()] == ["a", "a.inner"]


def test_parameters_and_buffers_are_replaced_and_put_back() -> None:
    net, asked = Net(), []
    before = [*net.parameters(), *net.buffers()]

    def placeholder(tensor, kind, name, owner):
        asked.append((kind, name))
        return abstract()

    with borrowed({"": net}) as loan:
        loan.replace(placeholder, lambda tensor: tensor is before[1])
        assert net.inner.weight is not before[0]
        assert net.inner.bias is before[1]  # which the program reaches elsewhere, too
    assert asked == [
        ("buffer", "state"), ("parameter", "inner.weight"), ("parameter", "inner.bias"),
    ]  # fmt: skip
    assert list(map(id, [*net.parameters(), *net.buffers()])) == list(map(id, before))


def test_they_are_put_back_if_the_run_raises() -> None:
    net = Net()
    weight = net.inner.weight
    with pytest.raises(ZeroDivisionError), borrowed({"": net}) as loan:
        raise loan.replace(lambda *_: abstract(), lambda _: False) or ZeroDivisionError
    assert net.inner.weight is weight


def changed(change: Any) -> tuple[list[Any], Net]:
    """What is noted of a change to a net, and the net afterwards."""
    net = Net()
    with borrowed({"": net}) as loan:
        change(net)
        found = [(each.place.name, each.place.before, each.after) for each in loan.changes()]
    return found, net


def test_an_attribute_that_is_bound_is_a_change() -> None:
    found, net = changed(lambda net: setattr(net, "scale", 3))
    assert found == [("scale", 2, 3)]
    assert net.scale == 2


def test_a_new_attribute_is_a_change() -> None:
    found, net = changed(lambda net: setattr(net, "fresh", 3))
    assert found == [("fresh", MISSING, 3)]
    assert not hasattr(net, "fresh")


def test_an_entry_of_a_dict_is_a_change_of_its_own() -> None:
    found, net = changed(lambda net: net.table.update(b=2))
    assert found == [("table", MISSING, 2)]
    assert net.table == {"a": 1}


def test_a_list_that_is_filled_is_a_content_that_is_left() -> None:
    net = Net()
    with borrowed({"": net}) as loan:
        net.empty.append(1)
        assert not loan.changes()
        (left,) = loan.bound()
    assert isinstance(left.place, Contents)
    assert (left.name, left.place.before, left.after) == ("empty", [], [1])
    assert net.empty == []


def test_what_is_bound_to_the_same_is_no_change() -> None:
    assert changed(lambda net: setattr(net, "scale", 2))[0] == []


def test_a_buffer_that_is_bound_says_what_it_was() -> None:
    net, new = Net(), torch.ones(2)
    with borrowed({"": net}) as loan:
        before, net.state = net.state, new
        ((one, two, owner),) = loan.rebound()
        assert one is before
        assert two is new
        assert owner == (net, "state")
    assert net.state is before


def refused(change: Any, placeholders: Any = ()) -> None:
    net = Net()
    with borrowed({"": net}) as loan:
        change(net)
        loan.check_attributes(dict(enumerate(placeholders)), NOWHERE)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda net: net.register_buffer("more", torch.zeros(1)), "parameters or buffers of Net"),
        (lambda net: delattr(net.inner, "bias"), "parameters or buffers of inner"),
        (lambda net: net.register_forward_hook(print), "hooks of Net"),
        (lambda net: setattr(net, "last", abstract()), "the attribute `last` of Net"),
        (lambda net: setattr(net.inner, "bias", WEIGHT), "the parameter `bias` of inner"),
        (lambda net: net.empty.append(abstract()), "the attribute `empty` of Net"),
    ],
)
def test_what_a_run_may_not_leave_in_a_module(change: Any, what: str) -> None:
    with pytest.raises(Refusal, match=what) as refusal:
        refused(change)
    assert refusal.value.kind == "side effect"


def test_what_stands_for_an_input_may_be_kept() -> None:
    given = abstract()
    refused(lambda net: setattr(net, "last", given), [given])


def test_a_module_without_python_is_refused() -> None:
    with pytest.raises(Refusal, match="TorchScript"), borrowed({"": scripted()}):
        pass


def scripted() -> nn.Module:
    """A module that says that it is one of TorchScript; to make one takes a compiler."""
    module = nn.Linear(1, 1)
    module.__class__ = type("Scripted", (nn.Linear, torch.jit.ScriptModule), {})
    return module
