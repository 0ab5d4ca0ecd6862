"""A pretended accelerator: torch finds it by its entry point "torch.backends".

PRETEND_DEVICES says how many devices there are; PRETEND_PROPERTIES may list what each
is: [{"name": …, "total_memory": …, "multi_processor_count": …, "uuid": …}, …].
"""

import importlib.util
import json
import os
import sys
import time
import types
import uuid
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import torch

_USUAL = {
    "name": "Pretended GPU",
    "total_memory": 16 << 30,
    "multi_processor_count": 100,
}


def load() -> None:
    """Make torch know the device type and its backend; `import torch` calls this."""
    import torch.distributed as dist  # noqa: PLC0415 - torch is being imported

    spec = importlib.util.spec_from_file_location(
        "pretended_accelerator", os.environ["PRETEND_LIBRARY"]
    )
    assert spec is not None
    assert spec.loader is not None
    torch.utils.rename_privateuse1_backend("pretend")
    own: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    module: Any = types.ModuleType("torch.pretend")
    module.device_count = own.count
    module.is_available = lambda: own.count() > 0
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False  # noqa: SLF001 - torch asks for it
    module.current_device = own.current
    module.set_device = lambda device: own.set_current(_index(device))
    module.synchronize = lambda device=None: own.synchronize(
        own.current() if device is None else _index(device)
    )
    module.get_device_properties = _properties
    module.manual_seed_all = module.manual_seed = lambda _seed: None
    module.bytes = own.bytes
    vars(torch._C)["_pretend_hasPrimaryContext"] = own.has_context  # noqa: SLF001 - as CUDA's
    module.fail_kernel = own.fail_kernel
    module.Stream, module.Event = _Stream, _Event
    module.current_stream = module.default_stream = lambda _=None: _Stream()
    module.stream = lambda stream: stream
    register: Any = torch._register_device_module  # noqa: SLF001 - torch has no public way
    register("pretend", module)
    sys.modules["torch.pretend"] = module
    torch.utils.generate_methods_for_privateuse1_backend()

    create: Any = partial(_create, own)
    dist.Backend.register_backend("pretend", create, devices=["pretend"])


def _index(device: Any) -> int:
    return device if isinstance(device, int) else torch.device(device).index


def _properties(device: Any) -> SimpleNamespace:
    index = _index(device)
    listed = json.loads(os.environ.get("PRETEND_PROPERTIES", "[]"))
    own = listed[index] if index < len(listed) else {}
    named = {"uuid": str(uuid.UUID(int=0xACCE << 112 | index))}
    return SimpleNamespace(**{**_USUAL, **named, **own})


def _create(own: Any, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Return a backend whose ranks all are there, each on a device of its own."""
    import torch.distributed as dist  # noqa: PLC0415 - as above

    place = f"{os.uname().nodename} {own.current()}"
    store.set(f"device/{rank}", place)
    ours = dist.PrefixStore("pretend", store)
    own.form(ours, size)
    for other in range(size):
        if other != rank and store.get(f"device/{other}").decode() == place:
            message = f"Duplicate GPU detected : rank {rank} and rank {other}"
            raise dist.DistBackendError(message)
    gloo = dist.ProcessGroupGloo(
        dist.PrefixStore("gloo", store), rank, size, timedelta(days=1)
    )
    return own.Backend(gloo, ours, rank, size, timeout.total_seconds())


class _Stream:
    """The one stream that there is, in which everything is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
    def wait_stream(self, _: Any) -> None: ...
    def wait_event(self, _: Any) -> None: ...
    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def synchronize(self) -> None: ...


class _Event:
    """A point in that stream, which is always passed."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, _: Any = None) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: Self) -> float:
        return (end.seconds - self.seconds) * 1000

    def wait(self, _: Any = None) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True
