"""A graph in three parts; a compiler that knows tensors alone gets the one in the middle.

Before it run random ops, what Python computes of numbers, and the questions of these. After it run
views, as a compiler's results lie in memory of their own.
"""

import copy
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from foretrace.autograd.eager_history.op_facts import locate
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.nested import leaves
from foretrace.lowering.emit.calling_convention import constants_passed

aten = torch.ops.aten
OF_TENSORS: Final[Mapping[Any, Any]] = MappingProxyType(
    {
        aten.add.Scalar: aten.add.Tensor,
        aten.sub.Scalar: aten.sub.Tensor,
        aten.mul.Scalar: aten.mul.Tensor,
        aten.div.Scalar: aten.div.Tensor,
        aten.pow.Tensor_Scalar: aten.pow.Tensor_Tensor,
        **{
            each: each
            for each in (
                aten.add.Tensor,
                aten.sub.Tensor,
                aten.mul.Tensor,
                aten.div.Tensor,
            )
        },
    }
)
"""What takes a tensor in the place of a number; eager computes with both in the result's type"""
FILLS: Final = frozenset({aten.full.default, aten.full_like.default, aten.scalar_tensor.default})
ASKS: Final = ("_assert_async", "_assert_scalar")


NOT_IN_ARRAYS: Final = frozenset(
    (torch.bfloat16, torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2)
)
"""Dtypes that numpy lacks: its arrays are what compilers take and give"""


@dataclass(frozen=True, slots=True)
class Parts:
    """Three graphs, and what goes from one to the next.

    `before` takes the inputs of the graph, and gives the last inputs of `middle`; the others are
    those at `places`. `after` takes the inputs and the results of `middle`.
    """

    before: fx.GraphModule
    middle: fx.GraphModule
    after: fx.GraphModule
    inputs: list[fx.Node]
    places: tuple[int, ...]
    computed: list[fx.Node]
    """what `middle` gives"""
    constants: list[Tensor]
    """tensors that the graph holds: the last ones of its inputs"""


def parted(module: fx.GraphModule, example: Sequence[Any]) -> Parts:
    """The parts of a functional graph, which stays as it is.

    Args:
        module: the graph.
        example: its inputs, for the types of a graph that has none in `meta["val"]`.

    Raises:
        Refusal: a size is open, or an operator takes a number that only a run has.
    """
    module = fx.GraphModule(module, copy.deepcopy(module.graph))
    if any("val" not in node.meta for node in module.graph.nodes if node.op != "output"):
        FakeTensorProp(module).propagate(*example)
    _, constants = constants_passed(module, [])
    inputs = module.graph.find_nodes(op="placeholder")
    results: Any = module.graph.output_node().args[0]
    asked = [node for node in module.graph.nodes if _runs_before(node)]
    early = _read_by(asked, inputs)
    owners = {_owner(node): None for node in leaves(results) if isinstance(node, fx.Node)}
    computed = [node for node in owners if node.op != "placeholder" and node not in early]
    inside = _read_by(computed, (*inputs, *early))
    sources = {n: None for node in inside for n in node.all_input_nodes if n not in inside}
    passed = [node for node in sources if node in inputs and _of_tensors(node)]
    drawn = [node for node in sources if node not in inputs and _of_tensors(node)]
    numbers = [node for node in sources if not _of_tensors(node)]
    middle = _part(module, [*passed, *drawn, *numbers], computed)
    _check_types(middle)
    for node in middle.graph.find_nodes(op="placeholder")[len(passed) + len(drawn) :]:
        _as_tensor(node)
    before = _part(module, inputs, [*drawn, *numbers], asked)
    after = _part(module, [*inputs, *computed], results)
    places = tuple(map(inputs.index, passed))
    return Parts(before, middle, after, inputs, places, computed, constants)


def _runs_before(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    asks = getattr(node.target, "__name__", "").startswith(ASKS)
    return drawn or asks or not _of_tensors(node)


def _of_tensors(node: fx.Node) -> bool:
    return any(isinstance(each, Tensor) for each in leaves(node.meta.get("val")))


def _read_by(wanted: Iterable[fx.Node], sources: Collection[fx.Node]) -> dict[fx.Node, None]:
    """Nodes, and what they read of the graph, but for the sources."""
    found, waiting, known = dict[fx.Node, None](), [*wanted], set(sources)
    while waiting:
        node = waiting.pop()
        if node not in known:
            known.add(node)
            found[node] = None
            waiting += node.all_input_nodes
    return found


def _part(
    module: fx.GraphModule, sources: Iterable[fx.Node], results: Any, also: Iterable[fx.Node] = ()
) -> fx.GraphModule:
    """A graph from some nodes to others; `also`: what runs beside."""
    graph, known = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in sources:
        known[node] = graph.placeholder(node.name)
        known[node].meta.update(node.meta)
    wanted = (node for node in leaves(results) if isinstance(node, fx.Node))
    inside = _read_by([*wanted, *also], known)
    for node in module.graph.nodes:
        if node in inside:
            known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(fx.map_arg(results, known.__getitem__))
    return fx.GraphModule(module, graph)


def _owner(node: fx.Node) -> fx.Node:
    """What has the memory of a node's value: itself, or what it is a view of."""
    while node.op == "call_function":
        of: Any = node.args[0] if node.args else None
        viewed = of if node.target is operator.getitem else node
        if not (isinstance(of, fx.Node) and _is_view(viewed)):
            break
        node = of
    return node


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    alias = schema.arguments[0].alias_info if schema and schema.arguments else None
    return alias is not None and not alias.is_write


# ---- numbers -------------------------------------------------------------------------------------


def _as_tensor(number: fx.Node) -> None:
    """Let an input that is a number be a tensor of one element, of the type that it is used in."""
    like = None
    for user in list(number.users):
        result, found = user.meta["val"], number
        if like is None:
            like = number.meta["val"] = result.new_empty(())
        with number.graph.inserting_before(user):
            if result.dtype != like.dtype:
                found = _call(
                    result.new_empty(()), aten._to_copy.default, number, dtype=result.dtype
                )
            _take(user, number, found)


def _take(user: fx.Node, number: fx.Node, found: fx.Node) -> None:
    """Let a node take a tensor in the place of a number.

    Raises:
        Refusal: its operator has no form that does.
    """
    if user.target in FILLS:
        shape = [*user.meta["val"].shape]
        filled = _call(user.meta["val"], aten.expand.default, found, shape)
        user.replace_all_uses_with(filled)
        user.graph.erase_node(user)
        return
    if user.target not in OF_TENSORS:
        what = f"{user.target} takes a number that only a run has"
        raise _refusal(user, what, "or compute with a tensor in the place of the number")
    if user.kwargs.get("alpha") is number:
        other: Any = user.args[1]
        scaled = _call(other.meta["val"], aten.mul.Tensor, other, found)
        user.args, user.kwargs = (user.args[0], scaled), {}
    user.target = OF_TENSORS[user.target]
    user.replace_input_with(number, found)


def _call(val: Any, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    node: fx.Node = args[0].graph.call_function(target, args, kwargs)
    node.meta["val"] = val
    return node


def _check_types(middle: fx.GraphModule) -> None:
    passed = {
        *middle.graph.find_nodes(op="placeholder"),
        *middle.graph.output_node().all_input_nodes,
    }
    for node in middle.graph.nodes:
        for each in leaves(node.meta.get("val")):
            if isinstance(each, Tensor) and any(type(n) is not int for n in each.shape):
                what = f"a size of {node.name} is open: {list(each.shape)}"
                raise _refusal(node, what, "or leave no size open: dynamic=False")
            if node in passed and isinstance(each, Tensor) and each.dtype in NOT_IN_ARRAYS:
                what = f"{node.name} is of {each.dtype}, and no array that is handed over can be"
                raise _refusal(node, what, "or compute in float32")


def _refusal(node: fx.Node, what: str, way: str) -> Refusal:
    op = node.meta.get("foretrace")
    refusal = Refusal(what, kind="compiler", do=('use backend="eager" or "inductor"', way))
    if isinstance(op, Op) and op.origin.frame:
        return locate(refusal, op)
    return refusal.located(asking_line(), (), ())
