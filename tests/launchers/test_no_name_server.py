"""A machine whose name server does not answer: torch asks it before each connection."""

import subprocess
import sys
from pathlib import Path

from helpers.environments import rank_environment
from helpers.launchers import REPORT, need, reports
from helpers.programs import run_program

SILENT = """
import socket, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("127.0.0.1", 53))
    time.sleep(600)  # until it is killed
"""
ALONE = """
set -e
ip link set lo up
mount --bind "$1" /etc/resolv.conf
"$2" -c "$3" &
server=$!
RANK=0 LOCAL_RANK=0 "$2" "$4" &
first=$!
RANK=1 LOCAL_RANK=1 "$2" "$4"
wait $first
kill $server
"""


def test_ranks_meet_where_no_name_server_answers(tmp_path: Path) -> None:
    """Ranks meet even if each look-up of a name fails only after seven seconds."""
    need("ip", "unshare", root=True)
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:7 attempts:1\n")
    command = [
        "unshare",
        "--net",
        "--pid",
        "--mount-proc",
        "--fork",
        "--kill-child",
        "bash",
        "-c",
        ALONE,
        "bash",
    ]
    done = run_program(
        [*command, str(resolver), sys.executable, SILENT, REPORT],
        rank_environment(0, 2, 29531),
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    assert len(reports(done.stdout)) == 2
