"""For whom a function in C is called: the frame of the user's that asked, and what is between."""

import logging
import types
from functools import cache
from typing import Final

from foretrace import torch_api
from foretrace.errors import PACKAGE_DIR, PYTHON_DIR
from foretrace.python_state.code.code_owner import origin_of

SHOWING: Final = tuple(
    f"{PYTHON_DIR}{name}.py"
    for name in ("warnings", "linecache", "traceback", "tokenize", "pdb", "bdb", "cmd")
)
"""Files of Python's own that read and write so that errors are shown, or the program in steps"""
LOOPS: Final = PYTHON_DIR + "asyncio/"
"""Where coroutines of the program's are run: what it calls itself is asked about, not the loop"""
LOGGED: Final = vars(logging.Logger)["_log"].__code__
"""All that is logged goes through it"""
FROZEN: Final = "<frozen "
"""How the file's name of code begins that is compiled into Python: of `os`, and of what imports"""
IMPORTS: Final = "<frozen importlib._bootstrap>"
"""The file of the code that runs a module when it is imported"""
LAYER_CALL: Final = torch_api.TORCH_DIR + "nn/modules/module.py"
MODULE_CALL = f"{PACKAGE_DIR}tracer/recorder/module_calls.py"


def user_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The user's, if Python's own library is all between; None where torch, or we, come first."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return frame
        if file == MODULE_CALL:  # where a module is called, as torch's own frames say of others
            frame = frame.f_back
            continue
        if not is_pythons(file):
            return None
        frame = frame.f_back
    return None


@cache
def is_users(file: str) -> bool:
    """Whether code of the user's is in it or called by it: a dataclass calls factories."""
    own = origin_of(file) == "user" and not file.startswith(FROZEN)
    return own or file == LAYER_CALL


@cache
def is_pythons(file: str) -> bool:
    """Whether code of Python's own library is in it, between the user's and what that asks for."""
    return is_of_python(file) and file not in SHOWING and not file.startswith(LOOPS)


@cache
def is_of_python(file: str) -> bool:
    """Whether code of Python's own library is in it, but for what imports."""
    if file.startswith(FROZEN):  # compiled into Python: os.path
        return "importlib" not in file and "zipimport" not in file
    return file.startswith(PYTHON_DIR) and "-packages/" not in file


def for_a_log(frame: types.FrameType | None) -> bool:
    """Whether a handler of `logging` runs, a test's or a notebook's too."""
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE_DIR):
        if frame.f_code.co_filename == LOGGED.co_filename:
            return True
        frame = frame.f_back
    return False


def for_an_import(frame: types.FrameType | None) -> bool:
    """Whether a module runs as it is imported: once, and not at each call."""
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE_DIR):
        if frame.f_code.co_filename == IMPORTS:
            return True
        frame = frame.f_back
    return False
