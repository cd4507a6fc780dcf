"""Launches every script for real: rank counts, sizes, bad arguments, clean exits."""

import ast
import json
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fresh import threads
from ringside import RankFailed, torchrun
from ringside.recording import read

import shared

ROOT = Path(__file__).resolve().parents[1]
STEMS = sorted(path.stem for path in (ROOT / "scripts").glob("[0-9]*.py"))
FIRST, *SCRIPTS = STEMS  # the first leans on nothing that others share: see test_00
RING = "03_ring_all_reduce"
SHORT = {"05_dp_vs_ddp": ["--rounds", 1, "--samples", 5]}  # a benchmark, cut short
PRINTED = {}  # by script and ranks: what warm ranks print
EVERYWHERE = {  # wrong arguments, and what is said of them
    "--colour red": "unrecognized arguments: --colour red",
    "--record no/such/x.jsonl": "--record must be a file in a folder, not no/such/x",
}
WRONG = {
    "13_data_parallel": {
        "--rows 0": "--rows must be 1 or more, not 0",
        "--rows -3": "--rows must be 1 or more, not -3",
        "--rows many": "argument --rows: invalid int value: 'many'",
    },
    "11_collectives": {
        "--root 2": "--root must be one of 0 to 1, not 2",
        "--root -1": "--root must be one of 0 to 1, not -1",
        "--root first": "argument --root: invalid int value: 'first'",
    },
    "03_ring_all_reduce": {
        "--numel -1": "--numel must be 0 or more, not -1",
        "--numel many": "argument --numel: invalid int value: 'many'",
        "--numel 2 --record scripts": "--record must be a file in a folder, not "
        "scripts",
        "--numel 1 --record x": "--record needs a number for each rank, and at most 9 "
        "ranks",
    },
    "04_distributed_data_parallel": {
        "--bucket-mb 0": "--bucket-mb is above 0, 1024 at most, not 0",
        "--bucket-mb -1": "--bucket-mb is above 0, 1024 at most, not -1",
        "--bucket-mb nan": "--bucket-mb is above 0, 1024 at most, not nan",
        "--bucket-mb inf": "--bucket-mb is above 0, 1024 at most, not inf",
        "--bucket-mb big": "argument --bucket-mb: invalid float value: 'big'",
        "--method no-wait": "argument --method: invalid choice: 'no-wait'",
    },
    "05_dp_vs_ddp": {
        "--rounds 0": "--rounds and --samples must be 1 or more",
        "--rounds some": "argument --rounds: invalid int value: 'some'",
        "--samples 0": "--rounds and --samples must be 1 or more",
    },
    "15_two_losses": {
        "--moves backward": "--moves: 'backward' is no move, or no forward is left",
        "--moves sleep": "--moves: 'sleep' is no move, or no forward is left",
    },
    "02_sampler_and_set_epoch": {
        "--samples -1": "--samples must be 0 to 40, not -1",
        "--samples 41": "--samples must be 0 to 40, not 41",
        "--samples many": "argument --samples: invalid int value: 'many'",
    },
    "16_workers_and_streams": {
        "--samples -1": "--samples must be 0 to 40, not -1",
        "--samples 41": "--samples must be 0 to 40, not 41",
        "--workers 5": "--workers must be 1 to 4, not 5",
        "--workers 0": "--workers must be 1 to 4, not 0",
        "--workers two": "argument --workers: invalid int value: 'two'",
    },
    "17_dice": {
        "--workers 5": "--workers must be 1 to 4, not 5",
        "--workers 0": "--workers must be 1 to 4, not 0",
        "--workers two": "argument --workers: invalid int value: 'two'",
    },
    "21_evaluation": {
        "--samples 0": "--samples must be 1 to 11, not 0",
        "--samples 12": "--samples must be 1 to 11, not 12",
        "--samples all": "argument --samples: invalid int value: 'all'",
    },
    "22_checkpoint_and_resume": {
        "--folder no/such": "--folder must be a folder, not no/such",
        "--kill-after 13": "argument --kill-after: invalid choice: ",
        "--kill-after -1": "argument --kill-after: invalid choice: ",
        "--kill-after two": "argument --kill-after: invalid int value: 'two'",
    },
    "23_sharded_checkpoints": {
        "--numel 0": "--numel must be 1 to 24, not 0",
        "--numel 25": "--numel must be 1 to 24, not 25",
        "--numel many": "argument --numel: invalid int value: 'many'",
    },
    "24_precision": {
        "--exponent 15": "--exponent must be 16 to 30, not 15",
        "--exponent 31": "--exponent must be 16 to 30, not 31",
        "--exponent big": "argument --exponent: invalid int value: 'big'",
    },
    "25_learning_rate": {
        "--size 0": "--size and --lr are above 0, 10 at most",
        "--size -1": "--size and --lr are above 0, 10 at most",
        "--lr nan": "--size and --lr are above 0, 10 at most",
        "--lr 11": "--size and --lr are above 0, 10 at most",
        "--lr fast": "argument --lr: invalid float value: 'fast'",
    },
    "33_when_it_breaks": {
        "--timeout 0": "--timeout must be 0.1 to 30, not 0",
        "--timeout 31": "--timeout must be 0.1 to 30, not 31",
        "--timeout nan": "--timeout must be 0.1 to 30, not nan",
        "--timeout long": "argument --timeout: invalid float value: 'long'",
    },
}
WHERE = ("machine", "torch", "date")  # of a recording of measured times


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_ends_with_ok(script, ranks, tmp_path):
    """And where its recording was made with as many ranks, it records it again."""
    path, kept = tmp_path / "again.jsonl", ROOT / "figures" / f"{script}.jsonl"
    header = read(kept).header
    words = [*SHORT.get(script, []), "--record", path]
    how = {"ranks": ranks, "quiet": True, "timeout": 180}
    run = torchrun(script, *words[: None if header["ranks"] == ranks else -2], **how)
    assert run.lines[0][-1].startswith("ok")
    assert run.exit_codes == dict.fromkeys(range(ranks), 0)
    if header["ranks"] != ranks:
        PRINTED[script, ranks] = run.lines[0]
        return
    if header.get("measured"):
        assert timeless(read(path)) == timeless(read(kept))
    else:
        assert path.read_bytes() == kept.read_bytes()
        assert list(tmp_path.iterdir()) == [path]


def timeless(recording):
    """Return what depends neither on the moment nor on the batch, of one step."""
    varies = (*WHERE, "samples")
    header = {k: k in varies or v for k, v in recording.header.items()}
    first = [e for e in recording if e["step"] == recording[0]["step"]]
    kept = ("rank", "what", "workload", "method")
    rows = [[*map(e.get, kept), sorted(e), sorted(e.get("ms", ()))] for e in first]
    return header, sorted(map(str, rows))


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_the_threads_of_a_group_can_be_told_by_their_names(tmp_path, monkeypatch):
    """If not, the next test would find nothing, whatever a script leaves behind."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        last = time.monotonic() + 20  # a new thread takes its name a moment later
        while "gloo" not in threads():
            assert time.monotonic() < last, threads()
    finally:
        dist.destroy_process_group()
    for _ in range(500):  # one that was waited for is listed a moment longer
        if "gloo" not in threads():
            return
        time.sleep(0.01)
    pytest.fail(threads())


@pytest.fixture(scope="module")
def fresh():
    """A function that runs words in two ranks. Rank 0 knows torch and nothing else."""
    line = [sys.executable, ROOT / "tests" / "fresh.py"]
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": ROOT}
    with (
        subprocess.Popen([*line, "0"], text=True, **how) as first,
        subprocess.Popen([*line, "1", "torch._dynamo"], text=True, **how) as second,
    ):

        def run(folder, *words):
            with socket.create_server(("127.0.0.1", 0)) as door:
                order = [door.getsockname()[1], *map(str, [folder, *words])]
            for server in (first, second):
                server.stdin.write(json.dumps(order) + "\n")
                server.stdin.flush()
            return [int(server.stdout.readline()) for server in (first, second)]

        yield run
        first.stdin.close()
        second.stdin.close()


@pytest.mark.parametrize("script", STEMS)
def test_fresh_ranks_print_the_same_and_end_as_cleanly(script, fresh, tmp_path):
    """As those that a plain torchrun starts; the ranks of a cell have imported more.

    Here rank 0 is such a rank. Rank 1 has imported what an optimizer imports, once for
    all scripts: that takes over a second.

    The threads of gloo are gone when a script has destroyed its group. If they are not,
    some part of torch or of the script keeps the group alive, and an interpreter then
    crashes at its end, now and then: 1 launch in 4, or in 100. soak.py launches each
    script twenty times. (What torch remembers of DTensors, in several caches without a
    public way to empty them, holds their mesh: 42 has never crashed, in 20 launches.)
    """
    brief = ["--epochs", 1, "--width", 4] if script == FIRST else []
    words = [f"scripts/{script}.py", *SHORT.get(script, brief)]
    words += ["--record", tmp_path / "again.jsonl"] if script in SHORT else []
    assert fresh(tmp_path, *words) == [0, 0], (tmp_path / "stderr0").read_text()[-2000:]
    if sys.platform == "linux" and script != "42_nobody_holds_it_all":
        for rank in range(2):
            assert "gloo" not in (tmp_path / f"rank{rank}").read_text()
    said = (tmp_path / "stdout0").read_text().splitlines()
    if script in SHORT:
        assert said[-1].startswith("ok")
        kept = read(ROOT / "figures" / f"{script}.jsonl")
        assert timeless(read(tmp_path / "again.jsonl")) == timeless(kept)
        return
    if (script, 2) not in PRINTED:
        PRINTED[script, 2] = torchrun(script, *brief, ranks=2, quiet=True).lines[0]
    assert said == PRINTED[script, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_fresh_ranks_tell_of_an_import_that_keeps_the_group(fresh, tmp_path):
    """An optimizer makes it. Ranks that had made it before could not tell."""
    lines = ["import torch.distributed as dist", "dist.init_process_group('gloo')"]
    lines += ["import torch.distributed.nn", "dist.destroy_process_group()"]
    (tmp_path / "late.py").write_text("\n".join(lines))
    codes = fresh(tmp_path, tmp_path / "late.py")
    said = [(tmp_path / f"stderr{rank}").read_text() for rank in (0, 1)]
    assert "gloo" in (tmp_path / "rank0").read_text(), (codes, said)


def test_the_command_that_is_shown_works():
    """The line that a person would type: of one script, for all are started alike."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    how = {"capture_output": True, "text": True, "timeout": 120, "cwd": ROOT}
    done = subprocess.run([*line, f"scripts/{RING}.py"], **how)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == torchrun(RING, ranks=2, quiet=True).lines[0]


# What follows is shared.py's doing, so it is asked of one script. That all scripts
# begin and end alike, test_house.py sees.


def test_a_script_without_torchrun_says_what_to_type(capfd, monkeypatch, tmp_path):
    path = tmp_path / "nobody's folder" / f"{RING}.py"
    path.parent.mkdir()
    for name in (path.name, "shared.py"):
        shutil.copy(ROOT / "scripts" / name, path.parent)
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(path), run_name="__main__")
    assert end.value.code == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    words = shlex.split(said.partition("try ")[2])
    assert words == ["torchrun", "--standalone", "--nproc-per-node", "4", str(path)]


def test_help_is_no_error(capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [f"scripts/{RING}.py", "--help"])
    runpy.run_path(sys.argv[0], run_name="__main__")
    said = capfd.readouterr()
    tree = ast.parse(Path(sys.argv[0]).read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) in said.out
    assert "\n  --record PATH" in said.out.partition("\noptions:\n")[2]
    assert not said.err


@pytest.mark.parametrize(
    ("ranks", "numel"),
    [(5, 16), (8, 20), (4, 10), (4, 3), (4, 0), (3, 1), (2, 3000001)],
)
def test_the_ring_takes_any_size(ranks, numel):
    run = torchrun(RING, "--numel", numel, ranks=ranks, quiet=True)
    rows = [line.split() for line in run.lines[0][1:-1]]
    assert [int(row[1]) for row in rows] == [2 * (ranks - 1)] * ranks
    assert sum(int(row[2]) for row in rows) == 2 * (ranks - 1) * numel * 8
    assert [row[4] for row in rows] == [str((r + 1) % ranks) for r in range(ranks)]


def test_the_ring_adds_four_kinds_of_numbers(tmp_path):
    """Seen where the script compares: what each kind of tensor holds at the end."""
    text = "import runpy, sys, torch\ncheck = torch.testing.assert_close\n"
    text += "def tell(got, expected, **how):\n    check(got, expected, **how)\n"
    text += "    print(got.dtype, got.tolist())\ntorch.testing.assert_close = tell\n"
    text += f"del sys.argv[0]\nsys.path.append({str(ROOT / 'scripts')!r})\n"
    text += "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    (tmp_path / "told.py").write_text(text)
    words = [ROOT / "scripts" / f"{RING}.py", "--numel", 5]
    run = torchrun(tmp_path / "told.py", *words, ranks=2, quiet=True)
    sums = "[0.0, 3.0, 2.0, 5.0, 0.0]"
    told = [f"torch.{kind} {sums}" for kind in ("float64", "float32", "bfloat16")]
    assert run.lines[1] == [*told, "torch.int64 [11, 11, 11, 22, 22]"]


@pytest.mark.parametrize(
    ("script", "words", "says"),
    [
        (script, words, says)
        for script, own in (WRONG | {RING: EVERYWHERE | WRONG[RING]}).items()
        for words, says in own.items()
    ],
)
def test_a_wrong_argument_gets_one_line(script, words, says, capfd, monkeypatch):
    """From rank 0, which has left when another one leaves; no rank forms a group."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [f"scripts/{script}.py", *words.split()])
    monkeypatch.setenv("WORLD_SIZE", "2")
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        with pytest.raises(SystemExit) as end:
            runpy.run_path(sys.argv[0], run_name="__main__")
        assert end.value.code == 2
        said = capfd.readouterr()
        assert not said.out
        if rank == 0:
            assert f"{script}.py: {says}" in said.err
            assert said.err.count("\n") == 1 and not waits
        else:
            assert not said.err and waits == [1]


def test_of_two_ranks_with_a_wrong_argument_one_speaks():
    with pytest.raises(RankFailed, match="exit code 2") as caught:
        torchrun(RING, "--colour", "red", ranks=2, quiet=True)
    assert EVERYWHERE["--colour red"] in str(caught.value)
    assert sum(text.count("\n") for text in caught.value.run.stderr.values()) == 1


@pytest.mark.parametrize(
    ("gpus", "rank", "found", "says"),
    [
        (0, 0, ("cpu", "gloo"), ""),
        (1, 0, ("cpu", "gloo"), "too few GPUs (1): all ranks use the CPU\n"),
        (1, 1, ("cpu", "gloo"), ""),
        (2, 1, ("cuda:1", "nccl"), ""),
        (8, 1, ("cuda:1", "nccl"), ""),
    ],
)
def test_two_ranks_take_gpus_only_if_each_has_its_own(
    gpus, rank, found, says, capfd, monkeypatch
):
    """Those that ask; with GPUs that are made up."""
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    device, backend = shared.own_device()
    assert (str(device), backend) == found
    assert taken == ([rank] if backend == "nccl" else [])
    assert capfd.readouterr() == ("", says)


def test_a_single_rank_computes_in_one_thread_as_several_do(monkeypatch):
    """Else the page on the learning rate takes minutes on a machine of many cores."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(sys, "argv", ["any.py"])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        shared.start(shared.Parser("Any script."))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_rank_that_ends_as_it_records_leaves_the_old_file(tmp_path, monkeypatch):
    alone = {"get_world_size": lambda: 1, "get_rank": lambda: 0}
    alone["all_gather_object"] = lambda gathered, own: gathered.__setitem__(0, own)
    for name, answer in alone.items():
        monkeypatch.setattr(torch.distributed, name, answer)
    path = tmp_path / "kept.jsonl"
    events = [{"step": 0, "rank": 0}]
    shared.save_recording(path, events)
    kept, write_text = path.read_text(), Path.write_text

    def cut_short(file, text):
        write_text(file, text[:9])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", cut_short)
    with pytest.raises(KeyboardInterrupt):
        shared.save_recording(path, events)
    assert path.read_text() == kept != ""
