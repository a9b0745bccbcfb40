"""How a training step is named, and what is expected of its capture."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.steps import Build, Loop

STEPS: "dict[str, Step]" = {}


@dataclass(frozen=True)
class Step:
    """A named training loop."""

    name: str
    section: str
    build: Build
    first_calls: int = 1  # at most: calls that run as Python, as they make what later ones find
    breaks: tuple[str, ...] = ()  # where no single graph holds it: kinds of the refusals


def step(
    *,
    first_calls: int = 1,
    breaks: tuple[str, ...] = (),
) -> Callable[[Build], Build]:
    """Register what makes a loop; `add` for one of a family."""

    def put(build: Build) -> Build:
        add(build.__name__, build.__module__, build, first_calls=first_calls, breaks=breaks)
        return build

    return put


def add(name: str, module: str, build: Build, **expected: object) -> None:
    """One more loop."""
    assert name not in STEPS, f"two steps are called {name}"
    STEPS[name] = Step(name, module.rpartition(".")[2], build, **expected)  # type: ignore[arg-type]


__all__ = ["STEPS", "Loop", "Step", "add", "step"]
