"""What tests have measured in this session, in words: told at its end (`tests/conftest.py`), whoever ran the test."""

from __future__ import annotations

slurm: list[str] = []
