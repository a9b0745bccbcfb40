"""What a program may read of the world, and how each of it may change between two calls.

A thing is code that puts it there, expressions that read it (`x` is a tensor), and statements that
change it: `fn` is the program, `names` are the globals of its module.
"""

from typing import Final

from tests.fuzz.grammar import each
from tests.fuzz.thing import thing
from tests.fuzz.things_in_c import IN_C
from tests.fuzz.things_led_to import LED_TO
from tests.fuzz.things_replaced import REPLACED

OBJECTS: Final = (
    thing("global", "SCALE = 2.0", "x * SCALE", "names['SCALE'] = 3.0 ; names['SCALE'] = 3"),
    thing(
        "attribute",
        "class Box:\n    k = 2.0\nBOX = Box()\nBOX.a = 3.0",
        "x * BOX.a ; x * BOX.k ; x * getattr(BOX, 'a') ; x * vars(BOX)['a'] ; x * len(vars(BOX)) ;"
        "x * hasattr(BOX, 'late') ; x * ('late' in BOX.__dict__)",
        "BOX.a = 5.0 ; Box.k = 4.0 ; BOX.k = 7.0 ; BOX.late = 1 ; names['BOX'] = Box() ; "
        "BOX.__dict__ = {'a': 9.0} ; Box.a = 11.0 ; del BOX.a",
    ),
    thing(
        "class of an object",
        "class First:\n    def go(self, x): return x + 1\n"
        "class Second(First):\n    def go(self, x): return x * 10\nHELPER = First()",
        "HELPER.go(x) ; x * isinstance(HELPER, Second) ; x * (type(HELPER) is First) ;"
        "x * len(type(HELPER).__name__)",
        "HELPER.__class__ = Second ; First.go = lambda self, x: x * 3 ; "
        "HELPER.go = lambda x: x * 7 ; names['HELPER'] = Second() ; HELPER.__class__ = First",
    ),
    thing(
        "slots",
        "class Slotted:\n    __slots__ = ('v',)\nSLOTTED = Slotted()\nSLOTTED.v = 2.0",
        "x * SLOTTED.v",
        "SLOTTED.v = 4.0 ; object.__setattr__(SLOTTED, 'v', 6.0)",
    ),
    thing(
        "frozen dataclass",
        "@dataclasses.dataclass(frozen=True)\nclass Frozen:\n    v: float = 2.0\nFROZEN = Frozen()",
        "x * FROZEN.v",
        "object.__setattr__(FROZEN, 'v', 5.0) ; names['FROZEN'] = Frozen(3.0)",
    ),
    thing(
        "property and getattr",
        "class Asked:\n    def __init__(self): self.table = {'q': 2.0}\n"
        "    def __getattr__(self, name):\n        if name == 'q': return self.table['q']\n"
        "        raise AttributeError(name)\n    @property\n"
        "    def p(self): return self.table['q'] + 1\n"
        "ASKED = Asked()",
        "x * ASKED.q ; x * ASKED.p",
        "ASKED.table['q'] = 5.0 ; ASKED.__dict__['q'] = 8.0 ; Asked.p = property(lambda self: 9.0)",
    ),
    thing(
        "metaclass",
        "class Meta(type):\n    k = 2.0\nclass Made(metaclass=Meta): pass",
        "x * Made.k",
        "Meta.k = 4.0 ; Made.k = 6.0",
    ),
    thing(
        "what a class holds",
        "class Leaf:\n    def __init__(self): self.k = 2.0\n"
        "class Holds:\n    leaf = Leaf()\n    rows = [{'a': 2.0, 'leaf': Leaf()}]\n"
        "class Outer:\n    inner = Holds",
        "x * Holds.leaf.k ; x * Holds.rows[0]['a'] ; x * Holds.rows[0]['leaf'].k ; "
        "x * Outer.inner.leaf.k",
        "Holds.leaf.k = 3.0 ; Holds.rows[0]['a'] = 5.0 ; Holds.rows[0]['leaf'].k = 7.0 ; "
        "Holds.leaf = Leaf() ; Outer.inner.leaf.k = 9.0",
    ),
    thing(
        "enum",
        "class Kind(enum.Enum):\n    A = 2\n    B = 3\nKIND = Kind.A",
        "x * KIND.value ; x * (KIND is Kind.A) ; x * len(KIND.name)",
        "names['KIND'] = Kind.B ; KIND._value_ = 7",
    ),
    thing(
        "method",
        "class Tool:\n    def f(self, x): return x * 2\n    @staticmethod\n"
        "    def g(x): return x * 3\n    @classmethod\n    def h(cls, x): return x * 4\n"
        "TOOL = Tool()",
        "TOOL.f(x) ; Tool.g(x) ; Tool.h(x)",
        "Tool.f = lambda self, x: x * 5 ; TOOL.f = lambda x: x * 6 ; Tool.g = lambda x: x * 7 ; "
        "Tool.h = lambda x: x * 8 ; Tool.f.__code__ = (lambda self, x: x * 9).__code__",
    ),
    thing(
        "defaults",
        "def helper(x, k=2.0, *, z=1.0): return x * k + z",
        "helper(x)",
        "helper.__defaults__ = (5.0,) ; helper.__kwdefaults__ = {'z': 4.0} ; "
        "helper.__kwdefaults__['z'] = 3.0 ; "
        "helper.__code__ = (lambda x, k=1, *, z=1: x).__code__ ; "
        "names['helper'] = lambda x: x * 11",
    ),
    thing(
        "cell of a decorator",
        "def scaled(by):\n    def wrap(f):\n        @functools.wraps(f)\n"
        "        def inner(x): return f(x) * by\n        return inner\n    return wrap\n"
        "@scaled(2.0)\ndef decorated(x): return x + 1",
        "decorated(x)",
        "decorated.__closure__[0].cell_contents = 5.0 ; "
        "decorated.__closure__[1].cell_contents = lambda x: x * 3 ; "
        "names['decorated'] = decorated.__wrapped__",
    ),
    thing(
        "partial",
        "PARTIAL = functools.partial(torch.mul, other=2.0)\n"
        "def two(x, k): return x * k\nBOUND = functools.partial(two, k=3.0)",
        "PARTIAL(x) ; BOUND(x)",
        "names['BOUND'] = functools.partial(two, k=4.0) ; "
        "BOUND.keywords['k'] = 5.0 ; PARTIAL.keywords['other'] = 7.0 ; "
        "BOUND.__setstate__((two, (), {'k': 6.0}, None))",
    ),
    thing(
        "module",
        "LIB = types.ModuleType('fuzz_lib')\nLIB.k = 2.0\nsys.modules['fuzz_lib'] = LIB",
        "x * LIB.k ; x * __import__('fuzz_lib').k ; x * sys.modules['fuzz_lib'].k",
        "LIB.k = 4.0 ; sys.modules['fuzz_lib'] = types.SimpleNamespace(k=6.0) ; "
        "LIB.__getattr__ = lambda name: 8.0 ; del LIB.k",
    ),
    thing(
        "a name that a module has not",
        "BARE = types.ModuleType('fuzz_bare')\nsys.modules['fuzz_bare'] = BARE\n"
        "def given(name):\n    if name == 'lazy': return 5.0\n    raise AttributeError(name)\n"
        "BARE.__getattr__ = given",
        "x * (2.0 if hasattr(BARE, 'late') else 3.0) ; x * getattr(BARE, 'late', 5.0) ; "
        "x * BARE.lazy ; x * sys.modules['fuzz_bare'].lazy",
        "BARE.late = 7.0 ; BARE.lazy = 9.0",
    ),
    thing(
        "shadowed builtin",
        "def shadow(x): return x * len([1, 2])",
        "shadow(x)",
        "names['len'] = lambda items: 7",
    ),
    thing(
        "readers in C",
        "class Plain:\n    a = 2.0\n    b = 3.0\nPLAIN = Plain()\nPLAIN.a = 4.0\n"
        "@dataclasses.dataclass\nclass Data:\n    u: float = 2.0\n    v: float = 3.0\n"
        "DATA = Data()\n"
        "GET = operator.attrgetter('a')\nFIRST = operator.itemgetter(0)\nSEQUENCE = [2.0, 3.0]\n"
        "FIELD = 'a'\nNAMES = ['a', 'b']",
        "x * GET(PLAIN) ; x * FIRST(SEQUENCE) ; x * sum(dataclasses.asdict(DATA).values()) ; "
        "x * dataclasses.astuple(DATA)[1] ; x * dataclasses.replace(DATA, u=1.0).v ; "
        "x * getattr(PLAIN, FIELD) ; x * getattr(*(PLAIN, FIELD)) ; "
        "x * sum(getattr(PLAIN, name) for name in NAMES) ; "
        "x * copy.copy(PLAIN).a ; x * len(repr(DATA)) ; x * (DATA == Data()) ; "
        "x * len(str(SEQUENCE)) ; "
        "x * functools.reduce(operator.mul, SEQUENCE) ; x * sum(map(float, SEQUENCE)) ; "
        "x * sum(vars(PLAIN).values()) ; x * eval('PLAIN.a') ; x * math.prod(SEQUENCE) ; "
        "x * globals()['PLAIN'].a ; x * float(f'{PLAIN.a}') ; x * len(json.dumps(SEQUENCE))",
        "PLAIN.a = 7.0 ; Plain.b = 9.0 ; DATA.v = 5.0 ; DATA.u = 6.0 ; SEQUENCE[0] = 8.0 ; "
        "names['FIELD'] = 'b' ; NAMES.append('a')",
    ),
    thing(
        "a function of torch's",
        "",
        "F.relu(x) ; torch.nn.functional.relu(x) ; F.softplus(x)",
        "names['F'] = types.SimpleNamespace(relu=torch.sin, softplus=torch.cos)",
    ),
)

CONTAINERS: Final = (
    thing("dict", "TABLE = {'a': 2.0, 'b': 3.0}",
          "x * TABLE['a'] ; x * TABLE.get('c', 1.0) ; x * len(TABLE) ; "
          "x * next(iter(TABLE.values())) ;"
          "x * ('c' in TABLE) ; x * sum(TABLE.values()) ; x * list(TABLE).index('b')",
          "TABLE['a'] = 5.0 ; TABLE['c'] = 7.0 ; TABLE['a'] = TABLE.pop('a') ; TABLE.clear() ; "
          "names['TABLE'] = {'b': 1.0, 'a': 4.0}"),
    thing("list", "ITEMS = [2.0, 3.0]",
          "x * ITEMS[0] ; x * len(ITEMS) ; x * max(ITEMS) ; x * sorted(ITEMS)[0] ; "
          "x * (4.0 in ITEMS) ;"
          "x * ITEMS.index(3.0) ; x * [i * 2 for i in ITEMS][1]",
          "ITEMS[0] = 5.0 ; ITEMS.append(4.0) ; ITEMS.reverse() ; ITEMS[:] = [9.0, 3.0] ; "
          "names['ITEMS'] = [1.0, 3.0, 2.0]"),
    thing("list with an attribute", "class Rows(list): pass\nROWS = Rows([1])\nROWS.k = 2.0",
          "x * ROWS.k ; x * ROWS[0]", "ROWS.k = 5.0 ; ROWS[0] = 4"),
    thing("set", "CHOSEN = {'sin'}", "x.sin() if 'sin' in CHOSEN else x.cos() ; x * len(CHOSEN)",
          "CHOSEN.discard('sin') ; CHOSEN.add('cos') ; names['CHOSEN'] = frozenset()"),
    thing("chain map", "INNER_MAP = {'a': 2.0}\nCHAIN = collections.ChainMap({}, INNER_MAP)",
          "x * CHAIN['a'] ; x * len(CHAIN)", "INNER_MAP['a'] = 5.0 ; CHAIN['a'] = 7.0 ; "
          "CHAIN.maps.insert(0, {'a': 9.0})"),
    thing("mapping proxy", "BEHIND = {'a': 2.0}\nPROXY = types.MappingProxyType(BEHIND)",
          "x * PROXY['a'] ; x * len(PROXY)", "BEHIND['a'] = 5.0 ; BEHIND['b'] = 1"),
    thing("default dict", "MISSED = collections.defaultdict(lambda: 3.0, a=2.0)",
          "x * MISSED['a'] ; x * MISSED.get('z', 4.0)", "MISSED['a'] = 5.0 ; MISSED['z'] = 6.0 ; "
          "MISSED.default_factory = lambda: 9.0"),
    thing("counter", "COUNTED = collections.Counter('aab')", "x * COUNTED['a'] ; x * COUNTED['q']",
          "COUNTED.update('aq') ; COUNTED.clear()"),
    thing("ordered dict", "ORDERED = collections.OrderedDict(a=2.0, b=3.0)",
          "x * next(iter(ORDERED.values())) ; x * list(ORDERED.values())[0]",
          "ORDERED.move_to_end('a') ; ORDERED['a'] = 4.0"),
    thing("deque", "QUEUE = collections.deque([2.0, 3.0], maxlen=3)",
          "x * QUEUE[0] ; x * len(QUEUE) ; x * sum(QUEUE)",
          "QUEUE.append(5.0) ; QUEUE.rotate(1) ; QUEUE[0] = 7.0"),
    thing("named tuple", "Pair = collections.namedtuple('Pair', 'a b')\nPAIR = Pair(2.0, 3.0)",
          "x * PAIR.a ; x * PAIR[1]", "names['PAIR'] = Pair(4.0, 5.0) ; Pair.a = 6.0"),
    thing("namespace", "SPACE = types.SimpleNamespace(a=2.0)", "x * SPACE.a ; x * len(vars(SPACE))",
          "SPACE.a = 4.0 ; SPACE.b = 1 ; SPACE.__dict__.update(a=6.0)"),
    thing("strings", "NAME = 'sin'\nRAW = bytearray(b'ab')\nPATTERN = re.compile('a')",
          "getattr(torch, NAME)(x) ; x * RAW[0] ; x * len(RAW) ; x * len(NAME) ;"
          "x * bool(PATTERN.match(NAME))",
          "names['NAME'] = 'tanh' ; RAW[0] = 7 ; RAW.append(1) ; "
          "names['PATTERN'] = re.compile('s')"),
    thing("numbers", "COMPLEX = 2 + 1j\nEXACT = fractions.Fraction(1, 2)\nDEC = decimal.Decimal(2)",
          "x * COMPLEX.real ; x * float(EXACT) ; x * float(DEC) ; x * EXACT.denominator",
          "names['COMPLEX'] = 4j + 3 ; names['EXACT'] = fractions.Fraction(3, 4) ; "
          "names['DEC'] = decimal.Decimal(5)"),
)  # fmt: skip

OF_C: Final = (
    thing("methods bound in C", "ENTRIES = {'a': 2.0}\nGET = ENTRIES.get\nROW = [1.0, 2.0]\n"
          "METHODS = {'count': ROW.count}\nLENGTH = ROW.__len__",
          "x * GET('a', 1.0) ; x * METHODS['count'](1.0) ; x * LENGTH()",
          "ENTRIES['a'] = 5.0 ; ROW.append(1.0) ; ENTRIES.clear() ; ROW.reverse()"),
    thing("numpy array", "ARRAY = np.array([2.0, 3.0])",
          "x * float(ARRAY[0]) ; x * ARRAY.shape[0] ; x * ARRAY.max() ; x * ARRAY[1].item() ;"
          "x + torch.from_numpy(ARRAY).sum().float()",
          "ARRAY[0] = 5.0 ; names['ARRAY'] = np.array([7.0, 8.0, 9.0]) ; "
          "np.multiply(ARRAY, 2, out=ARRAY)"),
    thing("array", "PACKED = array.array('d', [2.0, 3.0])", "x * PACKED[0] ; x * len(PACKED)",
          "PACKED[0] = 5.0 ; PACKED.append(1.0)"),
    thing("memoryview", "BUFFER = bytearray(b'\\x02\\x03')\nSEEN = memoryview(BUFFER)",
          "x * SEEN[0]", "BUFFER[0] = 9 ; SEEN[0] = 5"),
    thing("ctypes", "NUMBER = ctypes.c_double(2.0)", "x * NUMBER.value", "NUMBER.value = 5.0"),
    thing("thread local", "LOCAL = threading.local()\nLOCAL.k = 2.0",
          "x * LOCAL.k ; x * getattr(LOCAL, 'late', 1.0)", "LOCAL.k = 5.0 ; LOCAL.late = 3.0"),
    thing("context variable", "DEPTH = contextvars.ContextVar('depth', default=2.0)\n"
        "DEPTH.set(3.0)",
          "x * DEPTH.get() ; x * DEPTH.get(4.0)", "DEPTH.set(5.0)"),
    thing("weak reference", "class Kept: k = 2.0\nKEPT = Kept()\nREF = weakref.ref(KEPT)\n"
          "WEAK = weakref.WeakValueDictionary(a=KEPT)",
          "x * REF().k ; x * WEAK['a'].k ; x * len(WEAK) ; x * (REF() is None)",
          "KEPT.k = 5.0 ; Kept.k = 4.0 ; names['KEPT'] = None ; WEAK.clear()"),
    thing("environment", "os.environ['FT_FUZZ'] = '2'",
          "x * float(os.environ['FT_FUZZ']) ; x * float(os.environ.get('FT_FUZZ', '9')) ;"
          "x * float(os.getenv('FT_FUZZ', '8')) ; x * ('FT_FUZZ' in os.environ)",
          "os.environ['FT_FUZZ'] = '5' ; os.environ.pop('FT_FUZZ')"),
    thing("a cached function", "CACHED_SCALE = 2.0\nCOUNTS = {'n': 0}\n@functools.lru_cache\n"
          "def cached(k):\n    COUNTS['n'] += 1\n    return k * CACHED_SCALE\n"
          "@functools.cache\ndef mask(n): return torch.ones(n) * CACHED_SCALE\n"
          "class Lazy:\n    @functools.cached_property\n"
          "    def v(self): return CACHED_SCALE * 2\nLAZY = Lazy()",
          "x * cached(3) ; x * cached(3) + COUNTS['n'] ; x + mask(4) ; x * LAZY.v",
          "names['CACHED_SCALE'] = 5.0 ; cached.cache_clear() ; mask.cache_clear() ; "
          "LAZY.__dict__.pop('v', None) ; cached(3)"),
    thing("iterator", "ITER = iter([2.0, 3.0, 4.0, 5.0, 6.0, 7.0] * 20)\n"
          "COUNT = itertools.count(2)", "x * next(ITER) ; x * next(COUNT)", "next(ITER) ; "
          "next(COUNT)", unseen=True),
    thing("logger", "LOG = logging.getLogger('ft_fuzz')\nLOG.setLevel(logging.INFO)\n"
          "LOG.disabled = False",
          "x * LOG.isEnabledFor(logging.DEBUG) ; x * LOG.level ; x * LOG.getEffectiveLevel()",
          "LOG.setLevel(logging.DEBUG) ; LOG.disabled = True ; logging.disable(logging.CRITICAL)"),
    thing("dir", "class Listed: a = 1\nLISTED = Listed()", "x * len(dir(LISTED)) ; "
        "x * ('late' in dir(LISTED))",
          "LISTED.late = 1 ; Listed.other = 2"),
    thing("interpreter", "",
          "x * sys.getrecursionlimit() ; x * gc.isenabled() ; x * len(os.getcwd()) ;"
          "x * (sys.gettrace() is None)",
          "sys.setrecursionlimit(6000) ; gc.disable() ; os.chdir('/')", unseen=True),
    thing("arguments", "", "x * len(sys.argv) ; x * threading.active_count()",
          "sys.argv.append('x')"),
    thing("random", "random.seed(3)\nnp.random.seed(4)",
          "x * random.random() ; x * float(np.random.rand()) ; x * torch.rand(()) ;"
          "x * (random.seed(5) or random.random()) ; x * random.Random(3).random()",
          "random.seed(9) ; np.random.seed(8) ; torch.manual_seed(7)"),
    thing("generator", "GEN = torch.Generator().manual_seed(3)",
          "x * torch.rand(4, generator=GEN) ; x * GEN.initial_seed()",
          "GEN.manual_seed(5) ; torch.rand(1, generator=GEN) ; names['GEN'] = torch.Generator()"),
)  # fmt: skip

OF_TORCH: Final = (
    thing("a tensor", "HELD = torch.full((4,), 2.0)\nOTHER = torch.full((4,), 3.0)",
          "x * HELD ; x + HELD + OTHER ; x * HELD.requires_grad ; x * (HELD is OTHER) ; "
          "x * HELD.dim() ; x * HELD.numel() ; x * HELD.element_size() ; x * HELD.stride(0) ;"
          "x * getattr(HELD, 'mark', 5) ; x * isinstance(HELD, nn.Parameter) ;"
          "x * hasattr(HELD, 'mark') ; x * (HELD.grad is None) ; x * HELD.is_inference() ; "
          "x * HELD.is_contiguous() ; x * HELD.data_ptr().bit_length().bit_length()",
          "HELD.mul_(3) ; names['HELD'] = OTHER ; "
          "names['HELD'] = torch.ones(4, dtype=torch.float64) ; "
          "HELD.requires_grad_() ; HELD.mark = 1 ; HELD.grad = torch.ones(4) ; "
          "HELD.data = OTHER.data ; HELD.data = HELD.data.double() ; "
          "HELD.__class__ = nn.Parameter ; "
          "names['OTHER'] = HELD[:] ; HELD.resize_(4, 1)"),
    thing("default dtype", "",
          "x + torch.ones(4) ; x + torch.tensor(0.5) ; "
          "x * (torch.get_default_dtype() is torch.float32) ;"
          "(x.long() / 2) + x", "torch.set_default_dtype(torch.float64)"),
    thing("switches", "",
          "x * torch.are_deterministic_algorithms_enabled() ; x * 1e-40 * 1e3 ; "
          "x * torch.get_num_threads() ; x * len(torch.get_float32_matmul_precision()) ; "
          "x * torch.is_grad_enabled() ; x * torch.is_inference_mode_enabled() ; "
          "x * torch.is_autocast_enabled('cpu') ; x * torch.is_anomaly_enabled()",
          "torch.use_deterministic_algorithms(True) ; torch.set_num_threads(2) ; "
          "torch.set_float32_matmul_precision('high')"),
    thing("hooks of all modules", "LAYER = nn.Linear(4, 4)",
          "LAYER(x)",
          "torch.nn.modules.module.register_module_forward_hook(lambda m, a, r: r * 2) ; "
          "torch.nn.modules.module.register_module_forward_pre_hook(lambda m, a: (a[0] + 1,))"),
    thing("a layer", "INNER = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))",
          "INNER(x) ; INNER[0](x) ; x * INNER.training ; x * len(INNER) ; x * INNER[1].p ; "
          "x + dict(INNER.named_parameters())['0.bias'] ; x * len(INNER._forward_hooks) ; "
          "x + list(INNER.parameters())[0].sum()",
          "INNER.eval() ; INNER[0].requires_grad_(False) ; INNER[1].p = 0.25 ; "
          "INNER[0].bias = None ; "
          "INNER[0].weight = nn.Parameter(torch.ones(4, 4)) ; "
          "INNER[0].weight.data = torch.ones(4, 4) ; "
          "INNER[0] = nn.Linear(4, 4) ; INNER[0].__class__ = type('Sub', (nn.Linear,), "
          "{'forward': lambda self, x: x * 3}) ; "
          "INNER.register_forward_hook(lambda m, a, r: r * 2) ; "
          "INNER[0].weight = INNER[0]._parameters.pop('weight') ; "
          "INNER[0].forward = lambda x: x * 5 ; INNER[2].running_mean.add_(1) ; "
          "INNER[2].momentum = 0.5 ; INNER[2].reset_running_stats()"),
    thing("an argument that is the program's", "W = torch.full((4,), 2.0)\n"
        "V = torch.full((4,), 3.0)\nPASSED = W",
          "x * PASSED + W ; extra(x, PASSED) + W ; x + (PASSED is W)",
          "names['PASSED'] = V ; names['PASSED'] = W ; names['PASSED'] = W[:] ; names['W'] = V"),
    thing("an autograd function", "FACTOR = 2.0\nclass Scaled(torch.autograd.Function):\n"
        "    k = 3.0\n"
          "    @staticmethod\n    def forward(ctx, x): return x * 1\n    @staticmethod\n"
          "    def backward(ctx, g): return g * FACTOR * Scaled.k",
          "Scaled.apply(x)", "names['FACTOR'] = 5.0 ; Scaled.k = 7.0 ; "
          "Scaled.backward = staticmethod(lambda ctx, g: g * 11)"),
    thing("hook on a gradient", "HOOK_SCALE = 2.0\ndef hooked(x):\n    y = x * 2\n"
          "    if y.requires_grad: y.register_hook(lambda g: g * HOOK_SCALE)\n    return y",
          "hooked(x)", "names['HOOK_SCALE'] = 5.0"),
)  # fmt: skip

THINGS: Final = (*OBJECTS, *CONTAINERS, *OF_C, *OF_TORCH, *IN_C, *LED_TO, *REPLACED)

AROUND: Final = each("""
    torch.no_grad() ; torch.inference_mode() ; torch.autocast('cpu', dtype=torch.bfloat16) ;
    torch.autocast('cpu', enabled=False) ; Doubled() ; Counting() ; torch.device('meta') ;
    torch.device('cpu') ; torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH) ;
    torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 2) ;
    torch.autograd.set_detect_anomaly(True) ; torch.autograd.graph.save_on_cpu() ;
    torch.enable_grad() ; torch._C.DisableTorchFunctionSubclass()
""")
"""What may be around a call"""

UNDER: Final = each("""
    x.sin() ; x * torch.ones(4) ; F.linear(x, torch.ones(4, 4)) ;
    F.scaled_dot_product_attention(x[None], x[None], x[None])
""")
"""What a program does under it"""
