"""Programs of a few lines."""

from __future__ import annotations

from tilec.ir.parse import parse_program

COPY = {"tensors": "t : in f32[N]\nout : out f32[8]", "registers": "x : f32[k = 8]"}


def program(
    body: str, *, registers: str = "", shared: str = "", tensors: str = "", role: str = "1 block", target: str = "cpu"
):
    """A program of one role named `r`; every line of an argument is one declaration or statement."""

    def lines(text: str, before: str) -> str:
        return "".join(f"{before}{line}\n" for line in text.strip("\n").splitlines())

    return parse_program(
        f"program p on {target}\ntile T = 4\nextent N\n"
        + lines(tensors, "tensor ")
        + "grid tiles 1 ctas 1 order linear\n"
        + lines(shared, "")
        + f"role r : {role}\n"
        + lines(registers, "  register ")
        + lines(body, "  ")
    )
