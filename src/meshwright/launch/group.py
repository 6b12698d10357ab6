"""The default process group of ranks that a launcher, ours or torchrun, has started, perhaps not for the first time."""

import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous


def join_group(backend: str, timeout: timedelta | None = None) -> None:
    """Join the default process group that the environment describes."""
    store, rank, ranks = next(rendezvous("env://"))
    # Ranks that were started again on several nodes meet in the store of the first ones, where the keys of those are
    # left; torch gives every start a number but does not use it.
    store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
