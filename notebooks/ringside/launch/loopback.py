"""A meeting place for the ranks of one machine, which no other machine can reach.

The plain command's own place listens to every network, and asks for this host's name.
"""

import socket

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)


class Loopback(RendezvousHandler):
    """A meeting place for one node, on a port that only this machine can reach."""

    use_agent_store = True

    def __init__(self, params):
        self.run_id = params.run_id

    def next_rendezvous(self):
        store = place()
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo("127.0.0.1", store.port))

    def get_backend(self):
        return "loopback"

    def get_run_id(self):
        return self.run_id

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return 0

    def shutdown(self):
        return True


def place() -> TCPStore:
    """Return a store on a free port of loopback."""
    listener = socket.create_server(("127.0.0.1", 0))
    return TCPStore(
        "127.0.0.1",
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


rendezvous_handler_registry.register("loopback", Loopback)
