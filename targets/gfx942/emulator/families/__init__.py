"""Instructions by family: each file holds one table of what its instructions do."""

from collections.abc import Callable, Mapping

from tilec.targets.gfx942.emulator.step import Step
from tilec.targets.gfx942.listing import Instruction

Builder = Callable[[Instruction], Step]
Family = Mapping[str, Builder]
