"""Programs that read Python's state, and what changes of it between their calls."""

import random
import warnings
from typing import Any, Final

import torch
from torch import nn

from tests.fuzz.generate import Draft, assembled, kept, returned
from tests.fuzz.grammar import EXPRESSIONS, Weighted, each

CALLS: Final = 6

STATE: Final = """
class Config:
    alpha = 1.5
    wide = False

    def __init__(self):
        self.beta = 0.5

    @property
    def gamma(self):
        return self.beta * 2


CONFIG = Config()
TABLE = {"a": 2.0, "b": [1.0, 3.0]}
HELD = torch.full((4,), 2.0)
CHOSEN = "sin"


def helper(x):
    return x * SCALE + CONFIG.alpha


class Inner(nn.Module):
    gain = 2.0

    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        y = self.drop(self.linear(x)) * self.gain
        return self.norm(y) if y.dim() == 2 and y.shape[0] > 1 else y
"""

READS: Final = each("""
    {f0} * SCALE ; {f0} * CONFIG.alpha ; {f0} * CONFIG.beta ; {f0} + CONFIG.gamma ;
    {f0} * TABLE['a'] ; {f0} * TABLE['b'][1] ; {f0} + HELD ; getattr(torch, CHOSEN)({f0}) ;
    helper({f0}) ; {f0}.sin() if CONFIG.wide else {f0}.cos() ; {f0} * number ;
    {f0} if flag else -{f0} ; {f0} * len(TABLE['b']) ; {f0} * getattr(CONFIG, 'alpha') ;
    {f0} + hasattr(CONFIG, 'delta') ; {f0} * torch.is_grad_enabled() ; {f0} + torch.ones(4) ;
    {f0} * TABLE.get('c', 3.0) ; {f0} * ({x1}.dtype is torch.float32) ;
    {f0} * {f1}.requires_grad ; {f0} * sum(TABLE['b'])
""")

MODULE_READS: Final = each("""
    {f0} * self.factor ; self.inner({x0}) ; {f0} * self.training ; {f0} * self.inner.gain ;
    {f0} * self.inner.drop.p ; {f0} * self.config.beta ; {f0} * self.sizes[0] ;
    {f0} * (3 if self.inner.training else 2) ; {f0} + self.inner.linear.weight ;
    {f0} * len(self._forward_hooks) ; {f0} + self.held ; {f0} * len(list(self.parameters())) ;
    {f0} * self.inner.norm.momentum ; self.act({f0}) ; {f0} * self.w0.requires_grad ;
    {f0} * (self.maybe is None)
""")

CLOSURE_READS: Final = each("""
    {f0} * gain ; {f0} * settings['p'] ; {f0} * w0.requires_grad ; {f0} + w0 ;
    {f0} * (w0.grad is None)
""")

CHANGES: Final = each("""
    names['SCALE'] = 3.0 ; names['SCALE'] = 3 ; names['SCALE'] = -0.0 ; CONFIG.alpha = 5.0 ;
    CONFIG.beta = 7.0 ; Config.alpha = 2.5 ; TABLE['a'] = 4.0 ; TABLE['b'][1] = 9.0 ;
    TABLE['b'].append(1.0) ; TABLE['c'] = 1.0 ; names['HELD'] = torch.ones(4) ; HELD.mul_(3) ;
    names['CHOSEN'] = 'tanh' ; CONFIG.wide = True ; CONFIG.delta = 1 ;
    names['CONFIG'] = Config() ; names['helper'] = lambda x: x * 7 ;
    names['SCALE'] = float('nan') ; Config.gamma = property(lambda self: 11.0) ;
    HELD.requires_grad_() ; names['HELD'] = torch.ones(4, dtype=torch.float64) ;
    names['HELD'] = torch.ones(3, 1) ; Config.__init__.__defaults__ = None ;
    torch.set_num_threads(1)
""")

MODULE_CHANGES: Final = each("""
    fn.factor = 4.0 ; fn.eval() ; fn.train() ; fn.inner.eval() ; fn.inner.drop.p = 0.25 ;
    fn.inner.gain = 9.0 ; Inner.gain = 5.0 ; fn.inner.linear.weight.requires_grad_(False) ;
    fn.inner.linear.weight = nn.Parameter(torch.ones(4, 4)) ;
    fn.inner.linear.weight.data = torch.ones(4, 4) ; fn.inner.linear.bias.data.mul_(2) ;
    fn.inner = Inner() ; fn.inner.drop = nn.Identity() ; fn.inner.norm.eval() ;
    fn.inner.norm.momentum = 0.5 ; fn.config.beta = 3.0 ; fn.sizes[0] = 8 ; fn.sizes = (5,) ;
    fn.held = torch.zeros(4) ; fn.held = fn.held * 2 ;
    fn.register_forward_hook(lambda m, a, r: None) ;
    fn.inner.register_forward_hook(lambda m, a, r: r * 2) ;
    fn.inner.register_forward_pre_hook(lambda m, a: (a[0] + 1,)) ; fn.act = torch.tanh ;
    fn.act = nn.ReLU() ; fn.requires_grad_(False) ; fn.double().float() ;
    fn.inner.linear.bias = None ; fn.w0 = nn.Parameter(fn.w0.detach() * 2) ; fn.maybe = 1 ;
    fn.w0.requires_grad_(not fn.w0.requires_grad) ; fn.zero_grad() ;
    fn.load_state_dict({k: v * 0 + 1 for k, v in fn.state_dict().items()}) ;
    fn.inner.linear.weight = fn.extra ; fn.forward.__func__.__defaults__ = (False, 5) ;
    fn.register_buffer('late', torch.ones(2)) ; fn.inner.norm.running_mean.add_(1) ;
    fn.inner.norm.track_running_stats = False ; fn.inner.norm.reset_running_stats() ;
    fn.inner.__class__.forward = lambda self, x: x * 2 ; del fn.factor
type(fn).factor = 8.0
""")

CLOSURE_CHANGES: Final = each("""
    cells['gain'].cell_contents = 7.0 ; cells['settings'].cell_contents['p'] = 0.75 ;
    cells['w0'].cell_contents.requires_grad_(not cells['w0'].cell_contents.requires_grad) ;
    cells['w0'].cell_contents.data.mul_(2) ; cells['w0'].cell_contents = torch.ones(4) ;
    cells['settings'].cell_contents = {'p': 2} ; fn.__defaults__ = (False, 3) ;
    cells['w0'].cell_contents.grad = torch.ones(4) ;
    cells['gain'].cell_contents = torch.ones(())
""")

AROUND: Final = each("""
    torch.no_grad() ; torch.enable_grad() ; torch.autocast('cpu', dtype=torch.bfloat16) ;
    torch.inference_mode() ; default_dtype(torch.float64) ; torch.set_grad_enabled(False) ;
    torch.autocast('cpu', enabled=False) ;
    torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
""")

ARGUMENTS: Final = each("""
    x0 = x0.double() ; x0 = x0.detach() ;
    x0 = x0.transpose(0, -1).contiguous().transpose(0, -1) ;
    x0 = torch.stack([x0, x0], -1)[..., 0] ; x0 = x0 * 1 ; x0 = x0.detach().requires_grad_() ;
    x0 = x0[:1] ; x0 = torch.cat([x0, x0]) ; x0 = nn.Parameter(x0.detach()) ;
    x0 = x0.bfloat16() ; x0 = x0[:0] ; x0 = x0[None]
""")

KEYWORDS: Final = each("""
    'flag': False ; 'flag': True ; 'number': 3 ; 'number': 2.0 ; 'flag': 1 ; 'number': True ;
    'flag': None
""")

DEFAULT_DTYPE: Final = """
@contextlib.contextmanager
def default_dtype(dtype):
    old = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(old)
"""


class StatefulDraft(Draft):
    """A program with much to read, and the changes between its calls."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.run(STATE)
        reads = [*READS, *(MODULE_READS if self.is_module else CLOSURE_READS)]
        self.expressions: Weighted = {"state": (60, reads)} | {
            kind: EXPRESSIONS[kind]
            for kind in ("pointwise", "view", "reduction", "linear", "functional")
        }

    def begin(self) -> None:
        """State that every one of them has."""
        state = self.givens.state
        if self.is_module:
            state[:] = [line for line in state if "self.w0" not in line and "tied" not in line]
            state += [
                "self.w0 = nn.Parameter(torch.randn(4))", "self.inner = Inner()",
                "self.extra = nn.Parameter(torch.randn(4, 4))", "self.config = Config()",
                "self.sizes = [2, 3]",
                "self.held = torch.ones(4)", "self.act = torch.sin", "self.maybe = None",
            ]  # fmt: skip
        else:
            state[:] = [line for line in state if not line.startswith("w0")]
            state += ["w0 = torch.randn(4).requires_grad_()", "gain = 2.0", "settings = {'p': 0.5}"]
        lines = self.givens.lines
        lines[0] = "n = [3, 3, 3, 5, 3, 4][call]"
        lines[:] = [
            lines[0],
            "x0 = torch.randn((n, 4)).requires_grad_()",
            *(line for line in lines[1:] if not line.startswith("x0")),
        ]

    def changes(self) -> str:
        """What happens before each call but the first, and around it."""
        rng = self.rng
        own = [*CHANGES, *(MODULE_CHANGES * 2 if self.is_module else CLOSURE_CHANGES * 3)]
        change, around = "", ""
        for call in range(1, CALLS):
            chosen = [rng.choice(own) for _ in range(rng.choice([0, 1, 1, 2]))]
            change += f"    if call == {call}:\n" + "".join(
                f"        {line}\n" for text in chosen or ["pass"] for line in text.splitlines()
            )
            if rng.random() < 0.25:
                around += f"    if call == {call}:\n        return {rng.choice(AROUND)}\n"
            if rng.random() < 0.25:
                self.givens.lines += [f"if call == {call}:\n        {rng.choice(ARGUMENTS)}"]
        if rng.random() < 0.5:
            words = [rng.choice(["", "", *KEYWORDS]) for _ in range(CALLS)]
            self.givens.named = "**[" + ", ".join(f"{{{word}}}" for word in words) + "][call]"
        around += "    return contextlib.nullcontext()\n"
        return f"def change(call, fn, names, cells):\n{change}\n\ndef around(call):\n{around}"


def drafted(rng: random.Random) -> str:
    """A stateful program; not every one runs in eager."""
    draft = StatefulDraft(rng)
    names: dict[str, Any] = draft.names
    names["self"] = nn.Module() if draft.is_module else None
    draft.givens.choose(draft.is_module)
    draft.begin()
    torch.default_generator.manual_seed(7)
    names["call"] = 0
    for line in [*draft.givens.state, *draft.givens.lines]:
        exec(line, names)  # noqa: S102  the text is our own
    names.update(draft.givens.defaults)
    for _ in range(rng.randint(2, 6)):
        draft.statement()
    changes = draft.changes()
    text = assembled(draft, *returned(draft), dynamic=False, more=STATE)
    return f"import contextlib\n\n{text}CALLS = {CALLS}\n\n{DEFAULT_DTYPE}\n\n{changes}"


def program(seed: int) -> str:
    """The stateful program of a seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kept(f"stateful {seed}", drafted)
