"""Bytecode in words that are the same on each Python.

CPython renames, joins and splits instructions from version to version; the names that it gives them
are known here and in `stack.py` alone. What reads code asks here for the kind of an instruction and
for the name that it speaks of; `stack.py` says which one takes what another gives.
`tests/unit/ir/source/` reads the standard library by both, on each Python.
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
Kind = tuple[str, str]
"""What an instruction does, and of what"""
Word = tuple[Kind, Any]
"""A kind with the name or the constant: see `Instruction.arg`"""


class Instruction(NamedTuple):
    """One instruction. One of CPython's that loads or stores two locals is two of these."""

    kind: Kind
    """what it does, and of what: see `does` and `of`"""
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
    def does(self) -> str:
        """LOAD, STORE or DELETE; "call", "import", "contains", "operate"; else CPython's name."""
        return self.kind[0]

    @property
    def of(self) -> str:
        """Where it loads from, stores to or deletes; else nothing."""
        return self.kind[1]


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
"""Kinds that the words of a name do not say"""
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
    found, start = list[Instruction](), -1
    for each in dis.get_instructions(code):
        start = each.offset if start < 0 else start
        line = each.positions.lineno if each.positions else None
        jumps = each.argval if each.opcode in JUMPS else None
        for kind, arg in _words(each):
            place = each.offset, start, line
            found.append(Instruction(kind, arg, *place, each.opcode, each.arg, jumps))
        start = start if each.opname in PARTS else -1
    return found


def words(code: CodeType) -> list[Word]:
    """What the instructions of code do, and by which names, without their places."""
    found = list[Word]()
    for each in dis.get_instructions(code):
        opcode = each.opcode
        if opcode in UNEVEN:
            found += _words(each)
        else:
            found.append((KINDS[opcode], each.argval))
    return found


def _words(each: dis.Instruction) -> tuple[Word, ...]:
    """What one of CPython's instructions is: none where it is part of the next."""
    kind, arg = KINDS[each.opcode], each.argval
    if each.opcode not in UNEVEN:
        return ((kind, arg),)
    if each.opname in PARTS:
        return ()
    if each.opname == "RETURN_CONST":
        return ((LOAD, CONSTANT), arg), (kind, None)
    if kind[1] == LOCAL:
        pairs = zip(BOTH.findall(each.opname), arg, strict=True)
        return tuple(((verb.lower(), LOCAL), name) for verb, name in pairs)
    return (((LOAD, ITEM) if each.argrepr == SUBSCRIPT else kind, each.argrepr),)


def _kind(opname: str) -> Kind:
    """What an instruction does, and of what: by the words of its name, where those say it."""
    verb, *rest = opname.split("_")
    place = next((WORDS[word] for word in rest if word in WORDS), None)
    known = verb.lower() in (LOAD, STORE, DELETE) and place is not None
    return SAME.get(opname) or ((verb.lower(), place or "") if known else (opname, ""))


KINDS: Final = tuple(map(_kind, dis.opname[:256]))
UNEVEN: Final = frozenset(
    opcode
    for opcode, name in enumerate(dis.opname[:256])
    if name in PARTS | {"RETURN_CONST", "BINARY_OP", "LOAD_COMMON_CONSTANT"}
    or len(BOTH.findall(name)) > 1
)
"""Opcodes of what is not one instruction, or is known by more than its kind and CPython's value"""


# ---- asked of the bytes alone, as it is asked of hundreds of functions in each capture

CONTAINS: Final = dis.opmap["CONTAINS_OP"]
LOADS_GLOBAL: Final = dis.opmap["LOAD_GLOBAL"]
COPY, CACHE = dis.opmap["COPY"], bytes([dis.opmap["CACHE"]])
LOADS_NAME: Final = frozenset(
    dis.opmap[name] for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap
)
WIDE: Final = 128
"""From here on the place of a name in the code takes more than a byte"""


def contains_at(code: CodeType, offset: int) -> bool:
    """Whether the instruction there asks whether a container holds something: `x in y`."""
    return code.co_code[offset] == CONTAINS


def looked_up(code: CodeType, names: frozenset[str]) -> tuple[frozenset[str], bool]:
    """Which names code may look up in a module, and whether it is known that it only calls them.

    What is pushed with a NULL beside it is called, and that alone if it is not copied first. An
    attribute of that name is no lookup.
    """
    places = {n: name for n, name in enumerate(code.co_names) if name in names}
    if not places or max(places) >= WIDE:
        return frozenset(places.values()), not places
    ops, args = code.co_code[::2], code.co_code[1::2]
    found, only_called = set[str](), True
    for n, (op, arg) in enumerate(zip(ops, args, strict=True)):
        if op == LOADS_GLOBAL and arg >> 1 in places:
            found.add(places[arg >> 1])
            only_called &= arg & 1 == 1 and ops[n + 1 :].lstrip(CACHE)[0] != COPY
        elif op in LOADS_NAME and arg in places:
            found.add(places[arg])
            only_called = False
    return frozenset(found), only_called


def nested(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of the functions and classes inside."""
    yield code
    for inner in code.co_consts:
        if type(inner) is CodeType:
            yield from nested(inner)
