"""Sizes that a front end has named before the capture: Dynamo's, in the ShapeEnv it guards by."""

from collections.abc import Sequence
from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.ir.symbols.input_symbols import Dynamic, Geometry
from foretrace.ir.symbols.symbols import Symbols


class Foreign(Dynamic):
    """Gives the inputs the sizes that their FakeTensors have.

    No symbol is new, and what the program asks of sizes becomes a guard of the ShapeEnv that
    they belong to. Whoever owns it checks its guards before a call.
    """

    def __init__(self, arguments: Sequence[Any], fakes: Sequence[Any], symbols: Symbols) -> None:
        super().__init__({}, symbols)
        self._fakes: dict[int, torch.Tensor] = {
            id(real): fake
            for real, fake in zip(arguments, fakes, strict=True)
            if isinstance(fake, torch.Tensor)
        }

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is an input that the front end has described."""
        return id(tensor) in self._fakes

    def geometry(self, tensor: torch.Tensor, name: str) -> Geometry | None:
        """The sizes of the input's FakeTensor; None for one that the front end does not know."""
        fake = self._fakes.get(id(tensor))
        if fake is None:
            return None
        shape, stride = (self.symbols.sizes(part) for part in (fake.shape, fake.stride()))
        geometry = Geometry(shape, stride, self.symbols.size(fake.storage_offset()))
        self._check_backed(geometry, name)
        return geometry

    def _check_backed(self, geometry: Geometry, name: str) -> None:
        unknown = self.symbols.unknown((geometry.shape, geometry.stride, geometry.offset))
        if unknown:
            raise Refusal(
                f"{name} has the size {unknown[0]}, of which torch.compile is to know no number"
                " (dynamic_shapes=, mark_unbacked): a capture answers by numbers, and guards them",
                kind="data-dependent",
                do=(
                    "let the size be dynamic: dynamic=True, or torch._dynamo.mark_dynamic",
                    "or let foretrace.compile capture the function",
                ),
            )
