"""Which instruction takes what another one gives: the stack, followed through every way of code.

`f(float, x)` and `float(x)` load the same name. What distinguishes them is the operand of the call
that the name becomes. An instruction that is not known takes everything that is on the stack.
"""

import dis
import inspect
from collections import defaultdict
from collections.abc import Iterable
from types import CodeType, MappingProxyType
from typing import Any, Final, NamedTuple

from foretrace.errors import Attempt
from foretrace.ir.source.instructions import (
    LOAD,
    LOCAL,
    STORE,
    Instruction,
    instructions,
)

Item = frozenset[int]
"""What is on the stack: which instructions may have put it there, by their number; none: unknown"""
Stack = tuple[Item, ...]
NULL: Final[Item] = frozenset({-1})
"""What lies beside a function that is called without an object"""
UNKNOWN: Final[Item] = frozenset()

GIVES: Final = MappingProxyType(
    {
        0: """RESUME NOP NOT_TAKEN KW_NAMES SETUP_ANNOTATIONS MAKE_CELL COPY_FREE_VARS
        POP_TOP POP_EXCEPT POP_ITER END_FOR END_ASYNC_FOR RAISE_VARARGS RERAISE PRINT_EXPR
        IMPORT_STAR STORE_FAST STORE_FAST_MAYBE_NULL STORE_NAME STORE_GLOBAL STORE_DEREF STORE_ATTR
        STORE_SUBSCR STORE_SLICE DELETE_FAST DELETE_NAME DELETE_GLOBAL DELETE_DEREF DELETE_ATTR
        DELETE_SUBSCR LIST_APPEND LIST_EXTEND SET_ADD SET_UPDATE MAP_ADD DICT_UPDATE DICT_MERGE
        JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE
        POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE
        POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_TRUE
        POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE""",
        1: """LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_BORROW LOAD_FAST_AND_CLEAR LOAD_CLOSURE LOAD_DEREF
        LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS LOAD_NAME LOAD_LOCALS
        LOAD_CONST LOAD_SMALL_INT LOAD_COMMON_CONSTANT LOAD_ASSERTION_ERROR LOAD_BUILD_CLASS
        UNARY_POSITIVE UNARY_NEGATIVE UNARY_NOT UNARY_INVERT TO_BOOL BINARY_OP BINARY_SUBSCR
        BINARY_SLICE COMPARE_OP CONTAINS_OP IS_OP GET_ITER GET_YIELD_FROM_ITER GET_AITER
        GET_AWAITABLE BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP BUILD_CONST_KEY_MAP BUILD_STRING
        BUILD_SLICE BUILD_TEMPLATE BUILD_INTERPOLATION LIST_TO_TUPLE FORMAT_VALUE FORMAT_SIMPLE
        FORMAT_WITH_SPEC CONVERT_VALUE CALL CALL_KW CALL_FUNCTION_EX CALL_INTRINSIC_1
        CALL_INTRINSIC_2 MAKE_FUNCTION SET_FUNCTION_ATTRIBUTE IMPORT_NAME MATCH_CLASS
        WITH_EXCEPT_START PREP_RERAISE_STAR ASYNC_GEN_WRAP END_SEND RETURN_GENERATOR""",
    }
)
"""How many values each leaves, by CPython's names on each Python that is known"""
TAKES: Final = MappingProxyType(
    {
        1: """LOAD_ATTR LOAD_METHOD IMPORT_FROM FOR_ITER UNPACK_SEQUENCE UNPACK_EX GET_LEN GET_ANEXT
        MATCH_MAPPING MATCH_SEQUENCE BEFORE_WITH BEFORE_ASYNC_WITH LOAD_SPECIAL PUSH_EXC_INFO
        RETURN_VALUE YIELD_VALUE JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP""",
        2: "MATCH_KEYS CHECK_EXC_MATCH CHECK_EG_MATCH SEND",
        3: "CLEANUP_THROW LOAD_SUPER_ATTR",
    }
)
"""How many each takes, of those that leave several"""
PUSHED: Final = MappingProxyType({name: n for n, names in GIVES.items() for name in names.split()})
POPPED: Final = MappingProxyType({name: n for n, names in TAKES.items() for name in names.split()})
ENDS: Final = frozenset({
    "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
})  # fmt: skip
"""After these the next one is not run"""
GENERATES: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
OF_GENERATOR: Final = dis.stack_effect(dis.opmap["RETURN_GENERATOR"])
"""Where it is 0 (3.11), a generator begins with what is sent to it on the stack"""
CALLING: Final = [each.opname for each in dis.get_instructions(compile("f()", "", "eval"))]
NULL_BENEATH: Final = CALLING.index("PUSH_NULL") < CALLING.index("LOAD_NAME")
"""Whether the NULL lies below what is called (until 3.12) or above"""
DEFAULTS, ANNOTATIONS, OF_MAKING = 0b11, 4, "MAKE_FUNCTION"
"""The arguments of MAKE_FUNCTION: below its code (until 3.12), or one by one"""


class Called(NamedTuple):
    """What a call calls, and what with; of a method, its object is not among that."""

    function: Item
    arguments: Stack
    place: int
    """which operand the function is"""


class Taken(NamedTuple):
    """One use of a value: the instruction that pops it, and where."""

    by: int
    """its number"""
    place: int
    """as which of its operands, from the bottom; -1: it is not known what it does"""


class Flow:
    """The instructions of code, and what each takes.

    `understood` is False where the stack could not be followed to its end.
    """

    def __init__(self, code: CodeType) -> None:
        self.instructions = instructions(code)
        self.operands: dict[int, list[Item]] = {}
        """by the number of an instruction, what it takes, the lowest first"""
        self.unknown = set[str]()
        """CPython's names of instructions that are not known"""
        self.understood = True
        self.deepest = 0
        self._taken: dict[int, set[Taken]] | None = None
        self._seen: dict[int, Stack] = {}
        self._waiting: list[int] = []
        self._places: dict[int, int] = {}
        for place, each in enumerate(self.instructions):
            self._places.setdefault(each.start, place)
        self._follow(code)

    def takers(self, place: int) -> Iterable[Taken]:
        """What takes the value that an instruction gives."""
        if self._taken is None:
            self._taken = defaultdict(set)
            for by, operands in self.operands.items():
                unknown = dis.opname[self.instructions[by].opcode] in self.unknown
                for n, item in enumerate(operands):
                    for giver in item:
                        self._taken[giver].add(Taken(by, -1 if unknown else n))
        return self._taken.get(place, ())

    def called(self, by: int) -> Called:
        """What an instruction that calls takes."""
        first, second, *_ = operands = self.operands[by]
        place = 1 if first == NULL else 0
        alone = NULL not in (first, second) and first != second  # the second is the first argument
        return Called(operands[place], tuple(operands[1 if alone else 2 :]), place)

    def only_called(self, place: int) -> bool:
        """Whether the value that an instruction gives is called, and nothing else takes it."""
        for taken in self.takers(place):
            if taken.place < 0 or self.instructions[taken.by].does != "call":
                return False
            call = self.called(taken.by)
            if place not in call.function or any(place in each for each in call.arguments):
                return False
        return True

    def annotates(self, taken: Taken) -> bool:
        """Whether what is taken becomes the annotations of a new function."""
        each = self.instructions[taken.by]
        flags = each.number or 0
        if each.does != "make function" or not flags & ANNOTATIONS:
            return False
        beneath = (flags & DEFAULTS).bit_count() if dis.opname[each.opcode] == OF_MAKING else 0
        return taken.place == beneath

    def makes_type(self, taken: Taken) -> bool:
        """Whether what is built of it is a type where it is one: `(int, float)`, `int | None`."""
        each = self.instructions[taken.by]
        built = each.does == "operate" or dis.opname[each.opcode] == "BUILD_TUPLE"
        return built and taken.place >= 0

    def put_into(self, taken: Taken) -> Item | None:
        """The container in which what is taken is put under a key; None: it is not so."""
        opname = dis.opname[self.instructions[taken.by].opcode]
        if opname == "STORE_SUBSCR" and taken.place == 0:
            return self.operands[taken.by][1]
        built = opname == "BUILD_MAP" and taken.place % 2 == 1
        return frozenset({taken.by}) if built else None

    def _follow(self, code: CodeType) -> None:
        starts = code.co_flags & GENERATES and not OF_GENERATOR
        self._reach(0, (UNKNOWN,) if starts else ())
        read: Any = dis.Bytecode(code)
        # a Python that is newer than the tables may have jumps and effects of another form
        with Attempt(KeyError, IndexError, ValueError) as attempt:
            for entry in read.exception_entries:
                depth = entry.depth + entry.lasti + 1
                self._reach(self._places[entry.target], (UNKNOWN,) * depth)
            while self._waiting and self.understood:
                place = self._waiting.pop()
                self._step(place, self.instructions[place], self._seen[place])
        self.understood = self.understood and attempt.error is None

    def _reach(self, place: int, stack: Stack) -> None:
        """A way leads to an instruction with such a stack."""
        self.deepest = max(self.deepest, len(stack))
        known = self._seen.get(place)
        if known is not None:
            if len(known) != len(stack):
                self.understood = False
                return
            stack = tuple(one | other for one, other in zip(known, stack, strict=True))
        if known != stack:
            self._seen[place] = stack
            self._waiting.append(place)

    def _step(self, place: int, each: Instruction, stack: Stack) -> None:
        ends = dis.opname[each.opcode] in ENDS and each.does != LOAD
        if not ends:
            self._reach_after(place, each, stack, place + 1, jump=False)
        if each.jumps is not None:
            self._reach_after(place, each, stack, self._places[each.jumps], jump=True)
        elif ends:
            self._reach_after(place, each, stack, -1, jump=False)

    def _reach_after(
        self, place: int, each: Instruction, stack: Stack, to: int, *, jump: bool
    ) -> None:
        opname, number = dis.opname[each.opcode], each.number
        if opname in ("COPY", "SWAP") and number and number <= len(stack):
            below = stack[-number]
            top = (
                (*stack, below)
                if opname == "COPY"
                else (*stack[:-number], stack[-1], *stack[len(stack) - number + 1 : -1], below)
            )
            self._reach(to, top)
            return
        takes, gives = self._effect(each, len(stack), jump=jump)
        if takes > len(stack) or gives < 0:
            self.understood = False
            return
        left, operands = stack[: len(stack) - takes], stack[len(stack) - takes :]
        known = self.operands.get(place)
        if known is not None and len(known) == len(operands):
            operands = tuple(one | other for one, other in zip(known, operands, strict=True))
        self.operands[place] = list(operands)
        if to >= 0:
            self._reach(to, (*left, *self._arguments(place, each, gives)))

    def _arguments(self, place: int, each: Instruction, gives: int) -> Stack:
        itself, opname = frozenset({place}), dis.opname[each.opcode]
        if opname == "PUSH_NULL":
            return (NULL,)
        if opname == "LOAD_GLOBAL" and gives > 1:
            return (NULL, itself) if NULL_BENEATH else (itself, NULL)
        return (itself,) * gives

    def _effect(self, each: Instruction, depth: int, *, jump: bool) -> tuple[int, int]:
        """How many values it takes, and how many it leaves."""
        opname = dis.opname[each.opcode]
        if opname == "RETURN_CONST" or (each.of == LOCAL and each.does in (LOAD, STORE)):
            return (0, 1) if each.does == LOAD else (1, 0)  # two in one of CPython's
        if opname == "CALL":  # 3.11 divides it into two instructions
            return 2 + (each.number or 0), 1
        net = dis.stack_effect(each.opcode, each.number, jump=jump)
        if opname in PUSHED:
            return PUSHED[opname] - net, PUSHED[opname]
        if opname in POPPED:
            return POPPED[opname], POPPED[opname] + net
        if opname in ("LOAD_GLOBAL", "PUSH_NULL"):
            return 0, net
        self.unknown.add(opname)
        return depth, depth + net


def called_at(code: CodeType, offset: int) -> str:
    """The name of what is called by the instruction there; "" where no name says it."""
    flow = Flow(code)
    by = next((n for n, each in enumerate(flow.instructions) if each.offset == offset), -1)
    if by not in flow.operands or flow.instructions[by].does != "call":
        return ""
    names = {str(flow.instructions[n].arg) for n in flow.called(by).function if n >= 0}
    return names.pop() if len(names) == 1 else ""
