"""What power cuts may leave of a store: system calls recorded, every legal state after a crash built, each one checked.

`trace` records what a job does to the files of a store, `disk` tells which states a crash may leave of that, `judge`
starts a next run on such a state, `proof` runs all of it and counts. Scenarios are programs (`scenario`) under mpirun.
"""
