"""What the printers of C++ kernels share: expressions, signs of scalars, scalar statements, lines of text, plain functions."""
