"""Save a tensor that lies in pieces on all ranks, and load it on half of them.

    torchrun --standalone --nproc-per-node 4 scripts/23_sharded_checkpoints.py

Try --numel 10. GPUs are not used. With --record PATH, rank 0 keeps who held and who
wrote what, as JSON lines. The last line begins with "ok". The lesson:
notebooks/23_sharded_checkpoints.ipynb
"""

import gc
from datetime import timedelta
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.elastic.multiprocessing import errors
from torch.distributed.tensor import Shard, distribute_tensor

from shared import Parser, save_recording, start

PHASES = {
    "hold": "Each rank holds its piece of `big`. All hold the same `small`.",
    "save": "Each rank writes a file of its own; one of them writes `small`.",
    "lost": "The ranks are gone. What they wrote is on the disk.",
    "load": "Fewer ranks load, and each takes a larger piece.",
}


def in_pieces(tensor, mesh):
    """Cut the tensor by rows: a piece for each rank of a mesh."""
    return distribute_tensor(tensor, mesh, [Shard(0)])


def gathered(mine):
    """Return what all ranks have, in their order."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def tell(pieces, later, files):
    """Return what all ranks and the disk, rank -1, hold and send in each phase."""
    # A cell is a number and the ranks whose colours it has. On the disk that is the one
    # rank that wrote it.
    writer = {n: rank for rank, piece in enumerate(pieces) for n in piece}
    disk = {f"file {r}": [[n, r] for n in piece] for r, piece in enumerate(pieces)}
    first = int(files["small"][2])  # of __1_0.distcp, the 1
    disk[f"file {first}"].append([0, first])

    # All ranks hold the same small tensor, which is the number 0.
    small = [[0, *range(len(pieces))]]
    sent = [[[-1, name, cells]] for name, cells in disk.items()]
    got = [[[n, writer[n]] for n in piece] for piece in later]

    # A row has what a rank holds and sends in each of the four phases.
    rows = []
    for rank, piece in enumerate(pieces):
        held = {"big": [[n, rank] for n in piece], "small": small}
        new = {"big": got[rank], "small": [[0, first]]} if got[rank] else {}
        rows.append([(held, []), (held, sent[rank]), ({}, []), (new, [])])

    # The disk comes last: it holds all files from the save on, and sends in the load.
    loads = [[rank, "big", cells] for rank, cells in enumerate(got) if cells]
    rows.append([({}, []), (disk, []), (disk, []), (disk, loads)])
    return [
        {"step": step, "rank": rank, "phase": phase, "holds": holds, "sends": sends}
        for rank, row in zip([*range(len(pieces)), -1], rows)
        for (step, phase), (holds, sends) in zip(enumerate(PHASES), row)
    ]


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--numel", type=int, default=12, help="of the large tensor")
    args, rank, world_size = start(parser)
    if not 1 <= args.numel <= 24:
        parser.error(f"--numel must be 1 to 24, not {args.numel}")

    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    # Making a mesh is a call of all ranks, also of those that are not in it.
    half = range(max(1, world_size // 2))
    mesh = DeviceMesh("cpu", list(range(world_size)))
    fewer = DeviceMesh("cpu", list(half))

    # big lies in pieces on all ranks, and small is whole on each of them.
    whole = torch.arange(1, args.numel + 1)
    big = in_pieces(whole, mesh)
    small = torch.tensor([0])

    with TemporaryDirectory() as folder:
        # Each rank has made a folder of its own, and all take rank 0's.
        names = [folder]
        dist.broadcast_object_list(names)

        # All ranks save: each writes its own piece, and one of them writes small, too.
        dcp.save({"big": big, "small": small}, checkpoint_id=names[0])

        # dcp.load returns nothing, and fills what it is handed: larger pieces of zeros,
        # and a -1.
        new = in_pieces(torch.zeros_like(whole), fewer)
        later = []
        if rank in half:
            state = {"big": new, "small": torch.tensor([-1])}
            dcp.load(state, checkpoint_id=names[0], process_group=fewer.get_group())
            torch.testing.assert_close(state["small"], small)
            later = new.to_local().tolist()

        # .metadata says which file has what, and so tells who wrote small.
        stored = dcp.FileSystemReader(names[0]).read_metadata().storage_data
        files = {index.fqn: file.relative_path for index, file in stored.items()}

        # These calls also wait for all ranks. Only then rank 0 removes the folder.
        pieces = gathered(big.to_local().tolist())
        later = gathered(later)

    # full_tensor() would put the pieces together, too, but keep the group alive.
    torch.testing.assert_close(torch.tensor(sum(later, [])), whole)

    events = [] if rank else tell(pieces, later, files)
    header = {"phases": PHASES, "alone": "the disk", "pace": 3, "gap": 110}
    save_recording(args.record, events, picture="flow", **header)
    if rank == 0:
        for name, lists in {"saved": pieces, "loaded": later}.items():
            print(f"{name:6}", *(numbers for numbers in lists if numbers))
        print(f"ok: {len(half)} ranks hold what {world_size} ranks have saved")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
