from __future__ import annotations
import gc, collections
import torch, autockpt
from .models import Shared, step, tokens, writer
def garbage(rank, *, shared, budget):
    gc.freeze()
    m = shared.wrap(writer(), [])
    autockpt.apply(m, budget)
    o = torch.optim.AdamW(m.parameters(), lr=1e-3)
    for n in range(5): step(m, o, [tokens(0, n)], 100 + n)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.disable()
    step(m, o, [tokens(0, 6)], 106)
    gc.collect(); gc.set_debug(0)
    out = collections.Counter(type(x).__name__ for x in gc.garbage)
    ts = [x for x in gc.garbage if isinstance(x, torch.Tensor)]
    shown = []
    for t in ts[:6]:
        shown.append((type(t).__name__, tuple(t.shape), str(t.grad_fn), [(type(r).__name__, str(r)[:160] if not isinstance(r,torch.Tensor) else '') for r in gc.get_referrers(t) if r is not gc.garbage and r is not ts]))
    res = str(out.most_common(30)), shown
    gc.garbage.clear(); gc.enable()
    return res

def segs(rank, *, shared, budget):
    m = shared.wrap(writer(), [])
    autockpt.apply(m, budget)
    o = torch.optim.AdamW(m.parameters(), lr=1e-3)
    for n in range(5): step(m, o, [tokens(0, n)], 100 + n)
    return [(s.calls, s.keep, s.skip) for s in autockpt.plan_of(m).segments]
