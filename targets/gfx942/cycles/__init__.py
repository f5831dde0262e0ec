"""How long a compute unit takes for what the emulator saw it do: predicted, not measured."""

from tilec.targets.gfx942.cycles.machine import MI300X, Machine
from tilec.targets.gfx942.cycles.model import predict
from tilec.targets.gfx942.cycles.report import Timing

__all__ = ["MI300X", "Machine", "Timing", "predict"]
