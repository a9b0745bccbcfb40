"""What leads to objects it does not hold, keys with an equality, objects of torch's own."""

from typing import Final

from tests.fuzz.thing import Thing, thing

LED_TO: Final[tuple[Thing, ...]] = (
    thing("led to", "from torch.utils.weak import WeakIdKeyDictionary\n"
          "ONE, TWO = torch.full((4,), 2.0), torch.full((4,), 3.0)\n"
          "LEADS, LED = weakref.ref(ONE), ONE\nBY_WEAK = weakref.WeakValueDictionary(w=ONE)\n"
          "BY_ID = WeakIdKeyDictionary()\nBY_ID[ONE] = 2.0",
          "x * (LEADS() is LED) + LED ; x * LEADS() ; x * BY_ID.get(LED, 5.0) ; "
          "x + BY_WEAK['w'] ; x * (TWO in BY_ID) ; x * (BY_WEAK['w'] is LED) + LED",
          "names['LED'] = TWO ; names['LEADS'] = weakref.ref(TWO) ; BY_ID[TWO] = 7.0 ; "
          "BY_WEAK['w'] = TWO ; BY_ID[ONE] = 9.0 ; ONE.mul_(2)"),
    thing("keys that say what they equal", "@dataclasses.dataclass(frozen=True)\nclass Key:\n"
          "    n: int = 1\n"
          "BY_KEY = {Key(1): 2.0, Key(2): torch.full((4,), 3.0)}\nKEYS_IN = {Key(1)}",
          "x * BY_KEY[Key(1)] ; x + BY_KEY[Key(2)] ; x * (Key(3) in BY_KEY) ; x * len(BY_KEY) ; "
          "x * (Key(2) in KEYS_IN) ; x * sum(k.n for k in BY_KEY)",
          "BY_KEY[Key(1)] = 5.0 ; BY_KEY[Key(2)] = torch.ones(4) ; BY_KEY[Key(3)] = 1.0 ; "
          "KEYS_IN.add(Key(2)) ; object.__setattr__(next(iter(BY_KEY)), 'n', 7) ; "
          "BY_KEY[Key(2)].mul_(3)"),
    thing("torch's own objects", "from torch.utils._ordered_set import OrderedSet\n"
          "import torch.distributions as td\n"
          "DIST = td.Normal(torch.zeros(4), torch.ones(4))\n"
          "SHIFT = td.transforms.AffineTransform(1.0, 2.0)\nORDERED = OrderedSet([1, 2])",
          "DIST.log_prob(x) ; SHIFT(x) ; x * DIST.mean ; x * (3 in ORDERED) ; x * len(ORDERED)",
          "DIST.loc = DIST.loc + 1 ; SHIFT.scale = 5.0 ; ORDERED.add(3) ; DIST.scale.mul_(2) ; "
          "names['DIST'] = td.Normal(torch.ones(4), torch.ones(4))"),
)  # fmt: skip
