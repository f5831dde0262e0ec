"""Hypothesis strategies over the language: any syntax tree, masks, and whole valid specs.

files()         syntax trees that parse but mean nothing in particular, with comments
masks()         text of a mask over q, k, M and N
specs()         text of a valid spec: one kernel `f`, and perhaps schedules
"""

from __future__ import annotations

from hypothesis import strategies as st

from tilec.dsl import ast, words

GRAMMAR_WORDS = {
    *words.KERNEL_WORDS,
    *words.SCHEDULE_WORDS,
    *words.FACTS,
    *("kernel", "schedule", "on", "in", "by", "packed", "lengths", "scaled", "paged", "deterministic", "atomic"),
    *("auto", "and", "or", "not", "true", "false", "inf"),
}

# Syntax trees.

identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,4}", fullmatch=True).filter(lambda w: w not in GRAMMAR_WORDS)
names = st.builds(ast.Name, identifiers)
integers = st.builds(ast.Integer, st.integers(0, 2**63 - 1) | st.integers(0, 512))
reals = st.builds(ast.Real, st.floats(0, allow_nan=False, allow_infinity=False) | st.just(float("inf")))
atoms = names | integers | reals | st.builds(ast.Boolean, st.booleans())


def tuples(of, least=1, most=3):
    return st.lists(of, min_size=least, max_size=most).map(tuple)


def _compounds(inner):
    binary = st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "and", "or"])
    comparison = st.sampled_from(["==", "!=", "<=", "<", ">=", ">"])
    chains = st.integers(1, 3).flatmap(
        lambda n: st.builds(ast.Compare, tuples(inner, n + 1, n + 1), tuples(comparison, n, n))
    )
    return st.one_of(
        st.builds(ast.Binary, binary, inner, inner),
        st.builds(ast.Unary, st.sampled_from(["-", "not"]), inner),
        chains,
        st.builds(ast.Call, names, tuples(inner)),
        st.builds(ast.Load, names, tuples(inner)),
    )


expressions = st.recursive(atoms, _compounds, max_leaves=12)
loads = st.builds(ast.Load, names, tuples(expressions))

_comment = st.text(st.characters(codec="utf-8", exclude_characters="\n", exclude_categories=["Cc", "Cs"]), max_size=12)
comments = _comment.map(lambda t: f"# {t}".rstrip())


@st.composite
def lines(draw, first=True, last=False):
    """Comment lines; a blank line ("") never leads where `first`, nor ends where `last`, and never doubles."""
    out = []
    for line in draw(st.lists(comments | st.just(""), max_size=3)):
        if line or (out and out[-1]) or (not first and not out):
            out.append(line)
    return tuple(out[:-1] if last and out and not out[-1] else out)


@st.composite
def noted(draw, of, first):
    notes = ast.Notes(draw(lines(first)), draw(st.none() | comments))
    built = draw(of)
    return type(built)(**{**{f: getattr(built, f) for f in built.__dataclass_fields__}, "notes": notes})


tails = st.builds(ast.Scaled, loads) | st.builds(ast.Paged, loads) | st.builds(ast.Fact, st.sampled_from(words.FACTS))
stored = st.builds(ast.Stored, st.sampled_from(["packed", "lengths"]), names)
axes = st.builds(ast.Axis, names, expressions, st.none() | stored)
slots = st.builds(ast.Name, st.sampled_from(words.SLOTS))
orders = st.builds(ast.Name, st.sampled_from(["deterministic", "atomic"]))
kernel_statements = st.one_of(
    st.builds(ast.Index, tuples(axes)),
    st.builds(ast.Tensor, slots, names, tuples(expressions), names, tuples(tails, 0, 2)),
    st.builds(ast.Tensor, slots, names, st.none(), st.none(), tuples(tails, 0, 2)),
    st.builds(ast.Scale, expressions),
    st.builds(ast.Score, names, expressions),
    st.builds(ast.Mask, expressions),
    st.builds(ast.Grad, tuples(names), st.none() | orders),
    st.builds(ast.Assume, expressions),
    st.builds(ast.Dropout, expressions),
)
arguments = st.builds(ast.Argument, st.none() | names, integers)
schedule_statements = st.one_of(
    st.builds(ast.Tile, tuples(st.builds(ast.Pin, names, integers))),
    st.builds(ast.Tune, names, tuples(integers)),
    st.builds(ast.Warps, names, st.none() | tuples(arguments)),
    st.builds(ast.Stages, integers),
    st.builds(ast.Overlap, names),
    st.builds(ast.Rescale, names, st.none() | integers | reals.filter(lambda r: r.value != float("inf"))),
    st.builds(ast.Skip, names),
    st.builds(ast.Order, tuples(names)),
    st.builds(ast.Split, names, st.none() | integers),
    st.builds(ast.Map, names, st.none() | names),
    st.builds(ast.Cluster, integers),
)


@st.composite
def _blocks(draw):
    kernel = draw(st.booleans())
    of = kernel_statements if kernel else schedule_statements
    statements = tuple(draw(noted(of, first=i == 0)) for i in range(draw(st.integers(0, 4))))
    more = {
        "statements": statements,
        "closing": draw(lines(first=not statements, last=True)),
        "notes": ast.Notes(draw(lines()), draw(st.none() | comments)),
        "compact": draw(st.booleans()),
    }
    if kernel:
        return ast.Kernel(name=draw(names), **more)
    return ast.Schedule(kernel=draw(names), target=draw(names), **more)


def files():
    """Any file, with comments in every place where they stay."""
    return st.builds(ast.File, tuples(_blocks(), 0, 3), lines(last=True))


# Valid specs.

_terms = st.sampled_from(
    ["q", "k", "q - k", "k - q", "q + N - M", "q // 32", "k // 32", "(q - k) % 4", "abs(q - k)", "M", "N"]
)
_literals = st.integers(-3, 96).map(str)


@st.composite
def _comparisons(draw):
    ops = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    if draw(st.integers(0, 4)) == 0:
        return f"{draw(_literals)} <= {draw(_terms)} < {draw(_literals)}"
    return f"{draw(_terms)} {draw(ops)} {draw(_terms | _literals)}"


def masks():
    """Text of a mask: comparisons over q, k, M and N under `and`, `or` and `not`."""
    return st.recursive(
        _comparisons(),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
            inner.map(lambda t: f"not ({t})"),
        ),
        max_leaves=5,
    )


@st.composite
def specs(draw, schedules=True, dtypes=("bf16", "f16", "f32", "e4m3"), depths=(16, 32), values=(8, 24)):
    """Text of a valid spec: dense, packed, padded or paged; grouped or shared heads; one or two pairs; any statement.  Head dims
    are of `depths` and `values`, or left open."""
    heads = draw(st.sampled_from([1, 2, 4, 6, "H"]))
    divisors = [g for g in (1, 2, 3, 6) if isinstance(heads, int) and heads % g == 0] or [1, "G"]
    group = draw(st.sampled_from(divisors))
    storage = draw(st.sampled_from(["dense", "packed", "lengths", "paged"]))
    two_pairs, reuse, swapped = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    dtype = draw(st.sampled_from(dtypes))
    depth = draw(st.sampled_from([*depths, "D"]))
    features = depth if reuse else draw(st.sampled_from([*values, "E"]))
    feature = "d" if reuse or features == depth else "e"
    kept = {
        "dense": ("", ""),
        "packed": (" packed cu_q", " packed cu_k"),
        "lengths": (" lengths len_q", " lengths len_k"),
        "paged": ("", " lengths len_k"),
    }[storage]
    declared = [f"b : B, h : {heads}, q : M{kept[0]}, k : N{kept[1]}, d : {depth}"]
    declared += [f"e : {features}"] * (feature == "e") + [f"r : {depths[0]}"] * two_pairs
    head = draw(st.sampled_from(["h"])) if group == 1 else f"h // {group}"

    def rows(name, last):
        return f"{name}[b, h, q, {last}]" if swapped else f"{name}[b, q, h, {last}]"

    def keys(name, last):
        return f"{name}[b, {head}, k, {last}]" if swapped else f"{name}[b, k, {head}, {last}]"

    paged = "  paged pages[b, k // 16]" if storage == "paged" else ""
    scaled = draw(st.booleans()) and dtype == "e4m3"
    of_key = f"  scaled ks[b, {head}]" if scaled else ""
    out = "bf16" if dtype == "e4m3" else dtype
    body = [f"index {', '.join(declared)}"]
    body.append(f"query {rows('Q', 'd')} : {dtype}" + ("  scaled qs[b, h]" if scaled else ""))
    body.append(f"key {keys('K', 'd')} : {dtype}{of_key}{paged}")
    if two_pairs:
        body += [f"query {rows('Qr', 'r')} : {dtype}", f"key {keys('Kr', 'r')} : {dtype}{paged}"]
    body.append("value K" if reuse else f"value {keys('V', feature)} : {dtype}{paged}")
    body.append(f"output {rows('O', feature)} : {out}")
    inputs = ["Q", "K"] + ["Qr", "Kr"] * two_pairs + [] if reuse else ["Q", "K", "V"] + ["Qr", "Kr"] * two_pairs
    inputs = inputs if dtype != "e4m3" else []
    if draw(st.booleans()):
        body.append("lse L[b, h, q] : f32")
    if draw(st.booleans()):
        body.append(f"scale {draw(st.sampled_from(['1 / sqrt(32)', '0.125', '1', '1 / 8.0']))}")
    if draw(st.booleans()):
        body += ["param slope[h] : f32", "score s = s - slope[h] * (q - k)"]
        inputs.append("slope")
    if draw(st.booleans()):
        body.append("score s = 20.0 * tanh(s / 20.0)")
    if draw(st.booleans()):
        body += ["bias Bt[b, h, q, k] : f32", "score s = s + Bt[b, h, q, k]"]
        inputs.append("Bt")
    if draw(st.booleans()):
        body.append("param doc[b, k] : i32 nondecreasing")
        body.append(f"mask doc[b, q] == doc[b, k] and ({draw(masks())})")
    elif draw(st.booleans()):
        body.append(f"mask {draw(masks())}")
    if draw(st.booleans()):
        body.append("sink Z[h] : f32")
        inputs.append("Z")
    if draw(st.booleans()):
        body.append("assume N >= M")
    if inputs and draw(st.booleans()):
        listed = draw(st.lists(st.sampled_from(inputs), min_size=1, unique=True))
        body.append(f"grad {', '.join(listed)}{draw(st.sampled_from(['', ' deterministic', ' atomic']))}")
    if draw(st.booleans()):
        body.append(f"dropout {draw(st.sampled_from(['0.1', '0', '0.5']))}")
    text = "kernel f {\n" + "".join(f"  {line}\n" for line in body) + "}\n"
    if schedules:
        for target in draw(st.lists(st.sampled_from(words.TARGETS), max_size=2, unique=True)):
            text += f"schedule f on {target} {{ {draw(_schedules())} }}\n"
    return text


@st.composite
def _schedules(draw):
    size = st.sampled_from([16, 32, 64, 128])
    choices = {
        "tile": st.builds("tile q = {}, k = {}".format, size, size),
        "tune": st.just("tune q in {64, 128}"),
        "warps": st.sampled_from(
            [
                "warps split_q(4)",
                "warps specialized(consumer = 2)",
                "warps ping_pong(consumer = 2)",
                "warps ping_pong(wave = 8)",
            ]
        ),
        "stages": st.integers(1, 4).map("stages {}".format),
        "overlap": st.sampled_from(["overlap on", "overlap off"]),
        "rescale": st.sampled_from(["rescale eager", "rescale delayed", "rescale conditional 8"]),
        "skip": st.sampled_from(["skip proved", "skip table", "skip none"]),
        "order": st.sampled_from(["order residue, q", "order k"]),
        "split": st.sampled_from(["split k = auto", "split k = 4"]),
        "map": st.sampled_from(["map linear", "map persistent", "map longest_first", "map xcd by h"]),
        "cluster": st.sampled_from(["cluster 1", "cluster 2"]),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(choices)), unique=True))
    if "tile" in chosen and "tune" in chosen:
        chosen.remove("tune")
    return "  ".join(draw(choices[c]) for c in chosen)
