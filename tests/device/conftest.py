"""Several processes share one GPU and the cores beside it: under xdist each has one thread for arithmetic, where libraries would
start one per core, in every process."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
