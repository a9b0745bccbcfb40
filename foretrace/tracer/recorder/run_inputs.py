"""The inputs of a run, as they become known."""

from collections.abc import Iterator
from typing import Any

from foretrace.ir.program.interface import Input


class RunInputs(list[Input]):
    """The inputs of a run, each with the caller's object and the stand-in that computes for it."""

    def __init__(self) -> None:
        super().__init__()
        self.real: list[Any] = []
        """tensors, or symbolic numbers"""
        self.placeholders: list[Any] = []

    def add(self, item: Input, real: Any, placeholder: Any) -> None:
        """Append an input."""
        self.append(item)
        self.real.append(real)
        self.placeholders.append(placeholder)

    def find(self, placeholder: Any) -> int | None:
        """The index of the input that a stand-in computes for; None if it is of no input."""
        places = (i for i, each in enumerate(self.placeholders) if each is placeholder)
        return next(places, None)  # `is`, as a tensor compares its elements

    def place_of(self, placeholder: Any) -> int:
        """The same of the stand-in of an input."""
        found = self.find(placeholder)
        assert found is not None
        return found

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Yield the caller's object and the stand-in of each."""
        return zip(self.real, self.placeholders, strict=True)

    def with_real(self) -> Iterator[tuple[Input, Any]]:
        """Yield each with the caller's object."""
        return zip(self, self.real, strict=True)

    def stood_for(self) -> dict[int, Any]:
        """What each stand-in stands for, by the id of the stand-in."""
        return {id(placeholder): real for real, placeholder in self.pairs()}

    def release(self) -> None:
        """Let go of the tensors, real and abstract."""
        self.real.clear()
        self.placeholders.clear()
