"""The store on which ranks meet, and forked children, which leave it alone."""

import os
import signal
import time

from gpumap.mapping.launch import Launch
from gpumap.rendezvous import rendezvous
from gpumap.rendezvous.rendezvous import meet
from helpers.jobs import free_port


def test_a_child_leaves_its_parents_store_alone() -> None:
    """A forked child exits at once, and its parent's store goes on working.

    The store's destructor would wait for the server's thread, which no child has.
    """
    launch = Launch(
        launcher="torchrun",
        rank=0,
        world_size=2,
        local_rank=0,
        local_world_size=2,
        master_addr="127.0.0.1",
        master_port=free_port(),
    )
    opened = rendezvous._opened  # noqa: SLF001 - it stays for the life of the process
    before = dict(opened)
    assert meet(launch, 10, {}).host == 0
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    status = None
    for _ in range(100):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert status == 3 * 256
    meeting = meet(launch, 10, {})
    meeting.store.set("still", "here")
    assert meeting.store.get("still") == b"here"
    opened.clear()
    opened.update(before)
