"""Readers of machine code: what a toolchain made, as data that a check can count in."""
