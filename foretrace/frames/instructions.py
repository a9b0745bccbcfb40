"""Bytecode in words that are the same on each Python.

CPython renames, joins and splits instructions from version to version; the names that it gives them
are known here and in `stack.py` alone. What reads code asks here for the kind of an instruction and
for the name that it speaks of; `stack.py` says which one takes what another gives.
`tests/unit/frames/` reads the standard library by both, on each Python.
"""

import dis
import re
from collections.abc import Iterator
from types import CodeType, MappingProxyType
from typing import Any, Final, NamedTuple

LOCAL, CELL, GLOBAL, NAME, ATTRIBUTE, ITEM, CONSTANT = (
    "local", "cell", "global", "name", "attribute", "item", "constant",
)  # fmt: skip
"""Where a value is loaded from or stored to; a name is looked up in a class or module first"""
LOAD, STORE, DELETE = "load", "store", "delete"


class Instruction(NamedTuple):
    """One instruction. One of CPython's that loads or stores two locals is two of these."""

    does: str
    """LOAD, STORE or DELETE; "call", "import", "contains", "operate" ...; else CPython's name"""
    of: str
    """where it loads from, stores to or deletes; else "" """
    arg: Any
    """the name, the constant, the file; of "operate" the operator's text; of "call" a number"""
    offset: int
    start: int
    """the offset of its first part, to which others jump"""
    line: int | None
    opcode: int
    number: int | None
    """the argument as CPython has it"""
    jumps: int | None
    """the offset to which it may go on"""

    @property
    def kind(self) -> tuple[str, str]:
        """What it does, and of what."""
        return self[:2]


SAME: Final = MappingProxyType({
    "LOAD_CLOSURE": (LOAD, LOCAL),  # the cell itself, which later Pythons load as a local
    "LOAD_METHOD": (LOAD, ATTRIBUTE),
    "LOAD_SMALL_INT": (LOAD, CONSTANT), "LOAD_COMMON_CONSTANT": (LOAD, CONSTANT),
    "BINARY_SUBSCR": (LOAD, ITEM), "BINARY_SLICE": (LOAD, ITEM),
    "STORE_SUBSCR": (STORE, ITEM), "STORE_SLICE": (STORE, ITEM), "DELETE_SUBSCR": (DELETE, ITEM),
    "CALL": ("call", ""), "CALL_KW": ("call", ""), "CALL_FUNCTION_EX": ("call", ""),
    "BINARY_OP": ("operate", ""), "CONTAINS_OP": ("contains", ""), "COPY": ("copy", ""),
    "IMPORT_NAME": ("import", ""), "IMPORT_FROM": ("import from", ""),
    "MAKE_FUNCTION": ("make function", ""), "SET_FUNCTION_ATTRIBUTE": ("make function", ""),
    "RETURN_CONST": ("RETURN_VALUE", ""),
})  # fmt: skip
"""Kinds that the words of a name do not tell"""
WORDS: Final = MappingProxyType({
    "FAST": LOCAL, "DEREF": CELL, "CLASSDEREF": CELL, "CONST": CONSTANT, "ATTR": ATTRIBUTE,
    "GLOBAL": GLOBAL, "NAME": NAME, "GLOBALS": NAME,
})  # fmt: skip
"""What the words of CPython's names say; `dis.haslocal` has LOAD_DEREF, too (3.14)"""
BOTH: Final = re.compile("(LOAD|STORE)_FAST")
PARTS: Final = frozenset({"EXTENDED_ARG", "PRECALL"})
"""Parts of the next instruction"""
JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs}) - {dis.opmap["END_ASYNC_FOR"]}
SUBSCRIPT: Final = "[]"
"""The operator by which later Pythons take an item"""


def instructions(code: CodeType) -> list[Instruction]:
    """The instructions of code, as written: not as the interpreter has specialised them."""
    return list(_read(code))


def _read(code: CodeType) -> Iterator[Instruction]:
    start: int | None = None
    for each in dis.get_instructions(code):
        start = each.offset if start is None else start
        opname, opcode, arg = each.opname, each.opcode, each.argval
        if opname in PARTS:
            continue
        line = each.positions.lineno if each.positions else None
        jumps = arg if opcode in JUMPS else None
        does, of = KINDS.get(opcode, (opname, ""))
        rest = (each.offset, start, line, opcode, each.arg, jumps)
        start = None
        if of == LOCAL and type(arg) is tuple:
            verbs = BOTH.findall(opname)
            for verb, name in zip(verbs, arg, strict=True):
                yield Instruction(verb.lower(), LOCAL, name, *rest)
            continue
        if opname == "RETURN_CONST":
            yield Instruction(LOAD, CONSTANT, arg, *rest)
            arg = None
        elif does == "operate":
            arg = each.argrepr
            does, of = (LOAD, ITEM) if arg == SUBSCRIPT else (does, of)
        elif opname == "LOAD_COMMON_CONSTANT":
            arg = each.argrepr
        yield Instruction(does, of, arg, *rest)


def _kind(opname: str) -> tuple[str, str]:
    """What an instruction does, and of what: by the words of its name, where they tell."""
    verb, *words = opname.split("_")
    place = next((WORDS[word] for word in words if word in WORDS), None)
    told = verb.lower() in (LOAD, STORE, DELETE) and place is not None
    return SAME.get(opname) or ((verb.lower(), place or "") if told else (opname, ""))


KINDS: Final = MappingProxyType({opcode: _kind(opname) for opname, opcode in dis.opmap.items()})


# ---- asked of the bytes alone, as it is asked of hundreds of functions in each capture

CONTAINS: Final = dis.opmap["CONTAINS_OP"]
LOADS_GLOBAL: Final = dis.opmap["LOAD_GLOBAL"]
LOADS_NAME: Final = frozenset(
    dis.opmap[name] for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap
)
BINDS_GLOBAL: Final = frozenset({dis.opmap["STORE_GLOBAL"], dis.opmap["DELETE_GLOBAL"]})
SETS_ATTRIBUTE: Final = frozenset({dis.opmap["STORE_ATTR"], dis.opmap["DELETE_ATTR"]})
WIDE: Final = 128
"""From here on the place of a name in the code takes more than a byte"""


def opcodes(code: CodeType) -> frozenset[int]:
    """The opcodes in code."""
    return frozenset(code.co_code[::2])


def contains_at(code: CodeType, offset: int) -> bool:
    """Whether the instruction there asks whether a container holds something: `x in y`."""
    return code.co_code[offset] == CONTAINS


def looks_up(code: CodeType, names: frozenset[str]) -> bool:
    """Whether code may look a name up in a module; an attribute of that name alone is none."""
    places = {n for n, name in enumerate(code.co_names) if name in names}
    if not places or max(places) >= WIDE:
        return bool(places)
    steps = zip(code.co_code[::2], code.co_code[1::2], strict=True)
    return any(
        (op == LOADS_GLOBAL and arg >> 1 in places) or (op in LOADS_NAME and arg in places)
        for op, arg in steps
    )


def nested(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of the functions and classes inside."""
    yield code
    for inner in code.co_consts:
        if type(inner) is CodeType:
            yield from nested(inner)
