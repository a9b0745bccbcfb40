"""What Python keeps in C of classes, functions and the process, and how it may change."""

from typing import Final

from tests.fuzz.thing import Thing, thing

IN_C: Final[tuple[Thing, ...]] = (
    thing("names", "class Named: 'ab'\ndef named(): 'ab'",
          "x * len(Named.__name__) ; x * len(named.__name__) ; x * len(named.__doc__) ; "
          "x * len(Named.__qualname__)",
          "Named.__name__ = 'Longer' ; named.__name__ = 'q' ; named.__doc__ = 'longer' ; "
          "Named.__qualname__ = 'q' ; named.__qualname__ = 'of.another'"),
    thing("bases", "class Left:\n    def f(self): return 2.0\n"
          "class Right:\n    def f(self): return 3.0\n"
          "class OfLeft(Left): pass\nclass OfRight(Right): pass\nHEIR = OfLeft()",
          "x * HEIR.f() ; x * len(OfLeft.__bases__) ; x * (Right in OfLeft.__mro__) ; "
          "x * isinstance(HEIR, Right) ; x * (1 + len(Left.__subclasses__()))",
          "OfLeft.__bases__ = (Right,) ; OfLeft.__bases__ = (Left, Right) ; "
          "names['MADE'] = type('Made', (Left,), {}); gc.collect()"),
    thing("registered", "from abc import ABC\nclass Shape(ABC): pass\nclass Plain: pass\n"
          "PLAIN = Plain()",
          "x * isinstance(PLAIN, Shape) ; x * issubclass(Plain, Shape)",
          "Shape.register(Plain) ; Plain.__bases__ = (Shape,) ; Shape.__subclasshook__ = "
          "classmethod(lambda cls, other: True)"),
    thing("special methods", "class Special:\n    def __len__(self): return 2\n"
          "    def __iter__(self): return iter([1.0, 2.0])\n    def __float__(self): return 2.0\n"
          "SPECIAL, SAME = Special(), Special()",
          "x * len(SPECIAL) ; x * sum(SPECIAL) ; x * float(SPECIAL) ; x * bool(SPECIAL) ; "
          "x * (SPECIAL == SAME) ; x * callable(SPECIAL)",
          "Special.__len__ = lambda self: 3 ; Special.__iter__ = lambda self: iter([5.0]) ; "
          "Special.__float__ = lambda self: 7.0 ; Special.__bool__ = lambda self: False ; "
          "Special.__eq__ = lambda self, other: True ; Special.__call__ = lambda self: 1"),
    thing("cells", "def cell(k):\n    def inner(): return k\n    return inner\nINNER = cell(2.0)",
          "x * INNER() ; x * INNER.__closure__[0].cell_contents",
          "INNER.__closure__[0].cell_contents = 5.0"),
    thing("exceptions", "ERROR = ValueError(2.0, 3.0)", "x * ERROR.args[0] ; x * len(ERROR.args)",
          "ERROR.args = (7.0,) ; ERROR.args = ()"),
    thing("views of a dict", "VIEWED = {'a': 2.0}\nKEYS, VALUES = VIEWED.keys(), VIEWED.values()\n"
          "BOTH = VIEWED.items()",
          "x * len(KEYS) ; x * sum(VALUES) ; x * len(BOTH) ; x * ('b' in KEYS)",
          "VIEWED['a'] = 5.0 ; VIEWED['b'] = 7.0 ; VIEWED.clear()"),
    thing("members of an enumeration", "class Size(enum.Enum):\n    S = 1\n    M = 2",
          "x * len(Size) ; x * ('L' in Size.__members__)",
          "Size._member_names_.append('M') ; Size._member_map_['L'] = Size.M"),
    thing("decimal", "decimal.setcontext(decimal.Context())\nTHIRD = decimal.Decimal(1)",
          "x * float(THIRD / 3) ; x * float(decimal.Decimal(2) / 7)",
          "decimal.getcontext().prec = 3 ; decimal.getcontext().rounding = 'ROUND_UP' ; "
          "decimal.setcontext(decimal.Context(prec=5))"),
    thing("builtins", "import builtins\nbuiltins.ADDED = 2.0", "x * ADDED",
          "builtins.ADDED = 5.0 ; names['ADDED'] = 6.0"),
    thing("the process", "import threading\nthreading.current_thread().name = 'main'\n"
          "np.seterr(divide='warn')",
          "x * sys.getrecursionlimit() ; x * len(threading.current_thread().name) ; "
          "x * len(np.geterr()['divide'])",
          "sys.setrecursionlimit(sys.getrecursionlimit() + 100) ; "
          "threading.current_thread().name = 'another' ; np.seterr(divide='ignore')"),
    thing("a lock and a queue", "import queue, threading\nLOCK, QUEUED = threading.Lock(), "
          "queue.SimpleQueue()",
          "x * LOCK.locked() ; x * (1 + QUEUED.qsize())",
          "LOCK.acquire(blocking=False) ; QUEUED.put(1)"),
    thing("matched", "class Both:\n    __match_args__ = ('a',)\n"
          "    def __init__(self): self.a, self.b = 2.0, 7.0\nBOTH_OF = Both()\n"
          "def matched():\n    match BOTH_OF:\n        case Both(found): return found",
          "x * matched()", "Both.__match_args__ = ('b',)"),
)  # fmt: skip
"""All of them"""
