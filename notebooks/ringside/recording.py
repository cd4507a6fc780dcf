"""Reads a recording and refuses a wrong one, naming the first mistake in it."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = {  # of picture, as a header names them, and what each of their events has
    "ring": "step rank phase chunks send recv",
    "flow": "step rank phase holds",  # and perhaps sends, call, group
    "grid": "step rank samples",
    "stream": "step rank phase reads",
    "timeline": "lane begin end kind what",  # and perhaps step, to
    "race": "step workload ms",
    "paths": "step rank phase score",
    "copies": "step rank phase to bytes",  # told anew as one of those: draw/retell.py
    "shares": "rank slopes grad mean w",
    "spans": "rank method what begin end",
    "sums": "step rank phase places",  # and perhaps to, given
    "habits": "step rank phase has",
    "moves": "step rank phase grad calls",
    "together": "step rank phase has gets",
    "swaps": "step rank phase chunks",  # and perhaps to, gives
    "rows": "step rank phase chunks row",
    "tests": "step rank phase tests right accuracy",
    "lives": "step rank phase weight",
    "crossings": "step rank phase node",  # and perhaps to, bytes
    "bits": "step rank phase weight exponent infs",
    "trees": "step rank phase parent ends",  # and of a rank who told it what
    "jobs": "step rank phase node task local",
    "waits": "step rank phase what kind",
    "checks": "step rank phase what kind",
    "answers": "step rank said score ten",
    "crews": "step rank phase",  # and in the last step of a worker, ends
}
FIELDS = {
    "step": "which state of the run this is, from 0 on",
    "rank": "whose event it is; -1 is one process that works alone",
    "phase": "the part of the run, by the name that the picture shows",
    "chunks": "the sum in each chunk: chunk c of rank r begins as (c + 1) * 10 ** r",
    "send": "the chunk that is about to be sent to the right, or null",
    "recv": "the chunk that is about to come from the left, or null",
    "holds": "by name, what the rank holds: cells of [number, whose rank, ...]",
    "sends": "messages of [to, name] or [to, name, cells]",
    "call": "the call that all ranks make in this step, by name",
    "group": "which group makes the call, if there are several",
    "samples": "the numbers of the samples that the rank reads in this epoch",
    "reads": "for each worker of the rank, the samples that it reads",
    "lane": "the number of the lane; the header has their names",
    "begin": "when it begins, in the header's unit",
    "end": "when it ends",
    "kind": "of a bar: work, message, wait or mark",
    "what": "what is done, in a word",
    "to": "the rank, device or lane that it goes to",
    "workload": "which model is trained",
    "ms": "by method, the milliseconds of a step",
    "node": "the number of the node that the rank is on",
    "bytes": "how many bytes are copied, or sent",
    "slopes": "the slope of each of the rank's samples",
    "grad": "the rank's gradient; of slopes, their mean",
    "calls": "how many all-reduces DDP has made in this step",
    "mean": "the mean of what all ranks have",
    "w": "the weight before and after the step",
    "method": "which way of averaging it belongs to",
    "places": "for each rank, what it gave to the sum that is held",
    "given": "the same for the sum that is sent",
    "has": "what the rank has before the call",
    "gets": "what it has after the call",
    "gives": "the sums in the chunks that are sent",
    "row": "what lies in the rank's row of shared memory",
    "tests": "the numbers of the samples that the rank tests",
    "right": "for each of these, 1 if the model is right, or 0",
    "accuracy": "what all ranks then take for the accuracy of the model",
    "weight": "the model's weight after the step, in two digits",
    "exponent": "of the scale in this step: it is 2 to this power",
    "infs": "the ranks whose own gradient was infinite",
    "parent": "who started the process: you, or a launcher",
    "ends": "how it ended: with an exit code, or by a signal",
    "words": "the arguments that the process was given",
    "knows": "the names of the variables that the rank has when it begins to work",
    "inherited": "those of them that it had when it was started",
    "typed": "those of them that you typed before the command",
    "task": "the number of the task that is the rank, or that has started it",
    "local": "the rank's number on its node",
    "score": "how many right answers to tests all models give together",
    "said": "what the model says that the sum is which is always asked",
    "ten": "how many of its answers to tests are wrong by exactly ten",
}


class WrongRecording(ValueError):
    """A recording that no correct run can have left."""


class Recording(list):
    """The events of a run; the header says which lesson, and how to draw them."""

    def __init__(self, events=(), **header):
        super().__init__(events)
        self.header = header

    def text(self, lesson: str) -> str:
        """Return the lines of a file with this recording, of a lesson."""
        rows = [{"lesson": lesson} | self.header, *self]
        return "".join(json.dumps(row) + "\n" for row in rows)


class Notes(Recording):
    """The recording of simulated ranks in a ring, in the form that scripts leave."""

    def __init__(self):
        super().__init__(picture="ring")

    def add(self, rank: int, chunks, phase="done", send=None, recv=None) -> None:
        """Keep what a rank holds, and what it is about to send and to receive."""
        step = sum(event["rank"] == rank for event in self)
        held = [int(chunk[:1].sum()) for chunk in chunks]
        event = {"step": step, "rank": rank, "phase": phase, "chunks": held}
        self.append(event | {"send": send, "recv": recv})


def load(name: str) -> Recording:
    """Return the recording of a lesson that lies in figures/."""
    return read(ROOT / "figures" / f"{name}.jsonl")


def read(path: Path) -> Recording:
    """Return the events in a file; its first line is the header."""
    with open(path, encoding="utf-8") as lines:
        try:
            header, *events = [json.loads(line) for line in lines] or [{}]
        except ValueError as wrong:
            raise WrongRecording(
                f"{path} has a line that is not JSON: {wrong}"
            ) from None
    if not isinstance(header, dict) or "lesson" not in header:
        raise WrongRecording(f"{path} does not begin with a header")
    return checked(Recording(events, **header))


def reads(lines: dict[int, list[str]], samples: int) -> Recording:
    """Return a grid of lines that ranks printed: in each, an epoch's samples."""
    events = [
        {"step": step, "rank": rank, "samples": json.loads(line)}
        for rank, printed in lines.items()
        for step, line in enumerate(printed)
    ]
    return Recording(events, picture="grid", ranks=len(lines), samples=samples)


def checked(events: Recording) -> Recording:
    """Return the events if all have what their kind of picture needs."""
    if events is None:
        raise WrongRecording("there is no recording: run with record=True")
    kind = getattr(events, "header", {}).get("picture")
    if kind not in KINDS:
        there = ", ".join(KINDS)
        raise WrongRecording(f"the header's picture is {kind!r}, none of {there}")
    for number, event in enumerate(events):
        for name in KINDS[kind].split():
            if name not in event:
                lacks = f"event {number} has no {name!r}, as {kind} needs it"
                raise WrongRecording(f"{lacks}: {FIELDS[name]}")
    return events


def only(events: Recording, *phases: str) -> Recording:
    """Return the steps of some phases, each with the state of rest before it."""
    known = dict.fromkeys(e["phase"] for e in events)
    if wrong := [phase for phase in phases if phase not in known]:
        raise ValueError(f"there is no phase {wrong[0]!r}, but {', '.join(known)}")
    called = {e["step"] for e in events if "gets" in e}
    kept = {e["step"] for e in events if e["phase"] in phases}
    rest = {last_rest(step, called) for step in kept}
    number = {step: i for i, step in enumerate(sorted(kept | rest))}
    found = [e | {"step": number[e["step"]]} for e in events if e["step"] in number]
    return Recording(found, **events.header)


def last_rest(step: int, called: set[int]) -> int:
    """Return the last step before this one in which no call is made, or this one."""
    before = [earlier for earlier in range(step) if earlier not in called]
    return before[-1] if before else step


def table(events: list[dict]) -> list[list[dict]]:
    """Return the events as rows of steps and columns of ranks."""
    events = sorted(events, key=lambda event: (event["step"], event["rank"]))
    steps = 1 + events[-1]["step"]
    rows = [[e for e in events if e["step"] == step] for step in range(steps)]
    ranks = range(len(rows[0]))
    for step, row in enumerate(rows):
        if [e["rank"] for e in row] != list(ranks):
            raise WrongRecording(f"step {step} does not have one event for each rank")
    return rows


def values(events: list[dict]) -> list[list[list[int]]]:
    """Return what the ranks hold: by step, then rank, then chunk."""
    return [[event["chunks"] for event in row] for row in table(events)]


def verify(events: list[dict]) -> list[dict]:
    """Return the events of a ring all-reduce if every message and sum is right."""
    rows = table(events)
    size = len(rows[0])
    for step, row in enumerate(rows[:-1]):
        for rank, event in enumerate(row):
            before, after = event["chunks"], rows[step + 1][rank]["chunks"]
            left = (rank - 1) % size
            sent, recv = row[left]["send"], event["recv"]
            if sent != recv:
                raise WrongRecording(
                    f"step {step}: rank {left} sent chunk {sent}, and rank {rank} took"
                    f" it for chunk {recv}"
                )
            came = row[left]["chunks"][sent]
            right = came + before[recv] * (event["phase"] == "scatter-reduce")
            if after != [*before[:recv], right, *before[recv + 1 :]]:
                raise WrongRecording(
                    f"step {step}: rank {rank} had {before}, received {came} for chunk"
                    f" {recv}, and then had {after}"
                )
    for event in rows[-1]:
        for chunk, value in enumerate(event["chunks"]):
            times = [digit(value, r) / (chunk + 1) for r in range(size)]
            missing = [r for r in range(size) if times[r] == 0]
            wrong = missing or [r for r in range(size) if times[r] != 1]
            if wrong:
                raise WrongRecording(
                    f"rank {event['rank']} ends with {value:0{size}} in chunk {chunk}:"
                    f" {'missing' if missing else 'not once'} are the numbers of"
                    f" rank{'s' * (len(wrong) > 1)} {' and '.join(map(str, wrong))}"
                )
    return events


def digit(value: int, rank: int) -> int:
    """Return what a rank gave to a sum: the chunk's number plus one, or 0."""
    return value // 10**rank % 10
