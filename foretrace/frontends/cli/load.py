"""Loads the user's program: a function in a file or a module."""

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from foretrace.errors import Refusal, near_it
from foretrace.inspect.check.user_errors import raised
from foretrace.ir.source.signatures import signature_of

DEFAULT = "program"
FORM = (
    "name it file.py[:name] or package.module:name",
    "where `name` is a function that returns (callable, args) or (callable, args, kwargs)",
)


@dataclass(frozen=True, slots=True)
class UserProgram:
    """What the user's function returned: a callable and its arguments."""

    spec: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@contextmanager
def user_program(spec: str) -> Iterator[UserProgram]:
    """The program that `spec` names. Imports from its folder work inside the context.

    Output of the user's code goes to stderr, so that stdout has only the answer.

    Raises:
        Refusal: there is none, or it raises.
    """
    place, name = _split(spec)
    path = sys.path.copy()
    try:
        with redirect_stdout(sys.stderr), _module(place) as module:
            yield _called(spec, _function(module, name, place), module)
    finally:
        sys.path[:] = path


def _split(spec: str) -> tuple[str, str]:
    place, colon, name = spec.rpartition(":")
    if not colon or os.sep in name:
        return spec, DEFAULT
    return place, name or DEFAULT


# ---- modules ------------------------------------------------------------------------------------


@contextmanager
def _module(place: str) -> Iterator[ModuleType]:
    """The module; that of a file is in `sys.modules` in the context, as libraries look it up."""
    if not (place.endswith(".py") or os.sep in place):
        yield _from_module(place)
        return
    path = _existing(place)
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_program"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Refusal(f"{place} is no Python file", kind="no program", do=FORM)
    sys.path.insert(0, str(path.parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with raised(f"{place} raised", "mend it: Python cannot import it either", str(path)):
            spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[name]


def _existing(place: str) -> Path:
    path = Path(place)
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else Path()
        names = [str(folder / found.name) for found in sorted(folder.glob("*.py"))]
        raise Refusal(
            f"there is no file {place}", kind="no program", do=(*_near(place, names), *FORM)
        )
    return path.resolve()


def _from_module(place: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    if _spec_of(place) is None:
        raise Refusal(f"there is no module {place}", kind="no program", do=FORM)
    with raised(f"{place} raised", "mend it: Python cannot import it either"):
        return importlib.import_module(place)


def function_named(spec: str) -> Any:
    """What package.module:name is, or None; imported in the context of `user_program`."""
    place, _, name = spec.rpartition(":")
    sys.path.insert(0, str(Path.cwd()))
    if _spec_of(place) is None:
        return None
    with raised(f"{place} raised", "mend it: Python cannot import it either"):
        return getattr(importlib.import_module(place), name, None)


def _spec_of(place: str) -> Any:
    try:
        return importlib.util.find_spec(place)
    except (ModuleNotFoundError, ValueError):
        return None


# ---- the function in it -------------------------------------------------------------------------


def _function(module: ModuleType, name: str, place: str) -> Callable[[], Any]:
    found = getattr(module, name, None)
    if inspect.isfunction(found):
        return found
    names = available(module)
    problem = f"has no function {name}" if found is None else f"has {name}, which is no function"
    offer = (f"it has {', '.join(names)}",) if names else ()
    raise Refusal(
        f"{place} {problem}", kind="no program", do=(*_near(name, names), *offer, FORM[1])
    )


def available(module: ModuleType) -> list[str]:
    """The functions of a module that take no arguments."""
    return [
        name
        for name, item in vars(module).items()
        if not name.startswith("_")
        and inspect.isfunction(item)
        and item.__module__ == module.__name__
        and not signature_of(item).parameters
    ]


def _required(fn: Callable[..., Any]) -> list[str]:
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = signature_of(fn).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


def _called(spec: str, fn: Callable[..., Any], module: ModuleType) -> UserProgram:
    required = _required(fn)
    if required:
        raise Refusal(
            f"{fn.__name__} takes arguments: {', '.join(required)}", kind="no program", do=FORM[1]
        )
    with raised(f"{fn.__name__} raised", "mend it: it has to run by itself", module.__file__):
        result = fn()
    problem = _problem(result)
    if problem:
        raise Refusal(
            f"{fn.__name__} of {spec} returns {problem}",
            kind="wrong program",
            do="return (callable, args) or (callable, args, kwargs): args a tuple, kwargs a dict",
        )
    call, args, kwargs = (*result, {}) if len(result) == 2 else result  # noqa: PLR2004 - no kwargs
    return UserProgram(spec, call, tuple(args), dict(kwargs))


def _problem(result: Any) -> str:
    """The problem of what the function returned; empty if there is none."""
    if not isinstance(result, (tuple, list)):
        return f"a {type(result).__name__}"
    if len(result) not in (2, 3):
        return f"{len(result)} things"
    if not callable(result[0]):
        return f"a {type(result[0]).__name__} first, which cannot be called"
    if not isinstance(result[1], (tuple, list)):
        return f"args that are a {type(result[1]).__name__}"
    if len(result) > 2 and not isinstance(result[2], dict):  # noqa: PLR2004 - kwargs are the third
        return f"kwargs that are a {type(result[2]).__name__}"
    return ""


def _near(name: str, names: Sequence[str]) -> tuple[str, ...]:
    return near_it(difflib.get_close_matches(name, names, n=3, cutoff=0.7))
