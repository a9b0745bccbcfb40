"""Many seeds: each in a child, with an outcome for each; and what is told of one that failed."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from tests.fuzz import generate, stateful, worlds
from tests.fuzz.minimise import minimised
from tests.fuzz.server import Result, Say, Work, forked
from tests.fuzz.verdict import ABORT, FAILURES, TIMEOUT, Verdict, judged

Program = Callable[[int], str]
KINDS: Final = MappingProxyType({
    "programs": generate.program, "stateful": stateful.program, "worlds": worlds.program,
})  # fmt: skip
"""What the programs of seeds are"""


@dataclass(frozen=True)
class Outcome:
    """What became of a seed."""

    seed: int
    text: str
    verdicts: tuple[Verdict, ...]

    @property
    def failures(self) -> list[Verdict]:
        """What must not be."""
        return [verdict for verdict in self.verdicts if verdict.failed]

    @property
    def failed(self) -> bool:
        """Whether there is any."""
        return bool(self.failures)

    @property
    def cause(self) -> tuple[str, str]:
        """What it has in common with others, seen from outside."""
        first = self.failures[0]
        return first.status, first.kind

    def to_dict(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def run(
    seeds: Iterable[int], jobs: int, limit: float, *, kind: str = "programs"
) -> Iterator[Outcome]:
    """The outcome of each seed, as it is ready."""
    program = KINDS[kind]
    for result in forked(partial(_work, program), seeds, jobs, limit):
        yield _outcome(result, program)


def _work(program: Program, seed: int, say: Say) -> Any:
    say("generating")
    text = program(seed)
    return text, [asdict(verdict) for verdict in judged(text, say=say)]


def _outcome(result: Result, program: Program) -> Outcome:
    if not result.ended:
        text, verdicts = result.value
        return Outcome(result.item, text, tuple(Verdict(**one) for one in verdicts))
    status = TIMEOUT if result.ended == "timeout" else ABORT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = program(result.item) if result.last != "generating" else ""
    return Outcome(result.item, text, (Verdict(result.last, status, result.ended),))


def again(item: tuple[str, str], say: Say) -> Any:
    """In a child: the verdicts on a text by one route."""
    text, route = item
    return [asdict(verdict) for verdict in judged(text, only=route)]


def told(outcome: Outcome, limit: float = 60, work: Work = again) -> str:
    """A minimised program that fails as the outcome's does, and how.

    Args:
        outcome: one that failed.
        limit: seconds for each attempt.
        work: what judges an attempt, in a child.
    """
    first = outcome.failures[0]
    routes = [verdict.route for verdict in outcome.failures if verdict.cause[1:] == first.cause[1:]]
    small = smallest(outcome.text, first, limit, work)
    head = (
        f"seed {outcome.seed}: {first.status}, {first.kind}, by {', '.join(routes)}\n{first.detail}"
    )
    return f'"""{head}\n"""\n\n{small}{alone(first.route)}'


def alone(route: str) -> str:
    """Lines that make a program one that runs by itself and says what differs."""
    return (
        '\n\nif __name__ == "__main__":\n    from pathlib import Path\n'
        "    from tests.fuzz.verdict import judged\n\n"
        f'    for verdict in judged(Path(__file__).read_text(), only="{route}"):\n'
        "        print(verdict.route, verdict.status, verdict.kind, verdict.detail)\n"
    )


def smallest(text: str, verdict: Verdict, limit: float, work: Work = again) -> str:
    """The program with all left out that it does not need to fail so."""

    def fails(text: str) -> bool:
        try:
            compile(text, "program", "exec")
        except SyntaxError:
            return False
        (result,) = forked(work, [(text, verdict.route)], 1, limit)
        if result.ended:
            return verdict.status in (ABORT, TIMEOUT) and result.ended == verdict.kind
        found = [Verdict(**one) for one in result.value]
        return any(one.cause == verdict.cause for one in found)

    return minimised(text, fails)


__all__ = ["FAILURES", "Outcome", "again", "alone", "run", "smallest", "told"]
