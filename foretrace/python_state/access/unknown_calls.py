"""The functions in C that a program may call: a closed list, by where they come from.

What such a function reads and leaves, no code shows. Of those in the list it is known: operators of
torch, functions of their arguments alone, methods of types whose content is a guard or is put back.
Another one may answer otherwise at the next call, and nothing would see it.
"""

import types
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.python_state.access.calling_frames import (
    for_a_log,
    for_an_import,
    is_pythons,
    is_users,
    user_frame,
)
from foretrace.python_state.code.bytecode import reads_of
from foretrace.python_state.snapshot.states_in_c import OUT_OF_SIGHT

TORCH: Final = ("torch", "functorch", "torchgen")
NUMPY: Final = ("numpy",)
"""Arrays and numbers of it are guards, as are its generators"""
OF_ARGUMENTS: Final = (
    "math", "cmath", "operator", "_operator", "itertools", "functools", "_functools", "re", "_sre",
    "_json", "_struct", "struct", "_bisect", "_heapq", "_statistics", "_string", "unicodedata",
    "binascii", "_codecs", "_datetime", "datetime", "_decimal", "decimal", "_zoneinfo", "zoneinfo",
    "_ast", "_opcode", "_opcode_metadata", "_stat", "errno", "_pickle", "marshal", "_tokenize",
    "_symtable", "_typing", "typing", "_sysconfig", "_suggestions", "_imp", "audioop", "gmpy2",
)  # fmt: skip
"""What they give follows from their arguments; gmpy2 has sympy's numbers"""
OF_ROWS: Final = (
    "builtins", "types", "collections", "_collections", "_abc", "_contextvars", "_thread",
    "_random", "array", "_weakref", "weakref", "_warnings", "_ctypes", "sys", "gc",
    "_multiprocessing",
)  # fmt: skip
"""Whose state is compared at each call, or put back; and locks"""
OF_THE_WORLD: Final = ("time", "posix", "nt", "_io", "io")
"""The clock and files: `side_effects.py` says where they are asked for"""
KNOWN: Final = frozenset((*TORCH, *NUMPY, *OF_ARGUMENTS, *OF_ROWS, *OF_THE_WORLD, *OUT_OF_SIGHT))
"""The first parts of the names of modules; of OUT_OF_SIGHT, but for objects from outside"""
USUAL: Final = frozenset({
    bool, int, float, str, tuple, list, dict, set, frozenset, torch.Size, torch.Tensor,
})  # fmt: skip
"""Types of objects that most methods in C are called of"""
IN_C: Final = (
    types.MethodDescriptorType, types.ClassMethodDescriptorType, types.WrapperDescriptorType,
    types.BuiltinFunctionType, staticmethod,
)  # fmt: skip
"""What a class in C has for a method"""
BINDINGS: Final = frozenset(name for _, name in torch_api.STANDS.values()) - {"setter"}
"""Names of what switches a row"""
DO: Final = (
    "call it before the captured program is called, and pass what it gives",
    "or compile the program in pieces, which runs what is around the call as Python",
)


def nothing_met(item: object) -> bool:
    """Return False for each object, where nobody knows what was there."""
    return False


def unnoted(refusal: Refusal) -> Refusal:
    """The refusal, of which nobody takes note."""
    return refusal


class UnknownCalls:
    """Refuses a program that calls a function in C of which nothing is known.

    Args:
        refuse: notes a refusal, in case the program catches it.
        switching: takes the bindings of torch's that it calls itself and that switch torch's state,
            by name, with the lines.
        met: whether the program had an object before it ran.
    """

    def __init__(
        self,
        refuse: Callable[[Refusal], Refusal],
        switching: dict[str, Frame],
        met: Callable[[Any], bool] = nothing_met,
    ) -> None:
        self.refuse, self.switching, self.met = refuse, switching, met

    def knowing(self, met: Callable[[Any], bool]) -> "UnknownCalls":
        """The same, of a program that had other objects before it ran."""
        return UnknownCalls(self.refuse, self.switching, met)

    def called(self, frame: types.FrameType, function: types.BuiltinFunctionType) -> None:
        """A function in C is about to be called.

        Raises:
            Refusal: the program calls it, and it is none of the list.
        """
        if type(function.__self__) in USUAL:
            return
        module = module_of(function)
        code = frame.f_code
        if function in torch_api.STANDS and is_users(code.co_filename):
            line = Frame(code.co_filename, frame.f_lineno, code.co_qualname)
            self.switching.setdefault(function.__name__, line)
        if is_known(module) and not (module in OUT_OF_SIGHT and self.met(function.__self__)):
            return
        at = user_frame(frame)
        if at is None or for_an_import(at) or for_a_log(frame):  # as Python 3.14 asks for its task
            return
        raise self.refuse(
            Refusal(
                f"the program calls {module}.{function.__qualname__}, which is in C: nothing shows"
                " what it reads",
                kind="unknown call",
                at=Frame(at.f_code.co_filename, at.f_lineno, at.f_code.co_qualname),
                do=DO,
            )
        )

    def inspects(self, code: types.CodeType) -> bool:
        """Whether the functions in C matter that this code calls."""
        return is_users(code.co_filename) or is_pythons(code.co_filename)


def module_of(function: types.BuiltinFunctionType) -> str:
    """The module that a function in C is of; of a method, that of the class in C which has it."""
    module = function.__module__
    if module is not None:
        return str(module)
    owner, name = function.__self__, function.__name__
    kinds = (*type(owner).__mro__,)
    if isinstance(owner, type):
        kinds = (*owner.__mro__, *kinds)
    found = next((each for each in kinds if isinstance(vars(each).get(name), IN_C)), type(owner))
    return str(found.__module__)


@cache
def is_known(module: str) -> bool:
    """Whether the list has a module, or the package that it is in."""
    return module.partition(".")[0] in KNOWN


@cache
def switches(code: types.CodeType) -> bool:
    """Whether a function of torch's switches its state: by its name, or as it names a binding."""
    if code.co_name.lstrip("_") in torch_api.SWITCHED_BY:  # `sdpa_kernel` makes names up
        return True
    reads = reads_of(code)
    return not BINDINGS.isdisjoint(reads.attributes) or not BINDINGS.isdisjoint(reads.globals)
