"""All keys of a session on the store; each begins with the session's prefix.

Each rank makes the same few requests, whatever the world size.

| key | operation | meaning |
|---|---|---|
| roll call | | |
| rank/R | compare_set | who is rank R |
| device/D | compare_set | who trains on device D |
| rehearsal/N | compare_set | who says which machine node N pretends |
| terms | compare_set | what the first to arrive takes for granted |
| model | set | what its model consists of |
| speaker | compare_set | who says which ranks are awaited |
| present | add | how many have claimed; the last one writes the verdict |
| verdict | compare_set | "go", or the one error that every rank raises |
| settling | compare_set | who finds out which ranks are missing |
| stranger/R | compare_set | who came as rank R and left, as of another job |
| told | add | how many have read an error, all but the store's host |
| all told | set | all of them have |
| the body and its end | | |
| news/N | compare_set | the N-th entry of the journal; each kind is written once |
| ended/R | set | rank R has come to its end |
| ended | add | how many have |
| answer/R | set | what rank R was doing when it was asked |
| answers | add | how many have answered |
| answered | set | all have |
| heard | add | how many know the outcome |
| all heard | set | all do |
| left | add | how many have closed their group after the outcome |
| bye | add | how many need the store no more |
| all gone | set | all but its host |

Outside of any session, "gpumap/owner" says who hosts the store.
"""

from collections.abc import Callable
from typing import TypeAlias

from gpumap.mapping.identity import Identity

OfRank: TypeAlias = Callable[[int], str]
"""A function below that returns a rank's key of some kind."""

TERMS, MODEL, SPEAKER = "terms", "model", "speaker"
PRESENT, VERDICT, SETTLING = "present", "verdict", "settling"
TOLD, ALL_TOLD = "told", "all told"
ENDED, ANSWERS, ANSWERED = "ended", "answers", "answered"
HEARD, ALL_HEARD, LEFT = "heard", "all heard", "left"
BYE, ALL_GONE = "bye", "all gone"


def rank(number: int) -> str:
    """Return the key of who is this rank."""
    return f"rank/{number}"


def device(identity: Identity) -> str:
    """Return the key of who trains on a device."""
    return f"device/{identity}"


def rehearsal(node_rank: int) -> str:
    """Return the key of who says which machine a node pretends."""
    return f"rehearsal/{node_rank}"


def stranger(number: int) -> str:
    """Return the key of who came as this rank and left."""
    return f"stranger/{number}"


def news(number: int) -> str:
    """Return the key of the journal's n-th entry, from 1."""
    return f"news/{number}"


def ended(number: int) -> str:
    """Return the key that says that this rank has come to its end."""
    return f"ended/{number}"


def answer(number: int) -> str:
    """Return the key of what this rank was doing."""
    return f"answer/{number}"
