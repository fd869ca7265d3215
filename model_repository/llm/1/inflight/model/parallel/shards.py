"""The ranks over which a model is divided, as one of them sees them, and the collectives between them."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore

from inflight.errors import UnsupportedModel
from inflight.model.parallel.machines.sockets import interface_of
from inflight.model.parallel.rendezvous import Rendezvous

# Ranks compute the same step at the same speed. A rank that has died or was stopped is found sooner, by `Workers`.
_COLLECTIVE = timedelta(seconds=60)
_CONNECTING = timedelta(seconds=10)
# Ranks connect when all have arrived, which takes seconds. For one that has ended since, torch would wait in vain.
_MEETING = timedelta(seconds=60)
# One rank may read its weights much later than another.
_LOADING = timedelta(hours=1)
# Of larger tensors, each rank adds up a part. It takes two collectives, which is slower for small ones.
_SMALL_BYTES = 512 * 1024
# The store's own wait cannot be broken off when a rank has left.
_POLL_SECONDS = 0.05
_TAG = 0
_ARRIVED, _LEFT = "arrived", "left"

RANK_LEFT = "another rank has left the step"


class RankLeft(RuntimeError):
    """A collective failed because another rank has failed or has ended, or does not come."""


class Shards:
    """One rank's view of the ranks. All ranks must call the same methods in the same order.

    It does not use torch's default process group but in `loading`, so that a process can have several models. If a rank
    fails between two collectives, or while it loads, it calls `abandon`; what the others wait for then fails too. After
    `renew` on all ranks, they can go on.

    Collectives are gloo's on CPUs and NCCL's on GPUs. gloo's ranks talk over the addresses that they are given: on one
    machine, that of the loopback interface.
    """

    def __init__(self, rank: int, size: int, device: torch.device, rendezvous: Rendezvous, host: str) -> None:
        """`host` is the address of this machine for the other ranks. Call `renew` after `loading`."""
        self.rank, self.size, self.device = rank, size, device
        self.is_whole = False
        """Whether each rank computes the whole model for now."""
        self._refusal: str | None = None
        """Why collectives are refused for now, see `alone`."""
        self._store, self._host = rendezvous.store(size), host
        self._group: Any = None
        self._loading: Any = PrefixStore("loading", self._store)
        """The part of the store for `loading`. None once all have loaded."""

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Have torch's default process group in this context, as transformers loads shards through it.

        Raises:
            ValueError: the process has a default group already.
            RuntimeError: another rank has failed.
        """
        self._wait_for_arrivals()
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)
        # The device's number, which transformers takes from this variable.
        local_rank = self.device.index if on_gpu else self.rank
        with environment({"LOCAL_RANK": str(local_rank), "GLOO_SOCKET_IFNAME": interface_of(self._host)}):
            self._meet()
            try:
                yield
                self._wait_for_all()
                self._loading = None
            finally:
                dist.destroy_process_group()

    def _meet(self) -> None:
        """Connect to the other ranks in torch's default group."""
        on_gpu = self.device.type == "cuda"
        try:
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                store=self._loading,
                rank=self.rank,
                world_size=self.size,
                timeout=_MEETING,
                device_id=self.device if on_gpu else None,
            )
        except RuntimeError as error:
            # torch would count it, and no other rank would know the next group by this number.
            dist.distributed_c10d._world.group_count = 0
            raise RankLeft(f"{RANK_LEFT}: {_last_line(error)}") from None
        dist.distributed_c10d._set_pg_timeout(_LOADING)

    def _wait_for_arrivals(self) -> None:
        """Return when all ranks are about to join torch's group. That would also wait for a rank that has failed."""
        self._loading.add(_ARRIVED, 1)
        ends = time.monotonic() + _LOADING.total_seconds()
        while self._loading.add(_ARRIVED, 0) < self.size:
            if self._loading.add(_LEFT, 0) > 0:
                raise RankLeft(f"{RANK_LEFT}: it has failed before it has read its weights")
            if time.monotonic() > ends:
                raise RankLeft(f"{RANK_LEFT}: it does not read its weights for {_LOADING}")
            time.sleep(_POLL_SECONDS)

    def _wait_for_all(self) -> None:
        with _as_rank_left():
            dist.barrier()

    def renew(self, generation: int) -> None:
        """Connect to the other ranks, which call this too with the same number. No two calls have the same."""
        self._store.set_timeout(_CONNECTING)
        store = PrefixStore(str(generation), self._store)
        if self.device.type == "cuda":
            group: Any = dist.ProcessGroupNCCL
            options = group.Options()
        else:
            group = dist.ProcessGroupGloo
            options = group._Options()
            options._devices = [group.create_device(hostname=self._host)]
        options._timeout = _COLLECTIVE
        self._group = group(store, self.rank, self.size, options)

    def abandon(self) -> None:
        """Close the connections to the other ranks: what they wait for fails. Any thread may call this."""
        if (loading := self._loading) is not None:
            loading.add(_LEFT, 1)
        group, self._group = self._group, None
        if group is not None and self.device.type == "cuda":
            group.abort()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' tensors of one shape.

        On CPUs each element is added up in the order of the ranks, so that a row's sum does not depend on the other
        rows. gloo's own all-reduce adds in an order that depends on the place in the tensor, and takes four
        times as long for a small one.
        """
        if self.device.type == "cuda":
            total = tensor.clone(memory_format=torch.contiguous_format)
            self._finish("allreduce", [total])
            return total
        tensor = tensor.contiguous()
        if self.size <= 2 or tensor.nbytes <= _SMALL_BYTES:
            return _sum_in_order(self._all_parts(tensor))
        return self._sum_of_large(tensor)

    def _sum_of_large(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add up a part on each rank, then give all ranks all parts. It is the same sum, and less is sent."""
        length = -(-tensor.numel() // self.size)
        theirs = nn.functional.pad(tensor.flatten(), (0, length * self.size - tensor.numel()))
        mine = torch.empty_like(theirs)
        self._finish("alltoall_base", mine, theirs, [], [])
        total = _sum_in_order(torch.split(mine, length))
        return torch.cat(self._all_parts(total))[: tensor.numel()].view_as(tensor)

    def _all_parts(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return each rank's tensor of one shape. The caller's own is `part` itself on CPUs."""
        self._check_not_alone()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        if self.device.type == "cuda":
            self._finish("allgather", [parts], [part])
            return parts
        # Each rank sends to each other one, which takes less time than gloo's allgather if the tensors are small.
        parts[self.rank] = part
        group, others = self._group, [rank for rank in range(self.size) if rank != self.rank]
        with _as_rank_left():
            works = [group.send([part], rank, _TAG) for rank in others]
            works += [group.recv([parts[rank]], rank, _TAG) for rank in others]
            for work in works:
                work.wait()
        return parts

    def gather(self, part: torch.Tensor, dim: int, size: int) -> torch.Tensor:
        """Put the parts of all ranks together along `dim`, which is `size` elements long then. See `part_of`."""
        missing = -(-size // self.size) - part.shape[dim]
        if missing:
            padding = list(part.shape)
            padding[dim] = missing
            part = torch.cat([part, part.new_zeros(padding)], dim)
        parts = self._all_parts(part.contiguous())
        return torch.cat(parts, dim).narrow(dim, 0, size).contiguous()

    def part_of(self, size: int) -> slice:
        """Return this rank's part of `size` elements: as `torch.chunk`, the last parts may be shorter."""
        longest = -(-size // self.size)
        return slice(min(size, self.rank * longest), min(size, (self.rank + 1) * longest))

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrite `tensor` with that of rank 0, and return it."""
        tensor = tensor.contiguous()
        self._finish("broadcast", tensor, 0)
        return tensor

    def greatest(self, number: float) -> float:
        """Return the greatest number of all ranks; infinity if one is not a number."""
        found = torch.tensor([number if number == number else float("inf")], dtype=torch.float64, device=self.device)
        return float(torch.cat(self._all_parts(found)).max())

    def least(self, number: float) -> float:
        """Return the least number of all ranks."""
        return -self.greatest(-number)

    @contextmanager
    def alone(self, reason: str) -> Iterator[None]:
        """Refuse collectives in this context: this rank tries what it will compute by itself.

        Raises:
            UnsupportedModel: There was a collective, for this `reason`.
        """
        self._refusal = reason
        try:
            yield
        finally:
            self._refusal = None

    def _check_not_alone(self) -> None:
        if self._refusal is not None:
            raise UnsupportedModel(self._refusal)

    def _finish(self, collective: str, *arguments: Any) -> None:
        self._check_not_alone()
        with _as_rank_left():
            getattr(self._group, collective)(*arguments).wait()


def _sum_in_order(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0].to(torch.promote_types(parts[0].dtype, torch.float32))
    for part in parts[1:]:
        total = total + part
    return total.to(parts[0].dtype)


@contextmanager
def _as_rank_left() -> Iterator[None]:
    """Raise RankLeft where a collective fails in this context."""
    try:
        yield
    except RuntimeError as error:
        raise RankLeft(f"{RANK_LEFT}: {_last_line(error)}") from None


def _last_line(error: RuntimeError) -> str:
    return str(error).strip().splitlines()[-1]


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have environment variables of this process in this context."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
