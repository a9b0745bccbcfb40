"""The state of autocast during a capture: the devices, the cached casts, and where it acts.

While a mode handles a call, torch says that autocast is off. So functions here replace those that
`torch.autocast` calls.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NoReturn

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Attempt, Refusal
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.origin import Choice
from foretrace.ir.program.walk import leaf_ops
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.nested import leaves, map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.supported_inputs import plain_class

INSIDE = Choice(
    "autocast", "opened", "autocast casts what is inside it, which a call of it outside would not"
)


class Casts:
    """The state of autocast during one capture."""

    def __init__(self) -> None:
        self.devices = torch_api.autocast_devices()
        self._caching = torch.is_autocast_cache_enabled()
        self._known: dict[tuple[int, torch.dtype], Abstract] = {}
        """by the leaf itself: after a write, torch does not cast it again"""
        self._shielded = False
        self.regions: tuple[str, ...] = ()
        """the devices of the contexts of autocast in which the program is"""
        self._around, self._set = list[tuple[str, ...]](), ""

    # ---- replacements of torch's functions ------------------------------------------------------

    def switching(self, original: Callable[..., None]) -> Callable[..., None]:
        """`torch.set_autocast_enabled`, which updates the state."""

        def set_autocast_enabled(*args: Any) -> None:
            original(*args)
            self.devices = torch_api.autocast_devices()
            self._set = args[0] if isinstance(args[0], str) else "cuda"

        return set_autocast_enabled

    def entering(self, original: Callable[[], int]) -> Callable[[], int]:
        """`torch.autocast_increment_nesting`: a context begins, which has just set its device."""

        def autocast_increment_nesting() -> int:
            self._around.append(self.regions)
            self.regions = (*self.regions, self._set)
            return original()

        return autocast_increment_nesting

    def leaving(self, original: Callable[[], int]) -> Callable[[], int]:
        """`torch.autocast_decrement_nesting`: the innermost context ends."""

        def autocast_decrement_nesting() -> int:
            self.regions = self._around.pop() if self._around else ()
            return original()

        return autocast_decrement_nesting

    def cache(self, enabled: bool) -> None:
        """Replaces `torch.set_autocast_cache_enabled`. torch's own cache stays off.

        It caches casts of leaves, and takes every abstract tensor for a leaf.
        """
        self._caching = enabled

    def caching(self) -> bool:
        """Replaces `torch.is_autocast_cache_enabled`."""
        return self._caching

    def forget(self) -> None:
        """Replaces `torch.clear_autocast_cache`: an outermost region has ended."""
        self._known.clear()

    @contextmanager
    def separate_cache(self) -> Iterator[None]:
        """Use an empty cache of casts inside, and the old one again outside."""
        with torch_api.switched(vars(self), _known={}):
            yield

    @property
    def kept(self) -> bool:
        """Whether a cast of a leaf is cached."""
        return bool(self._known)

    # ---- cached casts of leaves -----------------------------------------------------------------

    def remembers(self, tensor: Any, dtype: Any = None, *rest: Any) -> bool:
        """Whether a call is autocast's own cast of a leaf to its lower precision.

        Source: cached_cast in aten/src/ATen/autocast_mode.cpp.
        """
        if not (self.devices and isinstance(tensor, Abstract)) or tensor.ft_asked or rest:
            return False
        return self.keeps(tensor) and dtype in self._lower_precisions()

    def keeps(self, tensor: Abstract) -> bool:
        """Whether autocast caches the cast of a tensor to lower precision.

        Not of a leaf that is a view (`t[::2].requires_grad_()`).
        """
        alias, leaf = tensor.ft_alias, self._caching and tensor.ft_leaf and tensor.requires_grad
        return leaf and tensor.dtype is torch.float32 and (alias is None or alias.based)

    def once(self, tensor: Abstract, dtype: torch.dtype, record: Callable[..., Any]) -> Any:
        """The cached cast of a leaf, or a new one.

        Autograd follows it under no_grad too, as a later use may need a gradient.
        """
        key = (id(tensor), dtype)
        if key not in self._known:
            tensor.ft_asked = True
            with torch.enable_grad():
                self._known[key] = record(torch.ops.aten.to.dtype, (tensor, dtype))
            tensor.ft_asked = False
        return self._known[key]

    def _lower_precisions(self) -> set[torch.dtype]:
        return {torch.get_autocast_dtype(device) for device in self.devices}

    def check_asked(self, recorder: Any, func: Any, operands: Any) -> None:
        """Refuse an operand that autocast has asked for a device that it is not on to the program.

        It casts an operand, or not, before the recorder sees the call.

        Raises:
            Refusal: it is one.
        """
        real = [operand for operand in leaves(operands) if plain_class(type(operand))]
        if not real or not (func is torch.ops.aten.to.dtype or self._knows(func)):
            return
        for tensor in real:
            there = torch_api.attribute_of(recorder.answers.lift(tensor), "device").type
            if there != torch_api.attribute_of(tensor, "device").type:
                raise recorder.refused(
                    Refusal(
                        "autocast is on where the program meets a tensor that"
                        f" `model.to({there!r})` moves, and that nothing stands for",
                        kind="autocast",
                        at=asking_line(),
                        do="capture the module itself, or pass it as an argument",
                    )
                )

    # ---- inside composites -----------------------------------------------------------------------

    def state(self) -> Any:
        """The state that a composite's body depends on; None while autocast is off."""
        if not self.devices:
            return None
        dtypes = tuple(map(torch.get_autocast_dtype, sorted(self.devices)))
        return (self.devices, dtypes, self._shielded)

    def acts_inside(self, func: Any) -> bool:
        """Whether autocast acts on the operators inside a composite that it does not know."""
        if isinstance(func, torch_api.HigherOrderOperator):
            return False  # its subgraphs run as the program does
        return bool(self.devices) and not self._knows(func) and not self._shielded

    def _knows(self, func: Any) -> bool:
        return any(torch_api.autocast_knows(func, device) for device in self.devices)

    def off(self) -> AbstractContextManager[None]:
        """Turn autocast off, as eager has it off inside a `__torch_dispatch__`."""
        return self._acting(acts=False)

    def inside(self, func: Any) -> AbstractContextManager[None]:
        """Set the autocast that eager has inside the body of a composite."""
        return self._acting(acts=self.acts_inside(func))

    @contextmanager
    def _acting(self, *, acts: bool) -> Iterator[None]:
        if not self.devices:
            yield
            return
        shielded = torch_api.switched(vars(self), _shielded=not acts)
        with shielded, torch_api.autocast_seen(self.devices if acts else frozenset()):
            yield


class _ReachedError(Exception):
    """Carries the operator that a mode was the first to see."""


class _First(torch_api.TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, *_: object, **__: object) -> NoReturn:
        raise _ReachedError(func)


def first_cast(ops: Iterable[Op], like: Callable[[TensorType], torch.Tensor]) -> Op | None:
    """The first op of which autocast, as it is now, casts an operand. Nothing runs.

    Args:
        ops: whose leaves are asked about.
        like: creates a tensor of the dtype, the device and the rank of a type.
    """
    devices = torch_api.autocast_devices()
    for op in leaf_ops(ops):
        known = isinstance(op.target, torch_api.OpOverload) and op.operands
        if not known or not any(torch_api.autocast_knows(op.target, each) for each in devices):
            continue
        args, kwargs = map_tree((op.args, op.kwargs), partial(_example, like))
        mode: Any = _First  # torch's own has no types
        with mode(), Attempt(_ReachedError) as attempt:
            op.target(*args, **kwargs)
        if attempt.error is not None and attempt.error.args[0] is not op.target:
            return op
    return None


def _example(like: Callable[[TensorType], torch.Tensor], leaf: Any) -> Any:
    """A leaf of a call, where only dtypes matter: an open size is any number."""
    if isinstance(leaf, Value):
        return like(leaf.type)
    return 1 if isinstance(leaf, sympy.Basic) else leaf


class CastsAround:
    """What autocast around a backward would cast of its ops in eager; no graph has such casts.

    `ops`: those of the backward's graph.
    """

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops, self._known = ops, dict[Any, Op | None]()

    def check(self) -> None:
        """Refuse a backward under autocast whose forward ran without, if it casts something.

        Raises:
            Refusal: it does.
        """
        devices = torch_api.autocast_devices()
        if not devices:
            return
        state = (*((each, torch.get_autocast_dtype(each)) for each in devices),)
        if state not in self._known:
            self._known[state] = first_cast(self._ops, _of_rank)
        if (op := self._known[state]) is not None:
            raise Refusal(
                "the backward runs under autocast, which casts what"
                f" {target_name(op.target)} gets, and the graph has no such cast",
                kind="autocast",
                at=asking_line(),
                do=("call backward() outside of torch.autocast", 'or use backend="eager"'),
            )


def _of_rank(type: TensorType) -> torch.Tensor:
    return torch.empty([0] * len(type.shape), dtype=type.dtype, device=type.device)
