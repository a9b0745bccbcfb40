"""What talks to other processes, and how it is refused while a program is captured."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final, NoReturn

from foretrace.torch_api.patches import put_at

TALKING: Final = ("torch._C._distributed_c10d", "torch._C._distributed_rpc")
"""The modules in C++ by which processes talk to each other (torch 2.13 to 2.15)"""
SILENT: Final = frozenset({
    "rank", "size", "name", "get_debug_level", "_get_backend_name", "_get_backend",
    "_resolve_process_group", "_current_process_group",
    "_allow_inflight_collective_as_graph_input",
    "_set_allow_inflight_collective_as_graph_input", "_get_work_registry_size", "_id", "boxed",
    "_is_current_rpc_agent_set", "_get_current_rpc_agent", "_pybind11_conduit_v1_",
})  # fmt: skip
"""What of it says something of this process alone, or is data; so do all properties."""
# By which an object becomes a tensor before that is sent; the Python of it has no graph.
OBJECTS: Final = "_object_to_tensor"
# The namespace of operators that talk when they run. The functional ones (`_c10d_functional`) are
# values in a graph, and captured as others are.
COLLECTIVES: Final = "c10d"


def may_talk() -> bool:
    """Whether this process has others to talk to: a process group, or an agent of RPC."""
    groups = vars(sys.modules.get("torch.distributed.distributed_c10d", object)).get("_world")
    agent = vars(sys.modules.get("torch.distributed.rpc.api", object)).get(
        "_is_current_rpc_agent_set"
    )
    return bool(groups is not None and groups.pg_map) or bool(agent is not None and agent())


class Silence:
    """While a thread is inside, it talks to no other process: what would is refused by its name.

    That is each function and method of TALKING, by whatever name torch's own Python has it; DDP's
    reducer, stores and groups are objects of it. The interpreter's profiler does not report all of
    them: Python 3.12 is silent of a bound method that wraps a function in C.
    """

    def __init__(self) -> None:
        self._refuse: dict[int, Callable[[str], NoReturn]] = {}
        """by thread"""

    @contextmanager
    def __call__(self, refuse: Callable[[str], NoReturn]) -> Iterator[None]:
        """For this thread; only one is inside at a time. `refuse` gets what was called."""
        thread = threading.get_ident()
        around = self._refuse.get(thread)
        places = self._places(len(sys.modules)) if around is None else []
        self._refuse[thread] = refuse
        for place, name, _, stand_in in places:
            put_at(place, name, stand_in)
        try:
            yield
        finally:
            for place, name, original, _ in places:
                put_at(place, name, original)
            del self._refuse[thread]
            if around is not None:
                self._refuse[thread] = around

    @cache  # noqa: B019 - there is one of it
    def _places(self, modules: int) -> list[tuple[Any, str, Any, Any]]:
        """Where such functions stand, and what is put there; asked again where more is imported."""
        found = list[tuple[Any, str, Any, Any]]()
        for module in filter(None, map(sys.modules.get, TALKING)):
            kinds = (each for each in vars(module).values() if isinstance(each, type))
            for kind in dict.fromkeys(kinds):
                for name in _methods(kind):
                    put = self._in_place_of(vars(kind)[name], f"{kind.__name__}.{name}")
                    found.append((kind, name, vars(kind)[name], put))
        names = [name for name in sys.modules if name.startswith("torch.distributed")]
        for module in filter(None, map(sys.modules.get, names)):
            functions = {name: each for name, each in vars(module).items() if _may_talk(each)}
            for name, function in functions.items():
                found.append((module, name, function, self._in_place_of(function, name)))
        return found

    def _in_place_of(self, call: Any, what: str) -> Any:
        """A stand-in for a function, or for a method as it stands in its class."""
        refusing, static = self._refuse, isinstance(call, staticmethod)
        original = call.__func__ if static else call

        @wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:
            refuse = refusing.get(threading.get_ident())
            return original(*args, **kwargs) if refuse is None else refuse(what)

        return staticmethod(called) if static else called


SILENCE: Final = Silence()
"""Of captures"""


def _may_talk(function: Any) -> bool:
    kind = type(function)  # `isinstance` asks an object for its class, of which some warn
    if kind is BuiltinFunctionType:
        return function.__module__ in TALKING and function.__name__ not in SILENT
    return kind is FunctionType and function.__code__.co_name == OBJECTS


def _methods(kind: type) -> list[str]:
    """Names of methods of a class that may talk: no enumeration, options or property."""
    if hasattr(kind, "__members__") or kind.__name__.endswith(("Options", "ReduceOp")):
        return []
    plain = {name for name in vars(kind) if name.startswith("__")} - {"__init__"} | SILENT
    calls = {name: item for name, item in vars(kind).items() if name not in plain}
    return [
        name
        for name, item in calls.items()
        if (callable(item) or isinstance(item, staticmethod)) and not isinstance(item, type)
    ]
