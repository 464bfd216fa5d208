"""The MPI programs of this directory: built for an MPI, and what they print."""
import itertools
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "files"))
from bed import ROOT  # noqa: E402

BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "bench-mpi"


def build(programs, mpis):
    for mpi, name in itertools.product(mpis, programs):
        out = BUILT / mpi / name
        out.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([f"mpicc.{mpi}", "-O2", "-Wall", "-Wextra", "-Werror", "-o", out,
                        HERE / f"{name}.c", HERE / "measure.c", "-lm"], check=True)


def rows_of(text, program):
    """{(heading, size): [avg, min, max, iterations, slowest, more...]} from a program's output."""
    rows, heading = {}, program
    for line in text.splitlines():
        fields = line.split()
        if line.startswith("# ") and not line.startswith("# Size"):
            heading = line[2:].rsplit(", ", 1)[0]  # without the number of ranks, which the cell has
        elif line.startswith("  ") and len(fields) >= 6 and fields[0].isdigit():
            rows[heading, int(fields[0])] = [None if f == "-" else float(f) for f in fields[1:]]
    return rows
