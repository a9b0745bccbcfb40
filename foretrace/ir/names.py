"""Names of nodes, as torch.fx would give them: mm, mm_1, ..."""

import keyword
import re

from foretrace.ir.op import Op, target_name

NOT_A_NAME = re.compile(r"[^0-9a-zA-Z_]+")


class Names:
    """Hands out names, each once."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._taken: set[str] = set()

    def new(self, wish: str) -> str:
        """The wish as an identifier, with a number after it if it is taken."""
        base = NOT_A_NAME.sub("_", wish).rstrip("_").lower() or "value"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        count, name = self._next.get(base, 0), base
        while name in self._taken or (count and name == base):
            name = f"{base}_{count}" if count else base
            count += 1
        self._next[base] = max(count, 1)
        self._taken.add(name)
        return name


def wish(op: Op) -> str:
    """The name that an op asks for."""
    return target_name(op.target)
