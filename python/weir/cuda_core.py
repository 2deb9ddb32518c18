# SPDX-License-Identifier: Apache-2.0
"""cuda.core (NVIDIA's cuda-python) on weir: a MemoryResource.

    from cuda.core import Device
    import weir.cuda_core

    device = Device()
    device.set_current()
    device.memory_resource = weir.cuda_core.MemoryResource(device)
    buffer = device.allocate(64 << 20, stream=stream)
"""

from typing import Any, Optional

try:
    from cuda.core import Buffer as _Buffer
    from cuda.core import MemoryResource as _MemoryResource
except ImportError:  # where it was before 0.5
    from cuda.core.experimental import Buffer as _Buffer  # type: ignore[no-redef]
    from cuda.core.experimental import MemoryResource as _MemoryResource  # type: ignore[no-redef]

from ._allocator import plugin_options, process_allocator
from ._machine import Options, native_stream


class MemoryResource(_MemoryResource):
    """Device memory from weir's caching allocator, in the order of the streams that are given.

    device   a cuda.core Device, or a number
    policy, options   as in weir.cupy.enable()

    The allocator lives as long as the process and is shared by all resources with the same device and
    options. A stream that allocated memory here may be destroyed without notice; after release_stream() its
    memory passes to other streams sooner. One that only uses memory is made known with weir.watch_stream().
    """

    def __init__(self, device: Any = 0, policy: Optional[str] = None, options: Options = None) -> None:
        self._number = int(getattr(device, "device_id", device))
        self._memory = process_allocator(self._number, plugin_options(policy, options))

    def allocate(self, size: int, stream: Any = None) -> Any:
        """A buffer of `size` bytes that work queued on `stream` from now on may use."""
        block = self._memory.allocate(size, native_stream(stream))
        buffer = _Buffer.from_handle(block.ptr, size, mr=self)
        block.release()  # the buffer's from here on
        return buffer

    def deallocate(self, ptr: Any, size: int, stream: Any = None) -> None:
        """Frees memory in the order of `stream`, or of the stream of its allocation."""
        if stream is None:
            self._memory.deallocate(int(ptr))
        else:
            self._memory.deallocate(int(ptr), native_stream(stream))

    @property
    def is_device_accessible(self) -> bool:
        """True: this is device memory."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """False: the host cannot read this memory."""
        return False

    @property
    def is_managed(self) -> bool:
        """False: this is not managed memory."""
        return False

    @property
    def device_id(self) -> int:
        """The number of the device."""
        return self._number

    @property
    def allocator(self) -> Any:
        """The weir.Allocator underneath, for statistics and limits."""
        return self._memory

    def release_stream(self, stream: Any) -> None:
        """Call this before a stream is destroyed: memory bound to it becomes available to other streams."""
        self._memory.release_stream(native_stream(stream))
