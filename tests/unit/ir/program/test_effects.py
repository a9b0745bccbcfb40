"""Effects of a call: each kind has each of its sides, and each side does what it says."""

import functools
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from foretrace.frontends.program.other_graphs import IN_OTHER_GRAPHS
from foretrace.ir.program.effect import Call, Effect
from foretrace.ir.program.effects import (
    KINDS,
    CallMemo,
    ChangePlace,
    FindObject,
    LeaveState,
    ReturnArgument,
    by_kind,
    merged_effects,
    ordered,
)
from foretrace.ir.program.equality import ProgramsDiffer
from foretrace.ir.program.tensor_effects import (
    ClearGrad,
    CountWrite,
    MarkOutput,
    Reshape,
    SetRequiresGrad,
)
from foretrace.ir.pydata.containers import LEAF
from foretrace.ir.pydata.location import Entry, OnGradient
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.memo import MemoCall
from foretrace.ir.pydata.returned import ReturnedAgain, ReturnedArgument
from foretrace.ir.pydata.state import Change, State
from foretrace.ir.values.tensor_type import TensorType
from foretrace.serialization.schema.effect_schema import (
    EFFECTS,
    IN_STATE,
    LEFT_OUT,
    loaded_effects,
    stored_effects,
)

TABLES: dict[str, Collection[type[Effect]]] = {
    "KINDS of ir/program/effects.py (the order in which a call does them)": KINDS,
    "EFFECTS, IN_STATE or LEFT_OUT of serialization/schema/effect_schema.py (files)": {
        *EFFECTS,
        *IN_STATE,
        *LEFT_OUT,
    },
    "IN_OTHER_GRAPHS of frontends/program/other_graphs.py (torch's tools)": IN_OTHER_GRAPHS,
}


def kinds(of: type[Effect] = Effect) -> list[type[Effect]]:
    """All kinds of effect that the package has; a dataclass with slots is made twice."""
    below = [each for kind in of.__subclasses__() for each in (kinds(kind) or [kind])]
    modules = ((each, sys.modules[each.__module__]) for each in below)
    ours = [(each, vars(module)) for each, module in modules if "foretrace." in module.__name__]
    return [each for each, names in ours if names.get(each.__name__) is each]


def lacking(kind: type[Effect]) -> Iterator[str]:
    """The sides that a kind of effect does not have, each with what to do."""
    for name in sorted(kind.__abstractmethods__):
        yield f"{kind.__name__} has no {name}: write the class method, as Effect describes it"
    for table, known in TABLES.items():
        if kind not in known:
            yield f"{kind.__name__} is not in {table}: add a row"


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_a_kind_has_all_sides(kind: type[Effect]) -> None:
    assert [*lacking(kind)] == []


def test_no_table_has_more_than_the_kinds() -> None:
    assert all({*known} == {*kinds()} for known in TABLES.values())
    assert not EFFECTS.keys() & IN_STATE.keys()


def test_a_kind_without_a_side_is_reported() -> None:
    @dataclass(frozen=True)
    class Forgotten(Effect):
        @classmethod
        def run(cls, effects: Any, call: Call) -> None:
            """Nothing."""

    complaints = [*lacking(Forgotten)]
    assert len(complaints) == 2 + len(TABLES)
    assert complaints[0].startswith("Forgotten has no lines: write the class method")
    with pytest.raises(TypeError, match="abstract"):
        Forgotten()  # type: ignore[abstract]


PLACE: dict[str, Any] = {}
ENTRY = Entry("count", PLACE, "count", 0)
FOUND = Entry("kept", PLACE, "kept", None)
"""where the program has a list"""
IN_THE_PROCESS = ReturnedArgument(((False, 1),), (), found=0)
"""what no file returns: its own program builds another"""
TYPE = TensorType((6,), (1,), torch.float32, torch.device("cpu"))


def effects() -> list[Effect]:
    """One of each kind, on a call of two inputs."""
    state = State(OnGradient("x.grad", 0), LEAF, 0, 1, None, {})
    return [
        ReturnArgument(ReturnedArgument(((False, 0),), ((False, 0), (False, 0)))),
        ReturnArgument(IN_THE_PROCESS),
        ReturnArgument(ReturnedArgument(((False, 2),), (), state=0)),
        ReturnArgument(ReturnedAgain(((False, 3),), ((False, 2),))),
        FindObject(FOUND),
        FindObject(None, ((False, 0), (False, 0))),
        SetRequiresGrad(1, on=True),
        ClearGrad(1),
        MarkOutput(0, True, (("scale", 0.5),)),
        LeaveState(state),
        ChangePlace(Change(ENTRY, 5, rebound=True)),
        CallMemo(MemoCall("double(2)", double, (2,), {}, 2, {}, MISSING, 4)),
        Reshape(0, TYPE),
        CountWrite(1),
    ]


@functools.cache
def double(n: int) -> int:
    return n * 2


def a_call() -> Call:
    inputs = [torch.zeros(2, 3), torch.zeros(3)]
    inputs[1].grad = torch.ones(3)
    PLACE.clear()
    PLACE["kept"] = [3]
    double.cache_clear()
    return Call(inputs, {}, ([{"a": 1}], {}), [torch.ones(6)], result=({"a": 2}, [3], None, None))


def holds(call: Call) -> None:
    """Whether a call has done all of them."""
    x, y = call.inputs
    assert (x.shape, PLACE) == ((6,), {"count": 5, "kept": [3]})
    assert x.grad is call.outputs[0]
    assert (type(x.grad), vars(x.grad)) == (torch.nn.Parameter, {"scale": 0.5})
    assert double.cache_info().misses == 1
    assert (y.grad, y.requires_grad) == (None, True)
    given, found, left, again = call.result
    assert again is left
    assert given is call.arguments[0][0]
    assert found is PLACE["kept"]
    assert left is x.grad


def test_a_call_does_them_in_order() -> None:
    call, every = a_call(), ordered(effects())
    assert [*dict.fromkeys(map(type, every))] == [*KINDS]
    for phase in ("memory", "state", "result"):
        for kind, found in by_kind(every, phase):
            kind.run(found, call)
    holds(call)


class Code:
    """Generated code that names objects by number."""

    def __init__(self) -> None:
        self.space: dict[str, Any] = {}
        self.inputs, self.outputs, self.result = ["x", "y"], ["out"], "given"
        self.built = self.found = "()"

    def bind(self, item: object, wish: str) -> str:
        name = f"{wish}_{len(self.space)}"
        self.space[name] = item
        return name

    def name(self, wish: str) -> str:
        return f"new_{wish}"

    def size(self, size: object) -> str:
        return str(size)


def test_generated_code_does_the_same() -> None:
    call, code, lines = a_call(), Code(), list[str]()
    for phase in ("memory", "state", "result"):
        for kind, found in by_kind(ordered(effects()), phase):
            lines += kind.lines(found, code)
    args, kwargs = call.arguments
    x, y = call.inputs
    space = code.space | {
        "x": x, "y": y, "out": call.outputs[0],
        "given": call.result, "args": args, "kwargs": kwargs,
    }  # fmt: skip
    exec("\n".join([*lines, f"result = {code.result}"]), space)  # noqa: S102
    call.result = space["result"]
    holds(call)


def test_inputs_of_another_shape_are_counted_before_the_graph_runs() -> None:
    assert [each.counted for each in ordered(effects())] == [(0,), (1,), *[()] * 12]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Reshape, "gives an input another shape"),
        (CountWrite, "gives a view of an input another shape"),
        (FindObject, "returns, or leaves, an object that was there"),
        (ChangePlace, "count is bound on one side"),
        (LeaveState, "x.grad is bound to a tensor beside"),
        (MarkOutput, "gives a parameter, or sets attributes"),
        (ClearGrad, "sets .grad to None"),
        (SetRequiresGrad, "sets requires_grad"),
        (ReturnArgument, "returns a container or an object of the caller's"),
    ],
)
def test_what_one_run_does_alone_is_refused(kind: type[Effect], what: str) -> None:
    one = [each for each in effects() if isinstance(each, kind)]
    for sides in ((one, []), ([], one)):
        with pytest.raises(ProgramsDiffer, match=what):
            merged_effects(*sides, {0: 0, 1: 1})


def test_what_both_runs_do_is_kept_and_inputs_are_compared_as_both_have_them() -> None:
    both = [each for each in ordered(effects()) if not isinstance(each, LeaveState)]
    assert merged_effects(both, both, {0: 0, 1: 1}) == both
    assert merged_effects([ClearGrad(2)], [ClearGrad(1)], {1: 2}) == [ClearGrad(2)]
    with pytest.raises(ProgramsDiffer):
        merged_effects([ClearGrad(1)], [ClearGrad(1)], {1: 2})


def test_a_file_gives_back_what_it_stores() -> None:
    data = [each for each in effects() if type(each) in EFFECTS]
    data = [x for x in data if x not in (ReturnArgument(IN_THE_PROCESS), FindObject(FOUND))]
    fields = stored_effects(data) | {"names": []}
    assert ordered(loaded_effects(fields)) == ordered(data)
    assert fields == {"names": []}
