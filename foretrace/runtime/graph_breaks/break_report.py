"""What runs as Python, why, and what is captured around it."""

from dataclasses import dataclass
from typing import Any

from foretrace.errors import Printed, Refusal, counted


@dataclass(frozen=True, slots=True)
class Part:
    """A module or region that is captured on its own."""

    path: str
    """the module's path in the program, or the name of the region"""
    ops: int
    """leaf ops of its largest capture"""
    recaptures: int


@dataclass(frozen=True, slots=True, repr=False)
class Break(Printed):
    """One reason why a program is not captured whole."""

    refusal: Refusal
    """what was refused, with its line"""
    module: str
    """the path of the module whose own code runs as Python; the program's own name for its own"""
    around: tuple[str, ...]
    """the modules around it, which run as Python with it, from the inside out"""
    parts: tuple[Part, ...]
    """what these call and is captured"""
    small: int
    """how many modules they call that run as Python as a capture of them would be no faster"""

    def __str__(self) -> str:
        around = f", and so do {', '.join(self.around)} around it" if self.around else ""
        captured = [f"{part.path} ({counted(part.ops, 'op')})" for part in self.parts]
        lines = [f"{self.module} runs as Python{around}", *str(self.refusal).splitlines()]
        lines.append(f"  captured  {', '.join(captured) or 'nothing'}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON data."""
        return {
            "module": self.module,
            "around": list(self.around),
            "small": self.small,
            "parts": [
                {"path": p.path, "ops": p.ops, "recaptures": p.recaptures} for p in self.parts
            ],
            "refusal": self.refusal.to_dict(),
        }
