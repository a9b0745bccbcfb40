"""Code that runs though no name leads to it: looked at when it begins, before it changes anything.

A snapshot before a run follows the names in code, methods that call methods so deep. An operator of
a class (`a + b`), a method by `getattr` or by a library that calls it, one at the end of a long
chain are met as they begin. What these name is kept then, as it was before the run.
"""

import types
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from foretrace import torch_api
from foretrace.python_state.snapshot.code_references import functions_in, of_a_module
from foretrace.python_state.snapshot.heap import HeapSnapshot


class LateCode:
    """What one run comes to.

    Args:
        before: what was looked at before the run; it takes what is found.
        found: takes the functions, with which later runs of the program begin.
    """

    def __init__(self, before: HeapSnapshot, found: list[types.FunctionType]) -> None:
        self._before, self._found = before, found
        self._known: dict[int, types.CodeType] = {}
        self._looked = 0

    def begins(
        self, frame: types.FrameType, others: Callable[[], Mapping[int, tuple[Any, Any]]]
    ) -> None:
        """Look at what code names that begins, if nothing has led to it.

        Args:
            frame: its first call.
            others: by id, what the run has put in the place of something else, and that.
        """
        code, space = frame.f_code, frame.f_globals
        if self._knows(code) or not of_a_module(space):
            return
        function = _function(frame)
        self._found.append(function)
        self._known |= _within(code)
        with torch_api.no_dispatch_modes():
            self._before.look_further([function], others())

    def _knows(self, code: types.CodeType) -> bool:
        if id(code) in self._known:
            return True
        for item in islice(self._before.objects(), self._looked, None):
            self._looked += 1
            if type(item) is types.FunctionType:
                self._known |= _within(item.__code__)
        return id(code) in self._known


def _within(code: types.CodeType) -> dict[int, types.CodeType]:
    """Code, and that of what it defines, by id."""
    found = {id(code): code}
    for each in code.co_consts:
        if type(each) is types.CodeType:
            found |= _within(each)
    return found


def _function(frame: types.FrameType) -> types.FunctionType:
    """The function that a frame calls, by its name; where it has none, one with the same code."""
    code, space = frame.f_code, frame.f_globals
    for each in functions_in(_named(code, space)):
        if each.__code__ is code:
            return each
    local = frame.f_locals if code.co_freevars else {}
    bound = (name in local for name in code.co_freevars)
    cells = zip(code.co_freevars, bound, strict=True)
    closure = tuple(types.CellType(local[name]) if has else types.CellType() for name, has in cells)
    return types.FunctionType(code, space, code.co_name, None, closure)


def _named(code: types.CodeType, space: dict[str, Any]) -> Any:
    """What the name of a function stands for, without a lookup of a class's, which may run."""
    owner, *way = code.co_qualname.split(".")
    item = space.get(owner)
    for name in way:
        item = vars(item).get(name) if isinstance(item, type) else None
    return item
