"""500 drawn places of a generation of three owners are damaged: all owners raise one refusal, which names the file."""

from __future__ import annotations

from pathlib import Path

import mpilaunch

PLACES = 500


def test_500_drawn_places_are_refused_alike_by_all_owners_and_the_file_is_named(mpi: str) -> None:
    program = Path(__file__).with_name("damaged_program.py")
    reports = mpilaunch.run(program, 3, mpi, args=["7", str(PLACES)], timeout=200).ok()
    for report in reports:
        assert report["wrong"] == []
        assert report["count"] == PLACES
        assert report["last"] == [["resumed", None]] * 3
        names = " ".join(report["files"])
        for kind in ("run.json", "epochs/", "roots/", "000001.json", "000002.json", "000002.safetensors", ".r."):
            assert kind in names
