"""A program in pieces: what is refused runs as Python, and what it calls is captured on its own.

It goes from the outside in: a program that is refused runs as Python, and each module that its code
calls is tried in turn. So the module whose own code has the hole is found without being looked for.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import Captured
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.walk import leaf_ops
from foretrace.ir.source.short_tracebacks import hide
from foretrace.python_state.effects.module_owners import owners_of
from foretrace.runtime.calls.compiled import Compiled
from foretrace.runtime.calls.compiled_module import CompiledModule
from foretrace.runtime.graph_breaks import recapture_policy as policy
from foretrace.runtime.graph_breaks.break_report import Break, Part
from foretrace.runtime.graph_breaks.module_redirect import (
    Redirects,
    alone,
    answered_by,
    caller,
    run,
    run_by,
    seeing_all,
)
from foretrace.runtime.graph_breaks.paths import has_forward, name_of, path_of, paths_of, region_of
from foretrace.runtime.guards.abandoned import GUARD_FAILED
from foretrace.runtime.guards.broken import Broken
from foretrace.runtime.guards.guarded_entry import Entry

LEAST = 8
"""Leaf ops of a piece that is worth its guards (bench/pieces.py)"""
MOST = 2_000
"""Pieces of a program; regions of more objects than that run as Python"""

Making = Callable[[Any], tuple[Any, ...]]
"""The arguments of a `Compiled` for one piece"""


class Regions:
    """The pieces of one program, by the module or function that each is."""

    def __init__(self, make: Making, root: Any) -> None:
        self.make, self.root_fn = make, root
        self.table: dict[Any, tuple[Any, PartialCapture | None]] = {}
        """by identity: what it is, so that no other gets its id, and its piece; None: too small"""
        self.version = 0
        """of the table: who runs as Python looks for what it may call again when it changes"""
        self.holes: list[PartialCapture] = []
        """what runs as Python, those inside first"""
        self.warned = False

    def of(self, target: Any, key: Any, around: "PartialCapture") -> "PartialCapture | None":
        """The piece of a module or function that `around` calls; None where it is too small."""
        known = self.table.get(key)
        if known is None:
            if len(self.table) >= MOST:
                return None
            known = self.table[key] = target, PartialCapture(self, around, *self.make(target))
            self.version += 1
        return known[1]

    def judge(self, piece: "PartialCapture", key: Any) -> None:
        """Let a piece run as Python from now on, if its captures are no faster."""
        if piece.small or (piece.refusals and not piece.leads_anywhere()):
            self.table[key] = self.table[key][0], None
            self.version += 1
        elif not piece.refusals:  # it was captured for the first time
            self.version += 1

    def note(self, piece: "PartialCapture", refusal: Refusal) -> None:
        """A piece runs as Python; a warning names the first."""
        if piece not in self.holes:
            self.holes.append(piece)
            self.version += 1
        if self.warned or piece.around is not None:
            return
        self.warned = True
        warnings.warn(
            f"{name_of(self.root_fn)} is not captured whole: {refusal.what}"
            f"{f' ({refusal.at})' if refusal.at else ''}. That part runs as Python, and what it"
            " calls is captured; .breaks tells all, fullgraph=True raises",
            stacklevel=6 + isinstance(self.root_fn, nn.Module),
        )

    def breaks(self) -> list[Break]:
        """What runs as Python, one for each reason, in the order in which it was found."""
        groups: dict[tuple[str, Frame | None], list[tuple[PartialCapture, Refusal]]] = {}
        for hole in self.holes:
            for refusal in hole.refusals.values():
                groups.setdefault((refusal.kind, refusal.at), []).append((hole, refusal))
        return [self._break(group) for group in groups.values()]

    def _break(self, group: "list[tuple[PartialCapture, Refusal]]") -> Break:
        paths, holes = paths_of(self.root_fn), list(dict.fromkeys(hole for hole, _ in group))
        first, *around = [path_of(hole.fn, paths) for hole in holes]
        pieces = [piece for _, piece in self.table.values() if piece and piece.around in holes]
        parts = [
            Part(path_of(piece.fn, paths), piece.ops, len(piece.recaptures))
            for piece in pieces
            if piece.ops >= LEAST and not piece.refusals
        ]
        small = sum(hole.small_ones for hole in holes)
        return Break(group[0][1], first, tuple(around), tuple(parts), small)


class PartialCapture(Compiled):
    """A program, or a piece of one, that runs as Python where it has no graph."""

    def __init__(self, pieces: Regions, around: "PartialCapture | None", *of_compiled: Any) -> None:
        super().__init__(*of_compiled)
        self.pieces, self.around = pieces, around
        self.refusals: dict[policy.Key | None, Refusal] = {}
        """refusals by the kind of call"""
        self.ops = 0
        """leaf ops of the largest capture"""
        self.small_ones = 0
        """how many of the modules that it calls are too small"""
        module = self.fn if isinstance(self.fn, nn.Module) else None
        if module is not None:
            self.plain = torch_api.plain_call(module)
        self.module, self._tries, capture, build = module, 0, self._capture, self._build
        self._capture = lambda *call: self._counted(capture(*call))
        self._build = lambda captured, *call: self._built(build(captured, *call), *call)
        self._seen: dict[int, nn.Module] = {}
        """modules that its code calls"""
        self._looked, self._worth = False, policy.Again()
        self._backoff = policy.Backoff()
        self._rests = 0
        """for how many calls more it is not captured again; 0: it does not come back from Python"""
        self._put: tuple[int, Redirects] = (-1, [])

    @property
    def breaks(self) -> list[Break]:
        """What runs as Python, each with its refusal and what is captured around it."""
        return self.pieces.breaks()

    @property
    def small(self) -> bool:
        """Whether a capture of it is no faster than Python."""
        return bool(self._entries) and not self.refusals and self.ops < LEAST

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the program, by its captures or as Python."""
        refused = self.refusals
        try:
            if refused:
                version, put = self._put
                known = version == self.pieces.version and self._looked
                if known and self._stays_python(args, kwargs):  # in few frames
                    return run(self, put, self.plain, args, kwargs)
                return self.call(args, kwargs)
            result = self.first(args, kwargs)
            return self._other(args, kwargs) if result is GUARD_FAILED else result
        except Refusal as refusal:
            hide(refusal)
            raise

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same, with packed arguments."""
        if self._stays_python(args, kwargs):
            return self.as_python(args, kwargs)
        result = self.first(args, kwargs)
        return self._other(args, kwargs) if result is GUARD_FAILED else result

    @property
    def tried(self) -> bool:
        """Whether it was captured or refused."""
        return bool(self._entries or self.refusals)

    # ---- as Python ---------------------------------------------------------------------------

    def called(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A module that its code has called."""
        if id(module) not in self._seen:  # it may be below another piece, too
            self._seen[id(module)] = module
            self.pieces.version += 1
        return self._piece(module, id(module), torch_api.plain_call(module), args, kwargs)

    def region(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A region that its code has called; as a method it is one for each object."""
        target, key, args = region_of(function, args)
        return self._piece(target, key, target, args, kwargs)

    def _piece(
        self, target: Any, key: Any, plain: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        piece = self.pieces.of(target, key, self)
        if piece is None:
            return plain(*args, **kwargs)
        fresh = not piece.tried
        with alone(piece.module, below=fresh):
            result = piece.call(args, kwargs)
        if fresh or piece.refusals:
            self.pieces.judge(piece, key)
        return result

    def as_python(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run its own code; what it calls is captured."""
        version, put = self._put
        if version != self.pieces.version:
            version, put = self._put = self.pieces.version, list(self._frontier())
        if self._looked:
            return run(self, put, self.plain, args, kwargs)
        self._looked = True
        with seeing_all(self):
            return run(self, put, self.plain, args, kwargs)

    def passed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of its own code, if that runs and nothing is new; else GUARD_FAILED."""
        version, put = self._put
        looked = version == self.pieces.version and self._looked
        if not (looked and self._stays_python(args, kwargs)):
            return GUARD_FAILED
        return run(self, put, self.plain, args, kwargs)

    def leads_anywhere(self) -> bool:
        """Whether it calls a module that is captured, or may be."""
        return bool(self._entries or self._put[1]) or self._put[0] != self.pieces.version

    def _frontier(self) -> Iterator[tuple[dict[str, Any], Callable[..., Any]]]:
        """Where calls of modules are to come here: of its pieces, and of what it may yet call."""
        found: dict[int, nn.Module] = {}
        queue = [*self._children(self.module), *self._seen.values()]
        self.small_ones = 0
        while queue:
            module = queue.pop()
            if id(module) in found or isinstance(module, (CompiledModule, torch.jit.ScriptModule)):
                continue
            found[id(module)] = module
            known = self.pieces.table.get(id(module))
            if known is None:
                queue += self._children(module)
            elif known[1] is None:
                self.small_ones += 1
                continue
            if has_forward(module):
                yield vars(module), self._caller(module, known[1] if known else None)

    def _caller(self, module: nn.Module, piece: "PartialCapture | None") -> Callable[..., Any]:
        if piece is None or not piece.tried:
            return caller(module)
        if piece.refusals:
            return run_by(module, piece.passed)
        return answered_by(module, lambda: piece.first)

    def _children(self, module: nn.Module | None) -> list[nn.Module]:
        if module is None:
            return [*owners_of(self.fn).values()]
        return [each for each in torch_api.submodule_table(module).values() if each is not None]

    # ---- captures ----------------------------------------------------------------------------

    def _check_count(
        self, broken: list[Broken], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Refuse one more capture that is not worth it.

        Raises:
            Refusal: it is not.
        """
        waits = self._backoff.waits()
        if waits and not self._worth.raises(broken):
            raise Refusal("the program raised when it was captured last", kind=policy.RAISED)
        if broken:
            many = self.around is not None and len(self.recaptures) >= policy.RECAPTURES
            key = policy.key_of(self.module, args, kwargs)
            self._worth.check(broken, key, self._entries, many=waits or many)

    def _built(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        """Note the entry of a capture."""
        self._worth.note(entry, policy.key_of(self.module, args, kwargs), self._entries)
        return entry

    def _counted(self, captured: Captured) -> Captured:
        """Note how many ops a capture has."""
        self.ops = max(self.ops, sum(1 for _ in leaf_ops(captured.recorded.ops)))
        return captured

    def _refused(self, refusal: Refusal, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run as Python; a call in which that raises, too, says nothing about the next.

        But that is not captured at once, and later and later: it may be of those that raise often.
        """
        if refusal.kind in policy.NOT_OF_PROGRAMS:
            raise refusal
        key, known = policy.key_of(self.module, args, kwargs), refusal.kind == policy.RAISED
        first = not known and self._tries < policy.TRIES and self._may_be_first(refusal)
        if refusal.kind == policy.AGAIN:  # whether it raises or not
            self._gave_up(refusal, key)
        with nullcontext() if known else self._backoff.unless_it_returns():
            if first:
                result = self._as_first(refusal, self.plain, args, kwargs)
            else:
                result = self.as_python(args, kwargs)
        if not (first or known):
            self._gave_up(refusal, key)
        return result

    def _gave_up(self, refusal: Refusal, key: policy.Key) -> None:
        """Run calls like this one as Python from now on; after some refusals all calls."""
        with self._lock:
            if refusal not in self.refusals.values():
                self._tries += 1
                if refusal.kind == policy.AGAIN:
                    self._rests = self._worth.rest()
                self.refusals[key if self._tries < policy.TRIES else None] = refusal
                self.pieces.note(self, refusal)

    def _stays_python(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call runs as Python; one that does is counted: captures are tried again."""
        refused = self.refusals
        key_of = policy.key_of
        if not (refused and (None in refused or key_of(self.module, args, kwargs) in refused)):
            return False
        if not self._rests:
            return True
        self._rests -= 1
        return self._rests > 0 or not self._came_back()

    def _came_back(self) -> bool:
        """Try captures again where those before were for nothing; gives whether all are tried."""
        with self._lock:
            left = {key: each for key, each in self.refusals.items() if each.kind != policy.AGAIN}
            self._tries -= len(self.refusals) - len(left)
            self.refusals = left
        return not left


def in_pieces(fn: Any, make: Making) -> PartialCapture:
    """A callable in the place of a program, which runs as Python where it has no graph.

    Args:
        fn: the program.
        make: gives the arguments of a `Compiled`, for the program or a piece of it.
    """
    return PartialCapture(Regions(make, fn), None, *make(fn))
