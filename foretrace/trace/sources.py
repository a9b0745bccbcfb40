"""The user's line behind each op."""

import sys
from types import CodeType, FrameType

from foretrace import torch_api
from foretrace.errors import Frame, is_library

LIBRARY_DIRS = (torch_api.TORCH_DIR,)


class Sources:
    """Finds the innermost frame that is neither ours nor torch's; remembers what it found."""

    def __init__(self) -> None:
        self.last: CodeType | None = None
        """the code of ours that calls the program: no frame above it is the program's"""
        self._library: dict[int, bool] = {}
        """by the id of a code object: to hash one is to hash all its constants"""
        self._frames: dict[tuple[int, int], Frame] = {}
        self._codes: list[CodeType] = []
        """those whose ids are keys, kept alive so that no other gets the same"""

    def here(self) -> Frame | None:
        """The user's line that is running now."""
        library, frame = self._library, sys._getframe(1)
        at: FrameType | None = frame
        while at is not None:
            code = at.f_code
            inside = library.get(id(code))
            if inside is None:
                self._codes.append(code)
                inside = library[id(code)] = is_library(code, LIBRARY_DIRS)
            if not inside:
                return self._frame(at)
            if code is self.last:
                return None
            at = at.f_back
        return None

    def _frame(self, at: FrameType) -> Frame:
        code = at.f_code
        key = (id(code), at.f_lasti)
        known = self._frames.get(key)
        if known is None:
            known = self._frames[key] = Frame(code.co_filename, at.f_lineno, code.co_qualname)
        return known
