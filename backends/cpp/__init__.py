"""What the printers of C++ kernels share: operators of expressions, signs of scalars, lines of text."""
