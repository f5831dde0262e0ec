"""Machines as data."""

from tilec.targets.load import NAMES, Backend, Chiplet, Target, Unit, all_targets, device_target, target, warp_wide

__all__ = ["NAMES", "Backend", "Chiplet", "Target", "Unit", "all_targets", "device_target", "target", "warp_wide"]
