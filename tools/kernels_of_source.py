"""`python -m tools.kernels_of_source mps MPS`: the kernels of a device, from torch's own listing.

torchgen registers for a dispatch key what `native_functions.yaml` names, with all three forms of an
operator that is structured. Of CUDA that is, name by name, what the dispatcher of a CUDA build of
2.13.0 says. A listing beside torch's, as that of torch-xpu-ops, is given with `--also`. The kernels
are written into the target's file; its other fields stay.
"""

import argparse
import json
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchgen import packaged
from torchgen.gen import get_grouped_native_functions, parse_native_yaml
from torchgen.model import STRUCTURED_DISPATCH_KEYS, NativeFunctionsGroup

LISTED: Final = Path(next(iter(packaged.__path__))) / "ATen" / "native"
FOLDER: Final = Path(__file__).parents[1] / "foretrace" / "operators" / "targets"


def kernels(listing: Path) -> Iterator[tuple[str, str]]:
    """Pairs of a dispatch key and an operator that has a kernel there."""
    parsed = parse_native_yaml(str(listing), str(LISTED / "tags.yaml"))
    for group in get_grouped_native_functions(parsed.native_functions):
        structured = isinstance(group, NativeFunctionsGroup) and group.structured
        forms = [*group.functions()] if isinstance(group, NativeFunctionsGroup) else [group]
        for key, index in parsed.backend_indices.items():
            whole = structured and key in STRUCTURED_DISPATCH_KEYS
            by_out = whole and index.has_kernel(group.out)
            for form in forms:
                if by_out or index.has_kernel(form):
                    yield str(key), str(form.func.name)


def lines(found: dict[str, set[str]]) -> dict[str, list[str]]:
    """The names of each key in lines of a file."""
    wrapped = textwrap.TextWrapper(90, break_on_hyphens=False, break_long_words=False)
    return {key: wrapped.wrap(" ".join(sorted(names))) for key, names in sorted(found.items())}


def main(argv: list[str] | None = None) -> int:
    """Write the kernels of keys that end with the backend's name."""
    parser = argparse.ArgumentParser(prog="python -m tools.kernels_of_source", description=__doc__)
    parser.add_argument("target", help="the name of its file")
    parser.add_argument("backend", help="the backend's name in dispatch keys: MPS")
    parser.add_argument("--also", type=Path, action="append", default=[], help="another listing")
    given = parser.parse_args(argv)
    found = defaultdict[str, set[str]](set)
    for listing in (LISTED / "native_functions.yaml", *given.also):
        for key, name in kernels(listing):
            if key.endswith(given.backend):
                found[key].add(name)
    path = FOLDER / f"{given.target}.json"
    whole = {**json.loads(path.read_text()), "kernels": lines(found)}
    path.write_text(json.dumps(whole, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
