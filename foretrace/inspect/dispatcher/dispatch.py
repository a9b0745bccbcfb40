"""`foretrace.dispatch`: how the key set of one call resolves."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.errors import Attempt
from foretrace.inspect.dispatcher import names as named
from foretrace.inspect.dispatcher.calls import KeySet, key_set_of, sets_for, sets_of
from foretrace.inspect.dispatcher.registrations import fallbacks
from foretrace.inspect.dispatcher.resolution import Dispatch, Step
from foretrace.inspect.dispatcher.rules import (
    ALIASES,
    AUTOGRAD,
    DIRECT,
    FALLBACK,
    IMPLICIT,
    MISSING,
    NESTED,
)
from foretrace.inspect.dispatcher.table import Served, Table, built_with
from foretrace.ir.program.interface import Target
from foretrace.ir.source.short_tracebacks import Hiding
from foretrace.operators.targets.build import SHIPPED, Build, build_named, build_of
from foretrace.operators.targets.profile import target_of

SELECT: Final = "BackendSelect"
PYTHON_DISPATCHER: Final = "PythonDispatcher"
TRANSFORMS: Final = "FuncTorchDynamicLayerFrontMode"
"""The key that calls the same operator again for the innermost transform"""
HANDS_ON: Final = frozenset({
    PYTHON_DISPATCHER, "PreDispatch", "PythonTLSSnapshot", "Tracer", "ADInplaceOrView",
    SELECT, "Conjugate", "Negative", "ZeroTensor",
})  # fmt: skip
"""Keys other than autograd's whose kernels redispatch the same call"""
COMPOSITES: Final = frozenset(ALIASES) - {AUTOGRAD}
DOES: dict[str, str] = {
    PYTHON_DISPATCHER: "asks Python for the kernel of the next key, at each key anew",
    "PreDispatch": "asks the modes of torch.export that run before autograd",
    TRANSFORMS: "hands the call to the innermost transform of torch.func",
    "FuncTorchDynamicLayerBackMode": "leaves that transform, and calls again",
    "PythonTLSSnapshot": "notes the thread's keys for the modes below, and hands on",
    "Functionalize": "calls the functional form, and copies what is written",
    "Python": "asks the innermost mode, else the subclass: __torch_dispatch__",
    SELECT: "takes the backend from the argument `device`, and hands on",
    "ADInplaceOrView": "notes a view or a write, and hands on",
    "Conjugate": "resolves conjugated operands, and hands on",
    "Negative": "resolves negated operands, and hands on",
    "ZeroTensor": "makes zeros of operands that are zero tensors, and hands on",
    "Tracer": "notes the call for torch.jit.trace, and hands on",
}
"""What the kernel at a key does"""
BATCHES: dict[str, str] = {
    DIRECT: "applies the batching rule of torch.vmap, and calls without this level",
    FALLBACK: "has no batching rule: is called for each example, in a loop",
}
"""What the kernel at the key of torch.vmap does"""


@Hiding()
def dispatch(
    op: Any,
    *,
    device: str | torch.device | Target = "cpu",
    requires_grad: bool = False,
    mode: str | Sequence[str] = (),
    key: str | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Dispatch:
    """How the dispatcher resolves one call of an operator: its keys, and the kernel of each.

    Nothing runs. Of a device that the build lacks, the kernels of a build with it are data.

    Args:
        op: an OpOverload, or a name: "aten::mul.Tensor", "aten.mul.Tensor", "rms_norm".
        device: the device of all tensor arguments; a target's name or a device's.
        requires_grad: whether an operand requires grad.
        mode: the modes of `named.MODES` around the call, from the outside in.
        key: resolve this key alone, whatever the call's set is.
        args: real operands, whose keys replace those of plain tensors.
        kwargs: the same, by name.

    Raises:
        Refusal: there is no such operator, mode, key or device; it lists the nearest names.
    """
    overload, around, (kind, build) = named.operator(op), named.modes(mode), _device(device)
    plain = args is None and kwargs is None
    sets = sets_for(overload, kind) if plain else sets_of(overload, args or (), kwargs or {})
    for wrapped in (named.WRAPPED[each] for each in around if plain and each in named.WRAPPED):
        sets = {name: torch_api.with_key(keys, wrapped) for name, keys in sets.items()}
    trains = requires_grad or any(_requires_grad(args or (), kwargs or {}))
    keys, grad_mode = _keys_in(around, kind, sets)
    if key is not None:
        keys = KeySet((), (named.key(key),), has_tensors=True)
    table = Table(overload, fallbacks(), build)
    steps = _steps(table, keys, kind, _why_untaped(trains, grad_mode))
    note = "" if build is None else f"kernels of {build}"
    return Dispatch(overload.name(), kind, trains, around, keys.keys, tuple(steps), note)


def _keys_in(modes: Sequence[str], device: str, sets: Mapping[str, Any]) -> tuple[KeySet, bool]:
    """The key set under these modes, and the grad mode."""
    with ExitStack() as stack:
        for name in modes:
            stack.enter_context(named.MODES[name](device))
        return key_set_of(sets), torch.is_grad_enabled()


def _why_untaped(trains: bool, grad_mode: bool) -> str:
    """Why autograd adds no node; empty where it does."""
    if not grad_mode:
        return "grad mode is off"
    return "" if trains else "nothing requires grad"


def _device(device: str | torch.device | Target) -> tuple[str, Build | None]:
    """The type of a device, or of a target's; a build that has it where this one does not."""
    target = device if isinstance(device, Target) else None
    if not isinstance(device, Target):
        with Attempt(RuntimeError) as attempt:
            kind = torch.device(device).type
        if attempt.error is not None:
            target = target_of(str(device), torch.device("cpu"))
    if target is not None:
        kind = target.device.type
    if built_with(kind):
        return kind, None
    known = build_named(kind) if kind in SHIPPED else None
    return kind, known if target is None else build_of(target)


def _requires_grad(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[bool]:
    each = (*args, *kwargs.values())
    flat = [item for one in each for item in (one if isinstance(one, (list, tuple)) else [one])]
    return [item.requires_grad for item in flat if isinstance(item, torch.Tensor)]


def _steps(table: Table, keys: KeySet, device: str, untaped: str) -> list[Step]:
    """The keys by priority, each with its kernel; Undefined if all kernels fall through."""
    asked, python = list(keys.asked), PYTHON_DISPATCHER in keys.asked
    fall = {key: table.at(key).falls for key in asked}
    if all(fall.values()):
        asked.append(torch_api.UNDEFINED)
    elif not keys.has_tensors and not fall.get(SELECT, True):
        asked.append(torch_api.backend_key(device))
    steps, reached = [], True
    for key in asked:
        table_says, python_says = table.at(key), table.in_python(key)
        taken = table.taken_by(python_says) if python and key != PYTHON_DISPATCHER else table_says
        steps.append(Step(key, taken, reached, does(key, taken, untaped), table_says, python_says))
        reached = reached and (taken.falls or key == TRANSFORMS or hands_on(key, taken))
    return steps


def _is_autograd(key: str) -> bool:
    """Whether a key is one of autograd's."""
    return key.startswith("Autograd")


def hands_on(key: str, served: Served) -> bool:
    """Whether the kernel redispatches the same call to the keys below."""
    if served.rule in COMPOSITES or served.rule == MISSING:
        return False
    return _is_autograd(key) or key in HANDS_ON


def does(key: str, served: Served, untaped: str = "") -> str:
    """What the kernel of a key does, in words.

    Args:
        key: the key.
        served: the kernel that serves it.
        untaped: why autograd adds no node; empty where it does.
    """
    if served.rule == MISSING:
        return "raises: there is no kernel"
    if served.falls:
        return "passed over"
    if key == named.BATCHED_KEY:
        return BATCHES.get(served.rule, "takes it apart; vmap sees the pieces")
    if served.rule in (IMPLICIT, NESTED):
        above = _is_autograd(key)
        return (
            "takes it apart; autograd sees the pieces" if above else "takes it apart below autograd"
        )
    if _is_autograd(key):
        return _autograd_does(served, untaped)
    if key.startswith("Autocast"):
        return "casts the operands, and calls again without this key"
    if key in DOES:
        return DOES[key]
    return "runs" if served.rule in (DIRECT, FALLBACK) else "runs: one kernel for every backend"


def _autograd_does(served: Served, untaped: str) -> str:
    if served.rule == FALLBACK:
        return "has no derivative: hands on, and a backward through it warns or raises"
    how = f"puts no node on the tape, as {untaped}" if untaped else "puts a node on the tape"
    return f"{how}; hands on"
