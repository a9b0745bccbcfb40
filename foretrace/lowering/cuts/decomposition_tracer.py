"""Semantics of operators where a decomposition table comes before the target; `level="core"`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.errors import Refusal, Refusing
from foretrace.ir.program.op import target_name
from foretrace.ir.program.origin import Choice
from foretrace.ir.source.call_site import Sources
from foretrace.ir.values.value import Tree, Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.inference.semantics_protocol import Semantics
from foretrace.operators.schemas.cache import Cache, Learned
from foretrace.operators.schemas.dispatch_result import Outcome
from foretrace.tracer.functionalization.builder import WithoutExample
from foretrace.tracer.recorder.recorder import Recorder

aten = torch.ops.aten

Table: TypeAlias = Mapping[Any, Callable[..., Any]]
"""What torch takes as `decompositions=`: for an OpOverload, a function of its arguments."""
TABLE_ENTRY = Choice("decomposition", "opened", "the decomposition table given has an entry for it")


class Entries(Semantics):
    """Semantics of a recorder: the table first, then the target; autograd follows nothing.

    Raises:
        Refusal: the table is none.
    """

    def __init__(self, table: Table, target: TargetSemantics) -> None:
        self.table, self.target, self.inference = _checked(table), target, target.inference
        self.learned = Learned()  # of this table: its functions may change

    def body_kernel(
        self, func: Any, args: Tree, kwargs: dict[str, Tree]
    ) -> tuple[Callable[..., Any] | None, Choice | None]:
        """The decomposition; without one, what decomposes the op on the target."""
        decomposition = self.table.get(func)
        if decomposition is None:
            return self.target.body_kernel(func, args, kwargs)
        return _Reported(func, decomposition), TABLE_ENTRY

    def list_kernel(self, func: Any) -> Callable[..., Any] | None:
        """As on the target."""
        return self.target.list_kernel(func)

    def ambient(self, func: Any) -> Any:
        """As on the target."""
        return self.target.ambient(func)


def _checked(table: Any) -> dict[Any, Callable[..., Any]]:
    entries: dict[Any, Any] = dict(table.items()) if isinstance(table, Mapping) else {None: None}
    wrong = [op for op, function in entries.items() if not (callable(op) and callable(function))]
    if wrong:
        raise Refusal(
            f"decompositions= is {table!r:.60}, not a dictionary of functions by operator",
            kind="wrong decompositions",
            do="pass a table such as torch.export.default_decompositions()",
        )
    return entries


@dataclass(frozen=True, slots=True)
class _Reported:
    """A decomposition whose errors are refusals that name it."""

    func: Any
    decomposition: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with Refusing(self._refusal):
            return self.decomposition(*args, **kwargs)

    def _refusal(self, error: BaseException, _: object) -> Refusal | None:
        if isinstance(error, Refusal):
            return None
        return Refusal(
            f"the decomposition of {self.func} raised {type(error).__name__}: {error}",
            kind="decomposition raised",
            do="take the operator out of the table, or mend its decomposition",
        )


class EntryRecorder(WithoutExample, Recorder):
    """Records a table's decompositions over values; numbers become ops, and no data is known."""

    def __init__(self, entries: Entries) -> None:
        types = entries.target.derivatives.types
        with _quiet():
            learned = entries.learned
            outcomes: Cache[Outcome] = Cache(learned.outcomes, learned.settled, types.symbols)
            super().__init__(types, entries, Sources(), outcomes, self)
        self._device = entries.target.target.device.type

    def run(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], stand_ins: dict[Value, Abstract]
    ) -> Any:
        """Record one call over stand-ins for its operands; gives what it returned."""
        with _quiet(), torch_api.QUESTIONS.guard(self._device):
            return self.again(func, *self.concrete((args, kwargs), stand_ins))

    def lift(self, tensor: torch.Tensor) -> Abstract:
        """As a constant."""
        return self.lift_constant(tensor)

    def lift_constant(self, tensor: torch.Tensor) -> Abstract:
        """A tensor that a decomposition created from a Python number, as an op."""
        if tensor.numel() != 1:
            raise Refusal(
                "a decomposition uses a tensor from outside",
                kind="wrong decompositions",
                do="make it inside the decomposition by an operator: full, arange, scalar_tensor",
            )
        with torch_api.plain_torch():
            number = tensor.item()
        options = {"dtype": tensor.dtype, "device": tensor.device}
        full = self.call(aten.full.default, (list(tensor.shape), number), options)
        return self.abstract(full.outs[0])

    def answer(self, recorder: Any, func: Any, args: Tree, kwargs: dict[str, Tree]) -> NoReturn:
        """Raise the refusal of a decomposition that asks for data."""
        raise Refusal(
            f"a decomposition asks for the data of a tensor, by {target_name(func)}",
            kind="data-dependent",
            do="take the operator out of the table",
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the modes, autograd and autocast that are on around the cut."""
    with (
        torch_api.no_dispatch_modes(),
        torch_api.with_autograd(),
        torch_api.below_autograd(),
        torch.no_grad(),
    ):
        yield


# ---- torch's core ATen set -----------------------------------------------------------------------

CORE: Final = "core"
LEVELS: Final = (None, CORE)
WHOLE: Final[Mapping[Any, str]] = MappingProxyType(
    {
        aten._scaled_dot_product_flash_attention_for_cpu.default: (
            "torch's decomposition gives no logsumexp, which the backward reads; target='portable'"
            " takes math attention"
        ),
        aten.mkldnn_rnn_layer.default: "a kernel of oneDNN; torch.backends.mkldnn.enabled = False",
        aten.mkldnn_rnn_layer_backward.default: (
            "a kernel of oneDNN; torch.backends.mkldnn.enabled = False"
        ),
    }
)
"""Operators that stay whole, and why; of any other one torch has no decomposition"""


def table_at(level: Any, table: Table | None) -> Table | None:
    """The decompositions of a level, those of the caller first.

    Raises:
        Refusal: there is no such level.
    """
    if level is None:
        return table
    if level != CORE:
        raise Refusal(
            f"there is no level {level!r:.60}",
            kind="unknown level",
            do='use level="core": torch\'s core ATen set; or None, the operators of the cut',
        )
    found = torch_api.core_decompositions()
    opened = {op: function for op, function in found.items() if op not in WHOLE}
    return opened if table is None else {**opened, **table}


def core_form(target: Any) -> str:
    """The word "core", or "opened" at the level, or why an operator has no core form."""
    if not isinstance(target, torch_api.OpOverload):
        return "no operator of ATen"
    if torch.Tag.core in target.tags:
        return CORE
    if target in WHOLE:
        return WHOLE[target]
    return "opened" if target in torch_api.core_decompositions() else "torch has no decomposition"
