"""Which tiles the blocks of a program take, in order, from the statements of its block map alone."""

from tilec.arith.evaluate import evaluate
from tilec.ir.nodes import Cluster, Let, While, walk


def lets(body, env):
    """The scalars after the `let` lines of a map."""
    env = dict(env)
    for s in body:
        if isinstance(s, Cluster):
            env = lets(s.body, env)
        else:
            assert isinstance(s, Let)
            env[s.name] = evaluate(s.value, env)
    return env


def _mapped(body):
    """Lines and maps in front of a block's loop over tiles, or of its one tile."""
    return [s for s in body if isinstance(s, Let) or (isinstance(s, Cluster) and s.kind == "map")]


def blocks_of(p, sizes):
    """For each block, the coordinates of its tiles in turn."""
    env = {**sizes, **dict(p.tile), "M_rows": sizes.get("M", 0)}
    names = [n for n, _ in p.grid.coords]
    loop = next((s for s in walk(p.roles[0].body) if isinstance(s, While)), None)
    out = []
    for cta in range(int(evaluate(p.grid.ctas, env))):
        if loop is None:
            (body,) = (s.body for s in walk(p.roles[0].body) if isinstance(s, Cluster) and s.kind == "map")
            found = lets(body, {**env, "cta": cta})
            out.append([tuple(found[n] for n in names)])
            continue
        scope, mine = lets(_mapped(p.roles[0].body), {**env, "cta": cta}), []
        (body,) = (s.body for s in loop.body if isinstance(s, Cluster) and s.kind == "map")
        while evaluate(loop.cond, scope):
            found = lets(body, scope)
            mine.append(tuple(found[n] for n in names))
            scope[loop.body[-1].name] = evaluate(loop.body[-1].value, scope)
        out.append(mine)
    return out


def tiles_of(p, sizes):
    """Coordinates of the tiles in the order that blocks take them: block by block, each its own in turn."""
    return [tile for block in blocks_of(p, sizes) for tile in block]


def extents(p, sizes):
    env = {**sizes, **dict(p.tile), "M_rows": sizes.get("M", 0)}
    return [int(evaluate(e, env)) for _, e in p.grid.coords]
