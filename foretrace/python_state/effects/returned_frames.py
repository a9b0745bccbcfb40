"""Frames of functions that have returned, which somebody keeps: no places of the program's.

A debugger keeps the frame that it stopped in, or a dict of its variables; a traceback the frames
that an exception went through. The program does not reach what is there: its code has run.
"""

import builtins
import gc
import inspect
import sys
from bdb import Bdb
from collections.abc import Callable, Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, Final

SUSPENDED: Final = (
    (GeneratorType, "gi_frame"),
    (CoroutineType, "cr_frame"),
    (AsyncGeneratorType, "ag_frame"),
)
"""What goes on later, and its frame with it: that one is a place"""
SHOWN: Final = "_"
"""Where a prompt keeps in `builtins` what it has shown last"""
OF_PDB: Final = "__pdb_convenience_variables"
"""Where pdb keeps in a module what a function has returned (Python 3.12 and later)"""


def let_go(holds: Callable[[Any], bool]) -> bool:
    """Empty frames that have ended, and what debuggers and prompts keep; gives whether any was.

    Args:
        holds: says whether something leads to what is looked for; nothing else is emptied.
    """
    objects = gc.get_objects()
    frames = [frame for frame in _ended(objects) if holds([*frame.f_locals.values()])]
    for frame in frames:
        frame.clear()
        snapshot = frame.f_locals  # one dict, brought up to date; from 3.13 on a view of the frame
        if isinstance(snapshot, dict):
            snapshot.clear()
    debuggers = [vars(item) for item in objects if issubclass(type(item), Bdb)]
    tables = [(own, name) for own in debuggers for name, item in own.items() if _table(item, holds)]
    for own, name in tables:  # of a module's frame, the variables are its namespace: it stays
        own[name] = {key: item for key, item in own[name].items() if not holds([item])}
    spaces = [(vars(builtins), SHOWN), *((frame.f_globals, OF_PDB) for frame in frames)]
    shown = [(space, name) for space, name in spaces if holds([space.get(name)])]
    for space, name in shown:
        space.pop(name, None)
    return bool(frames or tables or shown)


def _table(item: Any, holds: Callable[[Any], bool]) -> bool:
    return type(item) is dict and any(holds([each]) for each in item.values())


def _ended(objects: list[Any]) -> Iterator[FrameType]:
    """The ended frames of functions: those of modules and classes have a namespace as variables."""
    others = set[int]()
    for running in sys._current_frames().values():
        each: FrameType | None = running
        while each is not None:
            others.add(id(each))
            each = each.f_back
    for item in objects:
        for kind, name in SUSPENDED:
            if type(item) is kind:
                others.add(id(getattr(item, name)))
    for item in objects:
        ended = type(item) is FrameType and id(item) not in others
        if ended and item.f_code.co_flags & inspect.CO_OPTIMIZED:
            yield item
