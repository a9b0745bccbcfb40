"""Refuses arguments and results that torch.export cannot store."""

from typing import Any

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.pydata.containers import Structure
from foretrace.ir.source.state_change_lines import attribute
from foretrace.lowering.emit.export_graph import spelled


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
        raise Refusal(
            f"{what} is a {name}, which torch's pytree does not know",
            kind="unknown container",
            do=(register, "or use dicts and tuples, or pass what it holds"),
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
    if not spelled(leaf):
        raise Refusal(
            f"{what} is a {type(leaf).__name__}, which an exported program cannot hold",
            kind="unknown value",
            do="use tensors, numbers, strings and None",
        )
