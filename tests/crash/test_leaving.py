"""Owners that leave while others do not, and deaths that MPI tells of, under mpirun."""
