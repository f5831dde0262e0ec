"""Where an element of a tensor lies in memory: the one place that knows packed, padded and paged storage.

Symbols that storage adds to a call's extents, beside those of the spec:

    M_rows          rows held in memory by the tensors of a packed or padded index of extent M
    K_pages         pages in the pool of a paged tensor K
    T_width         pages per sequence in a block table T

With packed or lengths storage the extent itself (`M`) is not a number of the call but of each sequence: `length_of`.
"""

from __future__ import annotations

from tilec.ir.attention import Attention, Index, Tensor
from tilec.ir.build import add, floordiv, mod, sub
from tilec.ir.expr import Expr, Fetch, Int, Op, Var, free_vars, substitute


def rows_symbol(index: Index) -> Expr:
    """How many positions of `index` memory holds: its extent when dense, else `M_rows` (or `q_rows` if M is a constant)."""
    if index.storage.kind == "dense":
        return index.extent
    stem = index.extent.name if isinstance(index.extent, Var) else index.name
    return Var(f"{stem}_rows")


def batch_of(attn: Attention, index: Index) -> Var:
    """The index that numbers the sequences of a packed or padded index: `b` if it is an outer one, else the first of them."""
    outer = [i.name for i in attn.outer]
    if not outer:
        raise ValueError(f"{attn.name}: no batch index for {index.name}")
    return Var("b" if "b" in outer else outer[0])


def length_of(attn: Attention, index: Index) -> Expr:
    """Positions of `index` in one sequence, as an expression over the batch index."""
    table, b = index.storage.table, batch_of(attn, index) if index.storage.kind != "dense" else Var("")
    if index.storage.kind == "packed" and table is not None:
        return sub(Fetch(table, (add(b, 1),)), Fetch(table, (b,)))
    if index.storage.kind == "lengths" and table is not None:
        return Fetch(table, (b,))
    return index.extent


def axis_index(attn: Attention, e: Expr) -> Index | None:
    """The sequence index (q or k) that a tensor dimension runs over, if any."""
    names = free_vars(e) & {attn.q, attn.k}
    return attn.index(next(iter(names))) if len(names) == 1 and isinstance(e, Var) else None


def dimension(attn: Attention, e: Expr) -> Expr:
    """Extent of a tensor dimension read as `e`: of `h // 4` a quarter of h's, of `b` all of B's."""
    match e:
        case Var(name):
            index = attn.index(name)
            return rows_symbol(index)
        case Op("//", (Var(name), divisor)):
            return floordiv(attn.index(name).extent, divisor)
        case Op("%", (Var(_), divisor)):
            return divisor
        case Int(value):
            return Int(value + 1)
    raise ValueError(f"{attn.name}: dimension {e} has no extent")


def _packed_batch(attn: Attention, tensor: Tensor) -> str | None:
    """The batch index that packing removes from this tensor's memory, if any."""
    for e in tensor.index:
        index = axis_index(attn, e)
        if index is not None and index.storage.kind == "packed":
            return batch_of(attn, index).name
    return None


def memory_dims(attn: Attention, tensor: Tensor) -> tuple[Expr, ...]:
    """Extents of the tensor as it lies in memory, over the call's symbols."""
    if tensor.slot == "table":
        return _table_dims(attn, tensor)
    gone = _packed_batch(attn, tensor)
    dims: list[Expr] = []
    for e in tensor.index:
        index = axis_index(attn, e)
        if tensor.paged is not None and index is not None:
            dims.append(Int(tensor.page or 0))
        elif tensor.paged is not None and index is None and e is batch_of(attn, attn.index(attn.k)):
            dims.append(Var(f"{tensor.name}_pages"))
        elif isinstance(e, Var) and e.name == gone:
            continue
        else:
            dims.append(dimension(attn, e))
    return tuple(dims)


def _table_dims(attn: Attention, tensor: Tensor) -> tuple[Expr, ...]:
    for i in attn.indices:
        if i.storage.table == tensor.name:
            batch = attn.index(batch_of(attn, i).name).extent
            return (add(batch, 1) if i.storage.kind == "packed" else batch,)
    if any(t.paged is not None and t.paged.tensor == tensor.name for t in attn.tensors):
        lead = tuple(dimension(attn, e) for e in tensor.index[:-1])
        return (*lead, Var(f"{tensor.name}_width"))
    return tuple(dimension(attn, e) for e in tensor.index)


def address(attn: Attention, tensor: Tensor, env: dict[Expr, Expr]) -> tuple[Expr, ...]:
    """Memory index of the element at logical position `env` (index -> value), one expression per memory dimension.

    `env` maps `Var(index)` to its value; reading a param at another index (`doc[b, q]`) is `read_at`."""
    return read_at(attn, tensor, tuple(substitute(e, env) for e in tensor.index))


def read_at(attn: Attention, tensor: Tensor, at: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Memory index of logical index `at`, one expression per dimension as declared."""
    gone = _packed_batch(attn, tensor)
    batch = next((v for e, v in zip(tensor.index, at, strict=True) if isinstance(e, Var) and e.name == gone), None)
    out: list[Expr] = []
    for e, value in zip(tensor.index, at, strict=True):
        index = axis_index(attn, e)
        if tensor.paged is not None and index is not None:
            out.append(mod(value, tensor.page or 1))
        elif tensor.paged is not None and e is batch_of(attn, attn.index(attn.k)):
            out.append(_page(attn, tensor, at))
        elif isinstance(e, Var) and e.name == gone:
            continue
        elif index is not None and index.storage.kind == "packed" and batch is not None:
            out.append(add(Fetch(index.storage.table or "", (batch,)), value))
        else:
            out.append(value)
    return tuple(out)


def _page(attn: Attention, tensor: Tensor, at: tuple[Expr, ...]) -> Expr:
    """The page that holds logical index `at`: the declared block-table read with the indices replaced."""
    assert tensor.paged is not None
    env: dict[Expr, Expr] = {}
    for e, value in zip(tensor.index, at, strict=True):
        if isinstance(e, Var):
            env[e] = value
    rows = env[Var(attn.k)]
    lead = tuple(substitute(e, env) for e in tensor.paged.index[:-1])
    return Fetch(tensor.paged.tensor, (*lead, floordiv(rows, tensor.page or 1)))


def storage_symbols(attn: Attention) -> tuple[str, ...]:
    """Every symbol that memory dimensions mention, in order of first mention: the runtime scalars of a call."""
    seen: dict[str, None] = {}
    for t in attn.tensors:
        for dim in memory_dims(attn, t):
            for name in sorted(free_vars(dim)):
                seen.setdefault(name)
    return tuple(seen)
