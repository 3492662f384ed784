"""What the bytes are: shards, manifests, records and commitments of format 1, as docs/format.md specifies them.

Everything here is pure: bytes in, records out; no file, no MPI, no clock. Parsers take hostile bytes: they check
in a fixed order, allocate nothing by a number that the bytes claim, and refuse with a class of `mpickpt.errors`.
"""
