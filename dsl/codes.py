"""Every error code with its meaning.  Codes are stable, texts of messages are not.

The first two digits after the letter name the group, and with it the class in `faults`.  Each code has a rejected spec
and its message in `tests/faults`; numbers that are missing here are free.
"""

from __future__ import annotations

from tilec.dsl import faults
from tilec.dsl.spans import Span

CODES: dict[str, str] = {
    # Syntax.
    "E0101": "a character that no token begins with",
    "E0102": "a word that does not start a statement",
    "E0103": "a block that is not closed",
    "E0104": "a token that cannot stand where it does",
    "E0105": "a statement that ends too early",
    "E0106": "expressions nested too deeply",
    "E0107": "a number that is too large",
    "E0108": "text outside of every block",
    "E0109": "a file that cannot be read as UTF-8 text",
    "E0110": "a file without a kernel",
    # Names.
    "E0201": "a name that nothing declares",
    "E0202": "a name declared twice",
    "E0203": "an index that no tensor reads",
    "E0204": "a name that is a word of the language",
    "E0205": "an index in upper case, or an extent in lower case",
    "E0206": "a function that does not exist",
    "E0207": "a schedule of a kernel that does not exist",
    "E0208": "a target that does not exist",
    "E0209": "a schedule that names an index its kernel does not have",
    "E0210": "an index read with brackets, or a tensor without",
    "E0211": "one table put to two uses",
    "E0212": "a wrong number of arguments",
    "E0213": "a param or bias that is never read",
    "E0214": "an index that the dot product has summed away",
    # Shapes and dtypes.
    "E0301": "head groups that do not divide",
    "E0302": "an extent that is not a positive integer or a symbol",
    "E0303": "an index expression that this tensor cannot have",
    "E0304": "a query and a key with nothing to contract",
    "E0305": "an index left over in a query, key or value",
    "E0306": "an output that lacks its rows or its features",
    "E0307": "a value whose feature index cannot be told",
    "E0308": "a tensor read with the wrong number of indices",
    "E0309": "a value that does not have the keys' softmax index",
    "E0310": "a dtype that does not exist",
    "E0311": "a dtype that this tensor cannot have",
    "E0313": "a query and a key of different dtypes",
    "E0314": "an index written twice in one tensor",
    "E0315": "a divisor that is not positive",
    "E0316": "a descale that cannot be read this way",
    "E0317": "an operand of the wrong kind: boolean, integer or float",
    # Not an attention.
    "E0401": "a kernel without a statement it needs",
    "E0402": "a statement that may stand once only",
    "E0403": "no softmax index",
    "E0404": "several softmax indices",
    "E0405": "queries and keys that do not pair up",
    "E0406": "no query-row index, or several",
    "E0407": "a log-sum-exp that is not indexed by the output's rows",
    "E0408": "a sink that is not one number per head",
    "E0409": "a score line that does not rewrite `s`",
    "E0410": "a scale that is not one number",
    "E0411": "a value that reuses something other than a key",
    "E0412": "storage words on an index or tensor that cannot take them",
    "E0413": "paged keys without lengths",
    "E0414": "a storage word, fact or list entry given twice",
    "E0415": "a dropout rate outside of 0 … 1",
    # Masks.
    "E0502": "a mask that is not a condition",
    "E0503": "a float in a mask",
    # Gradients.
    "E0601": "a score without a derivative",
    "E0602": "a gradient of something that cannot have one",
    # Contracts.
    "E0702": "an assumption that is not a condition on extents",
    "E0703": "a fact about a tensor that is not an integer param",
    # Schedules.
    "E0801": "a schedule word that does not exist",
    "E0802": "a schedule line given twice",
    "E0803": "tiles and stages that need more shared memory than the target has",
    "E0804": "a tile size that no target has",
    "E0805": "a schedule line about an index it cannot apply to",
    "E0806": "a tile both pinned and tuned",
    "E0807": "wrong arguments of a schedule word",
    "E0808": "a count out of range",
    "E0809": "two schedules of one kernel for one target",
    "E0810": "a schedule line that the target has no hardware for",
    "E0811": "a schedule line that the backend cannot honour",
    "E0812": "a tile size that the backend cannot take",
    "E0813": "residue order of a mask without one congruence",
    # Targets and toolchains.
    "E0901": "a target that does not exist",
    "E0902": "a device that no target describes",
    "E0903": "a backend that the target does not have",
    "E0904": "a dtype that the target does not have",
    "E0905": "a symbol without a value",
    "E0906": "a target that this machine cannot run",
    "E0907": "a pass that does not exist",
    "E0908": "a kind of output that the backend does not make",
    "E0910": "a backend that this installation does not have",
    "E0911": "a toolchain that is not installed",
    "E0912": "a kernel built for another target than the device",
    "E0913": "gradients on a target that has none yet",
    "E0914": "a kernel that the backend cannot make for this target",
    "E0915": "files of a module that are gone or not those written with it",
    "E0916": "a kind of device that tilec does not run on",
    "E0917": "a kernel that the toolchain fails on",
    "E0918": "a kernel that the assembler does not schedule as its program says",
    "E0919": "a kernel whose machine code is not what its program says",
    # Calls: their messages are in tests/runtime.
    "E1001": "an argument that is missing",
    "E1002": "an argument that the kernel does not have",
    "E1003": "an argument given twice",
    "E1004": "too many arguments",
    "E1005": "an argument that is no tensor",
    "E1006": "a tensor of the wrong rank",
    "E1007": "an extent that disagrees with another tensor's",
    "E1008": "an extent that disagrees with the spec's constant",
    "E1009": "a tensor of the wrong dtype",
    "E1010": "an 8-bit float in another vendor's form",
    "E1011": "tensors on several devices",
    "E1012": "rows that are not contiguous",
    "E1013": "a table that is not contiguous",
    "E1014": "a condition on extents that does not hold",
    "E1015": "packed offsets that do not start at 0, decrease, or pass the end",
    "E1016": "a length beyond the rows in memory",
    "E1017": "a block table that names a page outside of the pool",
    "E1018": "a param without a fact that the spec claims",
    "E1019": "an `out` that the result does not fit",
    "E1020": "a gradient that the spec does not declare",
    "E1021": "a kernel that the file does not have, or a choice of several",
    "E1022": "`out` in a call that records gradients",
    "E1024": "a page size that is no number",
    "E1025": "a second derivative",
    "E1026": "a seed for a kernel without dropout, or one that is not two i64 numbers",
    "E1027": "a call that a captured graph cannot hold",
    "E1028": "a transform of torch.func that a kernel has no rule for",
    "E1040": "rows too far apart for a kernel's offsets",
    "E1060": "an environment variable that cannot be read",
    # Warnings.
    "W0502": "rows that keep no key",
    "W0503": "a part of a mask that the prover does not know",
}

GROUPS: dict[str, type[faults.Fault]] = {
    "E01": faults.SyntaxFault,
    "E02": faults.NameFault,
    "E03": faults.ShapeFault,
    "E04": faults.FormFault,
    "E05": faults.MaskFault,
    "E06": faults.GradFault,
    "E07": faults.ContractFault,
    "E08": faults.ScheduleFault,
    "E09": faults.TargetFault,
    "E10": faults.CallFault,
    "W05": faults.Warn,
    "W08": faults.Warn,
}
DTYPE_CODES = frozenset({"E0310", "E0311", "E0313", "E0317"})


def fault(
    code: str,
    message: str,
    span: Span | None = None,
    *,
    note: str | None = None,
    hint: str | None = None,
    related: tuple[tuple[Span, str], ...] = (),
    source: faults.Source | None = None,
) -> faults.Fault:
    """The fault of this code, in the class of its group.  KeyError if the table above lacks the code."""
    CODES[code]
    kind = faults.DtypeFault if code in DTYPE_CODES else GROUPS[code[:3]]
    return kind(code, message, span, note=note, hint=hint, related=related, source=source)
