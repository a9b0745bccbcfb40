"""Refuses arguments, results and ops that an ExportedProgram cannot store."""

from collections.abc import Iterable, Iterator
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.autograd.eager_history.op_facts import locate
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Output
from foretrace.ir.program.names import called_like_a_keyword
from foretrace.ir.program.op import Op, Subgraph
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import subgraphs_of
from foretrace.ir.pydata.containers import Structure
from foretrace.ir.source.state_change_lines import attribute
from foretrace.ir.values.value import Tree, Value
from foretrace.lowering.emit.graph_module import LITERAL_TYPES
from foretrace.lowering.pipelines.passes import Context, as_pass
from foretrace.operators.abstract_tensors.subclass_types import Unwrap, Wrap

STORED_TYPES = (Value, sympy.Basic, complex)
"""Arguments that a file holds beside literals"""


def check_plain(structure: Structure, what: str) -> None:
    """Refuse a class that torch's pytree does not know.

    Raises:
        Refusal: there is one.
    """
    if structure.objects:
        kind = structure.objects[0][1]
        name, data = kind.__name__, attribute(kind, "__dataclass_fields__")
        register = (
            f"torch.export.register_dataclass({name})"
            if data
            else f"torch.utils._pytree.register_pytree_node({name}, flatten, unflatten,"
            " flatten_with_keys_fn=..., serialized_type_name=...)"
        )
        known = (register, "or use dicts and tuples, or pass what it holds")
        plain = "pass, and return, what .as_subclass(torch.Tensor) gives"
        raise Refusal(
            f"{what} is a {name}, which torch's pytree does not know",
            kind="unknown container",
            do=plain if torch_api.calls_function(kind) else known,
        )


def check_keys(structure: Structure) -> None:
    """Refuse containers whose items an `ExportedProgram` cannot name.

    Raises:
        Refusal: there is one.
    """
    kind = torch_api.without_keys(structure.spec)
    if kind is not None:
        raise Refusal(
            f"an argument is a {kind.__name__}, which torch's pytree knows without keys",
            kind="unknown container",
            do="give register_pytree_node its flatten_with_keys_fn",
        )
    for key in torch_api.keys_in(structure.spec):
        if not isinstance(key, (str, int, float)):
            raise Refusal(
                f"an argument is a dict with the key {key!r}, which torch writes as Python code",
                kind="unknown container",
                do="let its keys be strings or numbers",
            )


def check_leaf(leaf: Any, what: str) -> None:
    """Refuse a leaf that an ExportedProgram cannot store.

    Raises:
        Refusal: it is one.
    """
    if not returnable(leaf):
        raise Refusal(
            f"{what} is a {type(leaf).__name__}, which an exported program cannot hold",
            kind="unknown value",
            do="use tensors, numbers, strings and None",
        )


def check_interface(recorded: Recording, outputs: Iterable[Output]) -> None:
    """Refuse arguments and results that an ExportedProgram cannot store."""
    check_plain(recorded.requires.in_structure, "an argument")
    check_keys(recorded.requires.in_structure)
    check_plain(recorded.out_structure, "what the program returns")
    for name, leaf in recorded.requires.constants.items():
        check_leaf(leaf, f"the argument {name}")
    for output in outputs:
        check_leaf(output.value, f"the output {output.role.name}")


@as_pass("check file")
def check_ops(graph: Graph, _: Context) -> Graph:
    """Refuse ops that an ExportedProgram cannot store."""
    for op in _emitted(graph.ops):
        _check_op(op)
    return graph


def _emitted(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops, and those of the programs that they hold."""
    for op in ops:
        yield op
        yield from _emitted(inner for program in subgraphs_of(op) for inner in program.ops)


def _check_op(op: Op) -> None:
    """Refuse an op that a graph can have and an ExportedProgram cannot store."""
    if isinstance(op.target, Unwrap | Wrap):
        raise locate(Refusal(
            "the program takes what a tensor class of its own holds, or makes such a tensor, which"
            " no file can hold",
            kind="unsupported tensor",
            do=("do it outside of the exported program, and pass what is held as arguments",
                "or use foretrace.capture(...).cut('export')"),
        ), op)  # fmt: skip
    if is_function(op) and not torch_api.stored_in_files(op.target.function):
        raise locate(Refusal(
            f"{op.target} is an autograd.Function, which no file can hold",
            kind="autograd.Function",
            do=("register it with torch.library.custom_op and register_autograd",
                "export it under torch.no_grad(), if the result is not to be trained"),
        ), op)  # fmt: skip
    if any(isinstance(arg, torch.Generator) for arg in (*op.args, *op.kwargs.values())):
        raise locate(Refusal(
            f"{op.target} draws from a generator of its own, which no file can hold",
            kind="generator",
            do="draw from the default generator, or pass the numbers as an argument",
        ), op)  # fmt: skip
    if called_like_a_keyword(op.target):
        raise locate(Refusal(
            f"torch writes {op.target} as text that is no Python",
            kind="unsupported",
            do=("leave the lower bound away: random_(to) begins at 0",
                "torch.randint_like(x, low, high), on which no gradient depends either"),
        ), op)  # fmt: skip
    for leaf in torch_api.tree_leaves((op.args, op.kwargs)):
        if isinstance(leaf, Subgraph):
            continue
        if type(leaf) not in LITERAL_TYPES and not isinstance(leaf, STORED_TYPES):
            raise locate(Refusal(
                f"{op.target} is given a {type(leaf).__name__}, which no file can hold",
                kind="unknown value", do="use tensors, numbers, strings and None",
            ), op)  # fmt: skip


def is_function(op: Op) -> bool:
    """Whether an op is the call of an autograd.Function."""
    return hasattr(op.target, "as_module") and not isinstance(op.target, Unwrap | Wrap)


def returnable(value: Tree) -> bool:
    """Whether an exported graph can return it."""
    return value is None or isinstance(value, (Value, sympy.Basic, bool, int, float, str))
