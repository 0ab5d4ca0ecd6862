"""All keys of a session on the store; each begins with the session's prefix.

Each rank makes the same few requests, whatever the world size. But where the ranks of a
node decide together, local rank 0 reads what each of them says; and where all split a
batch, the last one to come reads every rank's speed.

| key | operation | meaning |
|---|---|---|
| once per node, before the roll call, where ranks must decide together | | |
| facts/N/L | compare_set | what local rank L of node N says about itself |
| decision/N | set | what local rank 0 decides for the ranks of node N |
| roll call | | |
| rank/R | compare_set | who is rank R |
| device/D | compare_set | who trains on device D |
| rehearsal/N | compare_set | which rank says what machine node N rehearses |
| terms | compare_set | the first rank's terms, with which the others compare theirs |
| model | set | the tensors of that rank's model |
| speaker | compare_set | which rank logs the missing ranks |
| present | add | how many have claimed; the last one writes the verdict |
| verdict | compare_set | "go", or the one error that every rank raises |
| settling | compare_set | which rank finds out what ranks are missing |
| stranger/R | compare_set | who came as rank R and left, as of another job |
| told | add | how many have read an error, not counting the store's host |
| all told | set | all of them have |
| after a good roll call, before the script of `gpumap run` | | |
| host/R | set | on which host local rank 0 is, if that is rank R |
| numbering | add | how many have said so, or have nothing to say |
| all hosts | set | all have |
| node/H | set | the number of the node that is host H |
| nodes | set | how many nodes there are; all are numbered |
| door | set | nothing of gpumap's listens at the store's address any more |
| the body and its end | | |
| news/N | compare_set | the N-th entry of the journal; each kind is written once |
| ended/R | set | rank R has finished |
| ended | add | how many have |
| answer/R | set | what rank R was doing when it was asked |
| answers | add | how many have answered |
| answered | set | all have |
| heard | add | how many have read the outcome |
| all heard | set | all have |
| left | add | how many have closed their group after the outcome |
| bye | add | how many need the store no more |
| all gone | set | all but its host |

Outside of any session, "gpumap/owner" has the fingerprint of the store's host, and
"gpumap/run/E/gathered/R" counts how often rank R has gathered on torchrun's store since
its restart E. The n-th gathering has the prefix "gpumap/run/E/n", a session of a script
"gpumap/E/n".
"""

from collections.abc import Callable
from typing import TypeAlias

from gpumap.mapping.identity import Identity

OfRank: TypeAlias = Callable[[int], str]
"""One of the functions below that take a rank."""

TERMS, MODEL, SPEAKER = "terms", "model", "speaker"
PRESENT, VERDICT, SETTLING = "present", "verdict", "settling"
TOLD, ALL_TOLD = "told", "all told"
ENDED, ANSWERS, ANSWERED = "ended", "answers", "answered"
HOSTS, ALL_HOSTS, NODES, DOOR = "numbering", "all hosts", "nodes", "door"
HEARD, ALL_HEARD, LEFT = "heard", "all heard", "left"
BYE, ALL_GONE = "bye", "all gone"


def facts(node: str, local_rank: int) -> str:
    """Return the key of what a local rank of a node says about itself."""
    return f"facts/{node}/{local_rank}"


def decision(node: str) -> str:
    """Return the key of what is decided for the ranks of a node."""
    return f"decision/{node}"


def rank(number: int) -> str:
    """Return the key of the member that is a rank."""
    return f"rank/{number}"


def device(identity: Identity) -> str:
    """Return the key of the member that trains on a device."""
    return f"device/{identity}"


def rehearsal(node_rank: int) -> str:
    """Return the key of the member that says which machine a node rehearses."""
    return f"rehearsal/{node_rank}"


def stranger(number: int) -> str:
    """Return the key of a process that came as a rank and left."""
    return f"stranger/{number}"


def host(rank: int) -> str:
    """Return the key of the host on which a rank is local rank 0."""
    return f"host/{rank}"


def node(host: str) -> str:
    """Return the key of a node's number."""
    return f"node/{host}"


def gathered(number: int) -> str:
    """Return the key that counts how often a rank has gathered."""
    return f"gathered/{number}"


def news(number: int) -> str:
    """Return the key of the journal's n-th entry, from 1."""
    return f"news/{number}"


def ended(number: int) -> str:
    """Return the key that is set once a rank has finished."""
    return f"ended/{number}"


def answer(number: int) -> str:
    """Return the key of what a rank was doing when it was asked."""
    return f"answer/{number}"
