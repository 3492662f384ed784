"""What started this process, as the environment says; and processes that take themselves for the only one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

import mpickpt
from mpickpt import launch
from mpickpt.errors import StateError
from mpickpt.launch import Launch, check_alone, detect, switches

SCRIPT = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[1-2]"}
STEP = {**SCRIPT, "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}
SLURM = {"job": "17", "restarts": 0, "nodes": "n[1-2]"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Launch("single")),
        ({"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1"}, Launch("mpirun", 3, 1, "OMPI_COMM_WORLD_SIZE")),
        ({"PMI_SIZE": "3", "PMI_RANK": "2"}, Launch("mpirun", 3, 2, "PMI_SIZE")),
        ({"PMI_SIZE": "many", "PMI_RANK": "2"}, Launch("single")),
        ({"PMI_SIZE": "0"}, Launch("single")),
        ({"WORLD_SIZE": "2", "RANK": "1"}, Launch("torchrun", 2, 1, "WORLD_SIZE")),
        (SCRIPT, Launch("single", **SLURM)),  # type: ignore[arg-type]
        (STEP, Launch("srun", 4, 2, "SLURM_STEP_NUM_TASKS", **SLURM)),  # type: ignore[arg-type]
        # srun --mpi=pmi2 says it twice; of mpirun's helper, which was started with srun, the step is another one.
        ({**STEP, "PMI_SIZE": "4", "PMI_RANK": "2"}, Launch("srun", 4, 2, "PMI_SIZE", **SLURM)),  # type: ignore[arg-type]
        ({**STEP, "PMI_SIZE": "1", "PMI_RANK": "0"}, Launch("mpirun", 1, 0, "PMI_SIZE", **SLURM)),  # type: ignore[arg-type]
        # A shell that salloc has made on a node is a step of one task, in a job of more.
        ({**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
         Launch("srun", 1, 0, "SLURM_STEP_NUM_TASKS", **SLURM)),  # type: ignore[arg-type]
        ({"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2"}, Launch("single", job="17", restarts=2)),
        ({"PBS_JOBID": "9.server"}, Launch("single", job="9.server")),
    ],
    ids=str,
)  # fmt: skip
def test_what_started_this_process(environ: Mapping[str, str], expected: Launch) -> None:
    assert detect(environ) == expected


def test_a_step_without_a_count_of_its_own_has_that_of_the_job() -> None:
    environ = {name: value for name, value in STEP.items() if name != "SLURM_STEP_NUM_TASKS"}
    assert (detect(environ).size, detect(environ).variable) == (4, "SLURM_NTASKS")


@pytest.mark.parametrize("mpi", [None, "Open MPI 5.0.11"])
def test_several_that_each_believe_to_be_alone_are_refused_and_one_says_what_to_do(mpi: str | None) -> None:
    for rank in range(4):
        with pytest.raises(StateError) as caught:
            check_alone(False, mpi, {**STEP, "SLURM_PROCID": str(rank)})
        error = caught.value
        assert "SLURM_STEP_NUM_TASKS=4" in str(error.found)
        assert error.unharmed == "the store: nothing was written"
        if rank:
            assert (error.expected, error.advice) == (None, "process 0 says what to do")
            continue
        assert "alone=True" in str(error.advice)
        assert "`unset ${!SLURM_STEP@}`" in str(error.advice)
        for word in () if mpi is None else ("srun --mpi=pmix", "srun --mpi=pmi2"):
            assert word in str(error.advice)
    check_alone(True, mpi, STEP)
    with pytest.raises(StateError) as caught:
        check_alone(False, "MPICH 5.0.2", {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"})
    assert "the mpirun that belongs to the MPI of this mpi4py" in str(caught.value.advice)


def test_a_script_of_a_job_that_was_not_started_with_srun_is_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in SCRIPT.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING, "mpickpt"):
        mpickpt.Checkpointer(tmp_path / "run").close()
        assert [record.message for record in caplog.records] == [
            "one process in a Slurm job of 4 tasks: was srun left out? (alone=True says that it was not)"
        ]
        mpickpt.Checkpointer(tmp_path / "run", alone=True).close()
        monkeypatch.setenv("SLURM_NTASKS", "1")
        mpickpt.Checkpointer(tmp_path / "run").close()
    assert len(caplog.records) == 1
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(StateError, match="every process would believe that it is alone"):
        mpickpt.Checkpointer(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("address", "pattern", "expected"),
    [
        ("core.leaf3.n7", "switch.switch.node", ("core", "core.leaf3")),
        ("leaf3.n7.cluster.org", "switch.node", ("leaf3",)),
        ("s[0-1].n7", "switch.node", ("s[0-1]",)),
        ("n7", "node", ()),
        ("n7", "switch.node", ()),
        ("", "", ()),
        ("core.leaf3", "switch.switch", ()),
    ],
)
def test_the_switches_above_a_node(address: str, pattern: str, expected: tuple[str, ...]) -> None:
    assert switches({"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}) == expected
    assert launch.switches({}) == ()
