"""`python -m tests.gpu.child JOB FILE`: one job, here; its rows go to the file as they are found.

What a part needs and this machine lacks skips the part, by name. What a part raises is a row.
"""

import importlib
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.gpu.rows import Row

OURS: Final = ("foretrace", "tests")
CARRIED: Final = 400  # characters of a message


class Circumstances:
    """A job, the device that it runs on, and what the parent knows of that device."""

    def __init__(self, given: dict[str, Any]) -> None:
        job = given["job"]
        self.parts: list[str] = job["parts"]
        self.program: str = job["program"]
        self.dtype: str = job["dtype"]
        self.limit: float = job["limit"]
        self.device: str = given["device"]
        self.target: str = given["target"]
        self.options: dict[str, Any] = given.get("options", {})
        """what one part alone is told"""
        self.plant: list[str] = given.get("plant", [])
        """parts that must find a difference: one is put in their way"""


Finding = tuple[str, str, Any]
"""(what was compared, status, detail)."""
Part = Callable[[Circumstances], Iterator[Finding]]


def main() -> int:
    """Run every part of the job; a part's rows are followed by a line that says it is done."""
    given = Circumstances(json.loads(sys.argv[1]))
    warnings.simplefilter("ignore")  # what torch warns of is not what is asked here
    with Path(sys.argv[2]).open("w", buffering=1) as out:
        for part in given.parts:
            for what, status, detail in findings(part, given):
                row = Row(part, given.program, given.dtype, what, status, detail)
                print(json.dumps({"row": vars(row)}), file=out)
            print(json.dumps({"done": part}), file=out)
    return 0


def findings(part: str, given: Circumstances) -> Iterator[Finding]:
    """What a part finds; its module is looked up here, as it may lack what it imports."""
    try:
        run: Part = importlib.import_module(f"tests.gpu.{part}").run
        yield from run(given)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OURS:
            yield failure(error)
        else:
            yield "the whole part", "skipped", f"no package {error.name} here"
    except Exception as error:  # noqa: BLE001 - whatever it raises, it is what is found
        yield failure(error)


def _refuses(error: BaseException | None) -> bool:
    return any(each.__name__ == "Refusal" for each in type(error).__mro__)


def failure(error: BaseException, what: str = "the whole part") -> Finding:
    """A refusal with its kind, or an error that is none, with where it came from."""
    by_backend = getattr(error, "inner_exception", error.__cause__)
    refusal = by_backend if _refuses(by_backend) else error
    words = " ".join(str(refusal).split())[:CARRIED]
    if _refuses(refusal):
        return what, f"refused({getattr(refusal, 'kind', '')})", {"said": words}
    frames = traceback.extract_tb(error.__traceback__)
    trace = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-12:]]
    return what, "raw", {"said": f"{type(refusal).__name__}: {words}", "trace": trace}


if __name__ == "__main__":
    raise SystemExit(main())
