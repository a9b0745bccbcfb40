"""Functions of libraries that somebody replaces, files by dotted names, what classes look up."""

from typing import Final

from tests.fuzz.thing import Thing, thing

FILES: Final = (
    "import importlib\nUPPER, LOWER = types.ModuleType('ft_up'), types.ModuleType('ft_up.low')\n"
    "UPPER.low, UPPER.__path__, LOWER.k = LOWER, [], 2.0\n"
    "sys.modules['ft_up'], sys.modules['ft_up.low'] = UPPER, LOWER\n"
    "OTHER = types.SimpleNamespace(k=7.0)\n"
    "def imports():\n    import ft_up.low as low\n    return low.k\n"
    "def imports_from():\n    from ft_up import low\n    return low.k\n"
)

REPLACED: Final[tuple[Thing, ...]] = (
    thing("functions of libraries",
          "OWN = sys.__dict__.setdefault('ft_own', (math.erf, torch.cos, F.softsign, "
          "nn.Softsign.forward, np.cbrt))\n"
          "math.erf, torch.cos, F.softsign, nn.Softsign.forward, np.cbrt = OWN\n"
          "SIGN = nn.Softsign()",
          "x * math.erf(0.5) ; torch.cos(x) ; F.softsign(x) ; torch.nn.functional.softsign(x) ; "
          "SIGN(x) ; x * float(np.cbrt(8.0))",
          "math.erf = lambda x: 3.0 ; torch.cos = lambda x: x * 5 ; F.softsign = lambda x: x * 7 ; "
          "nn.Softsign.forward = lambda self, x: x * 9 ; np.cbrt = lambda x: 11.0"),
    thing("files by dotted names", FILES,
          "x * imports() ; x * imports_from() ; x * importlib.import_module('ft_up.low').k ; "
          "x * sys.modules['ft_up.low'].k",
          "LOWER.k = 5.0 ; sys.modules['ft_up.low'] = OTHER"),
    thing("classes of tensors", "class Own(torch.Tensor): k = 2.0\n"
          "class OwnParameter(nn.Parameter): k = 3.0\n"
          "OWN_TENSOR, OWN_P = torch.ones(4).as_subclass(Own), OwnParameter(torch.ones(4))",
          "x * OWN_TENSOR.k ; x * OWN_P.k ; x * Own.k",
          "Own.k = 5.0 ; OwnParameter.k = 7.0 ; OWN_TENSOR.k = 9.0 ; OWN_P.k = 11.0"),
    thing("annotations", "class Noted:\n    a: int = 2\ndef noted(x: int): return x",
          "x * len(Noted.__annotations__) ; x * (Noted.__annotations__['a'] is int) ; "
          "x * len(noted.__annotations__)",
          "Noted.__annotations__['c'] = int ; Noted.__annotations__['a'] = float ; "
          "noted.__annotations__ = {}"),
    thing("descriptors", "class Says:\n    v = 2.0\n"
          "    def __get__(self, item, kind=None): return self.v\n"
          "class Has: says = Says()\nHAS = Has()",
          "x * HAS.says ; x * Has.says",
          "vars(Has)['says'].v = 5.0 ; Says.__get__ = lambda self, item, kind=None: 7.0 ; "
          "Says.__set__ = lambda self, item, value: None ; HAS.__dict__['says'] = 9.0"),
    thing("classes of numbers", "class Number(float): pass\nclass Row(tuple): pass\n"
          "NUMBER, ROW_OF = Number(2.0), Row((2.0, 3.0))\nNUMBER.k, ROW_OF.k = 3.0, 4.0",
          "x * NUMBER ; x * NUMBER.k ; x * (NUMBER + 1) ; x * ROW_OF[0] ; x * ROW_OF.k",
          "NUMBER.k = 7.0 ; names['NUMBER'] = Number(5.0) ; "
          "Number.__add__ = lambda self, by: 9.0 ; "
          "Row.__getitem__ = lambda self, at: 11.0 ; ROW_OF.k = 13.0"),
    thing("operators of classes", "class Rule:\n    def __rmul__(self, x): return x * 2.0\n"
          "    def __index__(self): return 1\n    def __contains__(self, item): return True\n"
          "    def __neg__(self): return 2.0\n    def __enter__(self): return 3.0\n"
          "    def __exit__(self, *error): return False\nRULE = Rule()\n"
          "def entered():\n    with RULE as found: return found",
          "x * RULE ; x * [1.0, 2.0][RULE] ; x * (3 in RULE) ; x * -RULE ; x * entered()",
          "Rule.__rmul__ = lambda self, x: x * 5 ; Rule.__index__ = lambda self: 0 ; "
          "Rule.__contains__ = lambda self, item: False ; Rule.__neg__ = lambda self: 7.0 ; "
          "Rule.__enter__ = lambda self: 9.0"),
    thing("what copies and texts ask", "class Copied:\n    def __init__(self): self.v = 2.0\n"
          "    def __format__(self, form): return '2'\nCOPIED = Copied()",
          "x * copy.deepcopy(COPIED).v ; x * copy.copy(COPIED).v ; x * float(f'{COPIED}')",
          "COPIED.v = 5.0 ; "
          "Copied.__deepcopy__ = lambda self, memo: types.SimpleNamespace(v=7.0) ; "
          "Copied.__copy__ = lambda self: types.SimpleNamespace(v=9.0) ; "
          "Copied.__format__ = lambda self, form: '11'"),
    thing("parametrized", "from torch.nn.utils import parametrize\nclass Times(nn.Module):\n"
          "    k = 2.0\n    def forward(self, w): return w * self.k\n"
          "PARTED, WHOLE = nn.Linear(4, 4), nn.Linear(4, 4)\n"
          "parametrize.register_parametrization(PARTED, 'weight', Times())",
          "PARTED(x) ; WHOLE(x) ; x * parametrize.is_parametrized(WHOLE) ; x + PARTED.weight.sum()",
          "Times.k = 5.0 ; PARTED.parametrizations.weight[0].k = 7.0 ; "
          "parametrize.register_parametrization(WHOLE, 'weight', Times()) ; "
          "parametrize.remove_parametrizations(PARTED, 'weight') ; "
          "nn.utils.parametrizations.weight_norm(WHOLE)"),
    thing("an optimizer", "STEPPED = nn.Parameter(torch.ones(4))\n"
          "SGD = torch.optim.SGD([STEPPED], lr=0.5, momentum=0.9)\n"
          "RATE = torch.optim.lr_scheduler.StepLR(SGD, 1)",
          "x * SGD.param_groups[0]['lr'] ; x * len(SGD.state) ; x * RATE.get_last_lr()[0] ; "
          "x + SGD.param_groups[0]['params'][0]",
          "SGD.param_groups[0]['lr'] = 0.25 ; RATE.step() ; STEPPED.grad = torch.ones(4); "
          "SGD.step() ; "
          "SGD.param_groups[0]['params'][0] = nn.Parameter(torch.full((4,), 3.0))"),
    thing("the seed", "", "x * (torch.initial_seed() % 7) ; "
          "x * (torch.default_generator.initial_seed() % 7)", "torch.manual_seed(5)"),
)  # fmt: skip
"""All of them"""
