"""Every call to a card that streaming needs, each small: copies beside the computation, marks in order, locked memory.

The CPU has the same calls without effect, so that one code serves both and is tested without a card.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

READ_ONLY = 8  # cudaHostRegisterReadOnly: without it a read-only mapping is refused
# A point in the order of work; None: all before it has ended already; a future: it is still to be set, by another thread.
Mark = torch.cuda.Event | Future[torch.cuda.Event | None] | None


class Accelerator(Protocol):
    """One device and a line of copies beside its computation."""

    device: torch.device
    on_gpu: bool

    def submit(self, task: Callable[[], None], after: Mark) -> Mark:
        """Queue what `task` does on the line of copies, after the mark; returns the mark of its end."""

    def mark(self) -> Mark:
        """Return a mark after all that was queued so far, on the line that is current."""

    def wait(self, mark: Mark) -> None:
        """Let the computation that is queued from now on begin after the mark."""

    def settle(self, mark: Mark) -> None:
        """Block the caller until the mark is reached."""

    def join(self, mark: Mark) -> None:
        """Block the caller until the mark is set; raises what the task before it raised."""

    def adopt(self, tensor: Tensor) -> None:
        """Keep the memory of `tensor`, once it is dropped, until the line of copies is done with it."""

    def register(self, data: Tensor, *, read_only: bool) -> str | None:
        """Lock host memory, so that it is copied from directly; returns the driver's refusal, or None."""

    def unregister(self, data: Tensor) -> None:
        """Undo `register`, once no copy from it is under way."""

    def locked(self, num_bytes: int) -> Tensor:
        """Return a new locked buffer (num_bytes,) uint8."""


class Cpu:
    """No line of its own: a task is done when `submit` returns."""

    on_gpu = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def submit(self, task: Callable[[], None], after: Mark) -> Mark:  # noqa: ARG002
        task()
        return None

    def mark(self) -> Mark:
        return None

    def wait(self, mark: Mark) -> None: ...
    def settle(self, mark: Mark) -> None: ...
    def join(self, mark: Mark) -> None: ...
    def adopt(self, tensor: Tensor) -> None: ...
    def register(self, data: Tensor, *, read_only: bool) -> str | None:  # noqa: ARG002
        return None

    def unregister(self, data: Tensor) -> None: ...
    def locked(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)


class Cuda:
    """A copy stream beside the stream that computes."""

    on_gpu = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def submit(self, task: Callable[[], None], after: Mark) -> Mark:
        with torch.cuda.stream(self._copies):
            if (event := _set(after)) is not None:
                self._copies.wait_event(event)
            task()
            return self.mark()

    def mark(self) -> Mark:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self, mark: Mark) -> None:
        if (event := _set(mark)) is not None:
            torch.cuda.current_stream(self.device).wait_event(event)

    def settle(self, mark: Mark) -> None:
        if (event := _set(mark)) is not None:
            event.synchronize()

    def join(self, mark: Mark) -> None: ...
    def adopt(self, tensor: Tensor) -> None:
        tensor.record_stream(self._copies)

    def register(self, data: Tensor, *, read_only: bool) -> str | None:
        with torch.cuda.device(self.device):
            flags = READ_ONLY if read_only else 0
            code = int(torch.cuda.cudart().cudaHostRegister(data.data_ptr(), data.numel(), flags))  # type: ignore[no-untyped-call]
            if code == 0:
                return None
            self._forget_error()
            return f"error {code} of cudaHostRegister"

    def _forget_error(self) -> None:
        """Take up the error that a refusal leaves behind, which else the next innocent kernel would be blamed for."""
        try:
            torch.ones(1, device=self.device).add_(1)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            torch.ones(1, device=self.device).add_(1)  # raises if the card is really lost

    def unregister(self, data: Tensor) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.cudart().cudaHostUnregister(data.data_ptr())  # type: ignore[no-untyped-call]

    def locked(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


class Aside:
    """Another accelerator, to whose line of copies a thread adds: for tasks that take the host some time.

    `submit` returns at once, and what is computed is launched meanwhile; tasks are begun in the order in which they came.
    What a task raises is raised where its mark is waited for.
    """

    def __init__(self, inner: Accelerator) -> None:
        self.device, self.on_gpu = inner.device, inner.on_gpu
        self._inner = inner
        self._line = ThreadPoolExecutor(1, thread_name_prefix="copies")

    def submit(self, task: Callable[[], None], after: Mark) -> Mark:
        return self._line.submit(lambda: _set(self._inner.submit(task, after)))

    def mark(self) -> Mark:
        return self._inner.mark()

    def wait(self, mark: Mark) -> None:
        self._inner.wait(_set(mark))

    def settle(self, mark: Mark) -> None:
        self._inner.settle(_set(mark))

    def join(self, mark: Mark) -> None:
        _set(mark)

    def adopt(self, tensor: Tensor) -> None:
        self._inner.adopt(tensor)

    def register(self, data: Tensor, *, read_only: bool) -> str | None:
        return self._inner.register(data, read_only=read_only)

    def unregister(self, data: Tensor) -> None:
        self._inner.unregister(data)

    def locked(self, num_bytes: int) -> Tensor:
        return self._inner.locked(num_bytes)


def _set(mark: Mark) -> torch.cuda.Event | None:
    """Return the mark once it is set; raises what the task before it raised."""
    return mark.result() if isinstance(mark, Future) else mark


def accelerator_of(device: torch.device) -> Accelerator:
    return Cuda(device) if device.type == "cuda" else Cpu()
