"""The guardian, with plain processes in place of Triton's server and the model's process."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serving.guardian_process import BEAT, END, Watch
from serving.process import SHARED_MEMORY, Process
from tests.eventually import eventually
from tests.processes import children

FOLDER = Path(__file__).parents[2] / "model_repository/llm/1"
# Longer than the guardian's pause between two looks.
PATIENCE = 2
# Longer than the guardian takes for the longest of its attempts.
SECONDS = 60

# Maps all regions, and starts a model that maps the first. Before, it computes for some seconds, because a limit of
# processor time cannot be shorter than one. For that limit, and for this timer, the kernel counts ticks that find the
# process computing. On a busy machine they are fewer than its processor time.
SERVER = """
import mmap, signal, socket, subprocess, sys
model_program, seconds, *names = sys.argv[1:]
files = [open(name, "r+b") for name in names]
maps = [mmap.mmap(file.fileno(), 0) for file in files]
listening = socket.create_server(("127.0.0.1", 0))
if float(seconds):
    computed = []
    signal.signal(signal.SIGPROF, lambda *_: computed.append(True))
    signal.setitimer(signal.ITIMER_PROF, float(seconds))
    while not computed:
        pass
subprocess.Popen([sys.executable, "-c", model_program, names[0]])
while True:
    listening.accept()[0].close()
"""
MODEL = f"""
import mmap, sys, time
from tempfile import TemporaryFile
import serving.guardian
from serving.guardian import Guardian
file = open(sys.argv[1], "r+b")
region = mmap.mmap(file.fileno(), 0)
guardian = Guardian("llm", patience_seconds={PATIENCE})
print("guarded", flush=True)
for line in sys.stdin:
    match line.split():
        case ["loaded"]:
            guardian.beat()
        case ["beat", seconds]:
            for _ in range(int(seconds) * 2):
                guardian.beat()
                time.sleep(0.5)
        case ["lose"]:
            guardian._process.kill()
            guardian._process.wait()
            interpreter, serving.guardian.interpreter = serving.guardian.interpreter, lambda: "/no/such/python"
            guardian.beat()
            # The next file gets the number of the pipe that was closed.
            with open("/dev/null"), TemporaryFile() as foreign:
                guardian.beat()
                foreign.seek(0)
                assert foreign.read() == b""
            serving.guardian.interpreter = interpreter
        case ["end"]:
            guardian.dismiss()
    print("done", flush=True)
"""


class Guarded:
    """A server that runs, with its model and its guardian. The ids are those outside of a namespace."""

    def __init__(self, launched: "subprocess.Popen[str]", server: Process) -> None:
        self._launched = launched
        self.server = server
        assert self.read() == "guarded"
        (self.model,) = children(server.pid)
        (self.guardian,) = children(self.model.pid)

    def read(self) -> str:
        assert self._launched.stdout is not None
        return self._launched.stdout.readline().strip()

    def errors(self) -> str:
        """What all of them have written to standard error, once all have ended."""
        assert self._launched.stderr is not None
        return self._launched.stderr.read()

    def tell(self, line: str) -> str:
        """Have the model do something, and return its answer."""
        assert self._launched.stdin is not None
        self._launched.stdin.write(line + "\n")
        self._launched.stdin.flush()
        return self.read()


@pytest.fixture
def regions() -> Iterator[list[Path]]:
    """The region that server and model share, that of another model, and one of a client."""
    names = (f"inflight_test_{uuid.uuid4()}", f"inflight_test_{uuid.uuid4()}", f"client_{uuid.uuid4()}")
    paths = [Path(SHARED_MEMORY, name) for name in names]
    for path in paths:
        path.write_bytes(b"x" * 4096)
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


@contextmanager
def guarded(regions: list[Path], *prefix: str, seconds: float = 0, is_loaded: bool = True) -> Iterator[Guarded]:
    command = [*prefix, sys.executable, "-c", SERVER, MODEL, str(seconds), *map(str, regions)]
    environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launched:
        outer = Process(launched.pid)
        try:
            assert not prefix or eventually(lambda: bool(children(outer.pid)))
            running = Guarded(launched, children(outer.pid)[0] if prefix else outer)
            assert not is_loaded or running.tell("loaded") == "done"
            yield running
        finally:
            for process in (*children(outer.pid), outer):
                process.send(signal.SIGKILL)


def test_the_server_ends_with_the_model_and_leaves_no_region(regions: list[Path]) -> None:
    with guarded(regions) as running:
        running.model.send(signal.SIGKILL)
        assert running.server.ends_within(SECONDS)
        assert eventually(lambda: not running.guardian.is_alive(), SECONDS)
    assert [path.exists() for path in regions] == [False, False, True]


def test_a_model_that_ends_in_order_leaves_the_server_alone(regions: list[Path]) -> None:
    with guarded(regions) as running:
        assert running.tell("end") == "done"
        assert not running.guardian.is_alive()
        running.model.send(signal.SIGKILL)
        assert not running.server.ends_within(0.5)
    assert [path.exists() for path in regions] == [True, True, True]


def test_a_model_that_gives_no_sign_of_life_is_ended_too(regions: list[Path]) -> None:
    with guarded(regions) as running:
        assert running.tell(f"beat {PATIENCE + 2}") == "done"
        assert running.model.is_alive()
        assert running.server.ends_within(SECONDS)
        assert running.model.ends_within(SECONDS)


def test_a_guardian_that_was_killed_is_replaced(regions: list[Path]) -> None:
    with guarded(regions) as running:
        running.guardian.send(signal.SIGKILL)
        assert running.guardian.ends_within(SECONDS)
        assert running.tell("beat 1") == "done"
        running.model.send(signal.SIGKILL)
        assert running.server.ends_within(SECONDS)
    assert [path.exists() for path in regions] == [False, False, True]


def test_a_guardian_that_cannot_be_started_again_is_started_later(regions: list[Path]) -> None:
    with guarded(regions) as running:
        assert running.tell("lose") == "done"
        assert not children(running.model.pid)
        assert running.tell("beat 1") == "done"
        running.model.send(signal.SIGKILL)
        assert running.server.ends_within(SECONDS)
    assert [path.exists() for path in regions] == [False, False, True]


def run_without_server(region: Path) -> subprocess.CompletedProcess[str]:
    """Run a model until it ends. It is a child of this process, which maps no region."""
    return subprocess.run(
        [sys.executable, "-c", MODEL, str(region)],
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_an_orphan_ends_and_its_new_parent_does_not(regions: list[Path]) -> None:
    """This process stands for the first one of a machine, which takes in the orphans of a dead server."""
    model = run_without_server(regions[0])
    assert model.returncode == -signal.SIGKILL
    assert not model.stdout
    assert "the server of the model 'llm' has died" in model.stderr


# As another user, it may not look at its parent.
ORPHAN_OF_ANOTHER_USER = """
import mmap, os, sys
from serving.guardian_process import server_of
from serving.guardian_process import BEAT, END, Watch
from serving.process import Process
with open(sys.argv[1], "r+b") as file:
    if (child := os.fork()) != 0:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    region = mmap.mmap(file.fileno(), 0)
    os.setuid(65534)
    print(server_of(Process(os.getpid()), os.getppid()))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="this user may not become another one")
def test_a_process_of_another_user_is_not_the_server(regions: list[Path]) -> None:
    """The first process of a machine is root's, and the server seldom is."""
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN_OF_ANOTHER_USER, str(regions[0])],
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_without_a_view_of_shared_memory_there_is_no_guardian(tmp_path: Path) -> None:
    elsewhere = tmp_path / "region"
    elsewhere.write_bytes(b"x" * 4096)
    model = run_without_server(elsewhere)
    assert model.returncode == 1
    assert "does not show the memory that the model shares with its server" in model.stderr
    assert "RuntimeError: the guardian does not start" in model.stderr


def test_a_model_ends_if_its_guardian_and_its_server_were_killed(regions: list[Path]) -> None:
    with guarded(regions) as running:
        for process in (running.guardian, running.server):
            process.send(signal.SIGKILL)
            assert process.ends_within(SECONDS)
        assert running.tell("beat 1") == ""
        assert running.model.ends_within(SECONDS)


def test_the_region_of_a_server_that_was_killed_is_removed(regions: list[Path]) -> None:
    with guarded(regions) as running:
        running.server.send(signal.SIGKILL)
        assert running.server.ends_within(SECONDS)
        running.model.send(signal.SIGKILL)
        assert eventually(lambda: not running.guardian.is_alive(), SECONDS)
    assert [path.exists() for path in regions] == [False, True, True]


def test_a_model_does_not_outlive_its_server(regions: list[Path]) -> None:
    with guarded(regions) as running:
        running.server.send(signal.SIGKILL)
        assert running.model.ends_within(SECONDS)
        assert eventually(lambda: not running.guardian.is_alive(), SECONDS)
        assert "the server of the model 'llm' has died" in running.errors()
    assert [path.exists() for path in regions] == [False, True, True]


@pytest.mark.parametrize("has_descriptors", [True, False])
@pytest.mark.parametrize(("last_message", "fate"), [(b"", "has outlived its server"), (END, None)])
def test_a_model_that_ended_in_order_before_its_server_died_is_no_orphan(
    monkeypatch: pytest.MonkeyPatch, has_descriptors: bool, last_message: bytes, fate: str | None
) -> None:
    """Also where the system has no descriptors of processes."""

    def refuse(_pid: int) -> int:
        raise OSError("a system without descriptors of processes")

    if not has_descriptors:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    reading, writing = os.pipe()
    with subprocess.Popen(["sleep", "60"]) as server, os.fdopen(reading) as stdin, os.fdopen(writing, "wb", 0) as model:
        monkeypatch.setattr(sys, "stdin", stdin)
        watch = Watch("llm", Process(os.getpid()), Process(server.pid), patience_seconds=SECONDS)
        model.write(BEAT + last_message)
        server.kill()
        assert watch._wait() == fate


def test_a_model_that_is_being_loaded_may_be_silent_and_end_without_its_server(regions: list[Path]) -> None:
    with guarded(regions, is_loaded=False) as running:
        assert not running.server.ends_within(PATIENCE + 2)
        running.model.send(signal.SIGKILL)
        assert eventually(lambda: not running.guardian.is_alive(), SECONDS)
        assert running.server.is_alive()
    assert [path.exists() for path in regions] == [True, True, True]


def test_a_model_that_is_being_loaded_does_not_outlive_its_server(regions: list[Path]) -> None:
    """It may wait for an answer of the server, and hold Python's lock meanwhile."""
    with guarded(regions, is_loaded=False) as running:
        running.server.send(signal.SIGKILL)
        assert running.model.ends_within(SECONDS)
        assert eventually(lambda: not running.guardian.is_alive(), SECONDS)
    assert [path.exists() for path in regions] == [False, True, True]


def test_signals_to_all_processes_of_a_service_do_not_end_the_guardian(regions: list[Path]) -> None:
    with guarded(regions) as running:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            running.guardian.send(number)
        running.model.send(signal.SIGKILL)
        assert running.server.ends_within(SECONDS)


NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]


@pytest.mark.skipif(
    subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode != 0,
    reason="this user may not create process namespaces",
)
def test_a_server_that_is_the_first_process_of_a_container_ends(regions: list[Path]) -> None:
    with guarded(regions, *NAMESPACE, seconds=1.1) as running:
        running.model.send(signal.SIGKILL)
        assert running.server.ends_within(SECONDS)
    assert [path.exists() for path in regions] == [False, False, True]


def test_a_process_is_not_a_later_one_with_the_same_id() -> None:
    own = Process(os.getpid())
    assert own.is_alive()
    own._started = "1"
    assert not own.is_alive()
    with pytest.raises(ProcessLookupError):
        Process(2**22 + 1)
