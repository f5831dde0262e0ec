"""Values never written: how they travel, and where they must not arrive.

A lane of a register is undefined until something defined is written there.  Moving or computing with an undefined lane is
no error, as compilers do so in lanes whose result nobody takes; an address, a condition or data for memory is.
Bits of scalar registers count one by one, since masks of lanes are kept there.  `origins` says of each register that is
undefined where an undefined value first came to it.
"""

from __future__ import annotations

from tilec.targets.gfx942.emulator.operands import EXEC, SCALARS, SCC, VECTORS, Operand, operand
from tilec.targets.gfx942.emulator.step import Step, vectors
from tilec.targets.gfx942.emulator.wave import ALL, Wave, lanes_of, mask_of

WORD = 0xFFFFFFFF


def flow(w: Wave, step: Step) -> str:
    """Moves undefinedness through a step that touches an undefined register; a complaint where it arrives at a sink."""
    complaint = _sinks(w, step)
    kind = step.flow
    if kind == "none":
        return complaint
    if kind == "scalar":
        return complaint or _scalar(w, step)
    active = ALL if kind == "matrix" else w.exec_mask
    lanes = 0
    for r in step.vector_reads:
        lanes |= w.undefined[r]
    if kind == "matrix":
        lanes = ALL if lanes else 0
    elif kind == "select":
        lanes = _selected(w, step)
    elif kind == "load":
        lanes = 0
    elif kind == "first":
        _one_lane(w, step)
        return complaint
    elif kind == "lanes" and lanes and step.takes is not None:
        lanes |= mask_of(lanes_of(lanes)[step.takes(w)])
    if kind == "vector" and step.scalar_reads & w.unknown >> VECTORS:
        lanes = ALL
    if lanes & active:
        _trace(w, step)
    if step.parts:
        _by_part(w, step, active)
    else:
        for r in step.vector_writes:
            set_lanes(w, r, w.undefined[r] & ~active | lanes & active)
    if step.scalar_writes:
        found = [n for n in range(SCALARS + 1) if step.scalar_writes >> n & 1]
        for n in found:
            set_bits(w, n, (lanes & active) >> (32 * (n - found[0])) & WORD if n != SCC else 0)
    return complaint


def _trace(w: Wave, step: Step) -> None:
    """What the step writes comes from where the undefined register that it reads does, or from this read of one never written."""
    read = [r for r in step.vector_reads if w.undefined[r] & w.exec_mask]
    read += [VECTORS + n for n in range(SCALARS + 1) if step.scalar_reads & w.unknown >> VECTORS & 1 << n]
    found = next((w.origins[r] for r in read if r in w.origins), "")
    origin = found or f"read undefined at {step.source.address:#x} `{step.source.text}`"
    w.origins |= dict.fromkeys(step.vector_writes, origin)
    w.origins |= {VECTORS + n: origin for n in range(SCALARS + 1) if step.scalar_writes >> n & 1}


def _origin(w: Wave, register: int) -> str:
    return w.origins.get(register, "never written")


def _by_part(w: Wave, step: Step, active: int) -> None:
    """Each register of the result depends on some of what is read."""
    found = []
    for r, mask in step.parts:
        lanes = ALL if mask >> VECTORS & w.unknown >> VECTORS else 0
        for n in vectors(mask & w.unknown):
            lanes |= w.undefined[n]
        found.append((r, lanes))
    for r, lanes in found:
        set_lanes(w, r, w.undefined[r] & ~active | lanes & active)


def set_lanes(w: Wave, register: int, lanes: int) -> None:
    """Says which lanes of a vector register are undefined."""
    w.undefined[register] = lanes
    if lanes:
        w.unknown |= 1 << register
    else:
        w.unknown &= ~(1 << register)


def set_bits(w: Wave, register: int, bits: int) -> None:
    """Says which bits of a scalar register (SCC is number 128) are undefined."""
    w.undefined_bits[register] = bits
    if bits:
        w.unknown |= 1 << (VECTORS + register)
    else:
        w.unknown &= ~(1 << (VECTORS + register))


def _sinks(w: Wave, step: Step) -> str:
    for r in step.vector_sinks:
        bad = w.undefined[r] & w.exec_mask
        if bad:
            name = f"v{r}" if r < 256 else f"a{r - 256}"
            return f"{name} is undefined in lane {(bad & -bad).bit_length() - 1}; {_origin(w, r)}"
    bad = step.scalar_sinks & w.unknown >> VECTORS
    if bad:
        n = (bad & -bad).bit_length() - 1
        return f"{'scc' if n == SCC else f's{n}'} is undefined; {_origin(w, VECTORS + n)}"
    return ""


BITWISE = (
    "s_and_",
    "s_or_",
    "s_xor_",
    "s_not_",
    "s_andn2_",
    "s_orn2_",
    "s_mov_",
    "s_cselect_",
    "s_nand_",
    "s_nor_",
    "s_xnor_",
    "s_lshl_b",
    "s_lshr_b",
)


def _scalar(w: Wave, step: Step) -> str:
    unknown = w.unknown >> VECTORS
    tainted = bool(step.scalar_reads & unknown)
    complaint = ""
    bits = 0
    dst = step.dst
    width = 32 * (dst.count if dst is not None and dst.scalar else 1)
    if tainted:
        _trace(w, step)
        bits = _bitwise(w, step) if step.source.name.startswith(BITWISE) else (1 << width) - 1
    for n in range(SCALARS + 1):
        if step.scalar_writes >> n & 1:
            if n == SCC:
                set_bits(w, n, int(tainted and bits != 0))
            elif dst is not None and dst.first <= n < dst.first + dst.count:
                set_bits(w, n, bits >> (32 * (n - dst.first)) & WORD)
            else:
                set_bits(w, n, 0)
    if bits and step.scalar_writes >> EXEC & 1:
        complaint = f"exec from undefined bits; {_origin(w, VECTORS + EXEC)}"
        set_bits(w, EXEC, 0)
        set_bits(w, EXEC + 1, 0)
    return complaint


def _value(w: Wave, x: Operand) -> tuple[int, int]:
    """(value, undefined bits) of a scalar operand, 64 bits wide."""
    if x.kind == "s":
        value, bits = w.s[x.first], w.undefined_bits[x.first]
        if x.count > 1:
            value |= w.s[x.first + 1] << 32
            bits |= w.undefined_bits[x.first + 1] << 32
        return value, bits
    return x.bits64, 0


def _bitwise(w: Wave, step: Step) -> int:
    name = step.source.name
    texts = step.source.operands[1:]
    found = [_value(w, operand(t)) for t in texts]
    if len(found) == 1:
        return found[0][1]
    (a, a_bits), (b, b_bits) = found
    if name.startswith("s_lsh"):
        by = b & (63 if name.endswith("64") else 31)
        whole = (1 << 64) - 1 if b_bits else 0
        return whole | (a_bits << by if "lshl" in name else a_bits >> by)
    if name.startswith("s_cselect"):
        return a_bits if w.scc else b_bits
    if "n2_" in name:
        b = ~b
    if name.startswith(("s_and", "s_nand")):
        return a_bits & b_bits | a_bits & b | b_bits & a
    if name.startswith(("s_or", "s_nor")):
        return a_bits & b_bits | a_bits & ~b | b_bits & ~a
    return a_bits | b_bits


def _selected(w: Wave, step: Step) -> int:
    _, a, b, mask = (operand(t) for t in step.source.operands)
    chosen, bits = _value(w, mask)
    one, two = (w.undefined[x.first] if x.vector else 0 for x in (a, b))
    return one & ~chosen | two & chosen | bits


def _one_lane(w: Wave, step: Step) -> None:
    """v_readfirstlane, v_readlane, v_writelane."""
    texts = [operand(t) for t in step.source.operands]
    if step.source.name == "v_writelane_b32":
        lane = _value(w, texts[2])[0] & 63
        set_lanes(w, texts[0].first, w.undefined[texts[0].first] & ~(1 << lane))
        return
    source = w.undefined[texts[1].first] if texts[1].vector else 0
    mask = w.exec_mask
    first = (mask & -mask).bit_length() - 1 if mask else 0
    lane = first if len(texts) == 2 else _value(w, texts[2])[0] & 63
    if source >> lane & 1:
        _trace(w, step)
    set_bits(w, texts[0].first, WORD if source >> lane & 1 else 0)
