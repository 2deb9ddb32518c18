# SPDX-License-Identifier: Apache-2.0
"""weir under PyTorch.

    import weir.torch
    weir.torch.enable()              # before anything is put on a GPU

makes weir the CUDA allocator of the whole program: memory_stats, memory_snapshot, record_stream, CUDA
graphs, torch.compile, MemPool and tensors between processes keep working, on weir's memory. For one part of
a program there is mem_pool(), and for versions of torch that enable() does not cover, pluggable().
docs/pytorch.md is the guide.

enable() covers torch 2.6 to 2.14 (CUDA), and tries later ones. It loads an extension that was built for the
installed torch (`python -m weir.torch_build` builds one ahead). Where none fits it compiles one, once: a
compiler and ninja are needed, and the result is kept under ~/.cache/weir (WEIR_CACHE names another folder).
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch

from .. import _native, _suspend, _torch_extension, _torch_suspend
from .._errors import Error
from .._machine import Runtime, options_text
from .._machine import watch_stream as watch_native_stream
from .._report import size_text
from .._suspend import Progress, ResumeOutcome, SuspendOutcome, SuspendStats
from .._torch_suspend import OutOfMemory, Target
from .._uses import UndeclaredUse

if TYPE_CHECKING:
    from .._torch_growable import GrowableList, GrowableTensor

__all__ = ["COVERED", "OutOfMemory", "UndeclaredUse", "declare_suspendable", "enable", "growable", "growable_list", "is_enabled",
           "is_suspended", "mark", "mem_pool", "pluggable", "record", "release_stream", "report", "reserve_backup", "resume",
           "stats", "stop", "suspend", "suspend_stats", "suspended", "tag", "trim", "trim_backup", "watch_stream", "watch_uses"]

# The first and the last version of torch whose allocator interface the extension was written after. It is one
# source for all of them, and may well fit a later one.
COVERED = ((2, 6), (2, 14))
POLICIES = ("balanced", "throughput", "compact", "never_move", "classic", "classic_expandable")

_MODULE = _torch_extension.MODULE
_extension: Optional[ModuleType] = None
_recorded: List[int] = []
_declared: Set[Tuple[int, str]] = set()  # devices and tags that can be suspended

Device = Union[None, int, str, "torch.device"]


# --- The whole program ------------------------------------------------------------------------------


def enable(policy: Optional[str] = None, options: Union[str, Mapping[str, Any], None] = None, *,
           exportable: bool = True, any_version: bool = False, verbose: bool = False) -> None:
    """Makes weir this process's CUDA allocator, for good. A second call does nothing.

    policy       how memory is placed: "balanced" (as it is), "throughput", "compact", "never_move",
                 "classic", "classic_expandable"; docs/tuning.md compares them
    options      options of weir, {"heap_limit": "40GiB"} or "heap_limit=40GiB"; docs/options.md lists them
    exportable   whether tensors can be sent to other processes, where the GPU and the policy allow it
    any_version  try it with a torch that is older than those that are covered; without it a later one is
                 tried, too, with a warning
    verbose      show how the extension is built

    Raises RuntimeError if tensors are on a GPU already, or if this torch does not fit.
    """
    if is_enabled():
        return
    _check_build(any_version)
    if policy is not None and policy not in POLICIES:
        raise ValueError(f"weir.torch: policy: expected one of {', '.join(POLICIES)}, got {policy!r}")
    chosen = options_text(options, {} if policy is None else {"heap_policy": policy})
    extension = _load(verbose)
    if _is_later_than_covered() and not any_version:
        warnings.warn(f"weir.torch: enable() was not tested with torch {torch.__version__}, which came after "
                      f"{_covered()}. Its allocator interface fits; how it behaves is unknown.",
                      RuntimeWarning, stacklevel=2)
    extension.install(chosen, exportable)
    from .. import _torch_sharing  # imports torch.multiprocessing

    _torch_sharing.install(extension)
    # The work of torch's streams counts though they may never allocate. The extension sees most of those that
    # somebody has by itself, from the round robin in which torch hands them out, but not when it wraps around
    # between two probes.
    _on_stream_created(lambda stream: extension.mark_stream_used(getattr(stream, "device_index", 0),
                                                                 getattr(stream, "stream_id", 0)))
    if _is_checked(chosen) and not _is_under_sanitizer():
        watch_uses()


def _is_under_sanitizer() -> bool:
    """Whether compute-sanitizer is attached. Under that of CUDA 13.0 PyTorch 2.11 keeps the memory of every tensor that
    was made under a dispatch mode, whatever the mode does and whoever allocates; the watch for uses is such a mode."""
    return "sanitizer" in os.path.basename(os.environ.get("NVTX_INJECTION64_PATH", ""))


def _is_checked(options: str) -> bool:
    """Whether heap_debug is on, by these options or, where they say nothing, by the environment."""
    chosen = dict(each.partition("=")[::2] for each in options.split(",") if each)
    return chosen.get("heap_debug", os.environ.get("WEIR_HEAP_DEBUG", "off")) != "off"


def watch_uses(report: Optional[Callable[[UndeclaredUse], None]] = None) -> None:
    """From now on, and for good: tells of memory that is freed while a stream that nobody declared may still use it.

    Each free that came too early calls `report` with an UndeclaredUse: both streams, the operation, where it was
    called and where the memory was freed. Without a `report` it is a warning. Operations of the calling thread are
    looked at; other threads call it, too. enable() does it for its own thread where heap_debug is on,
    but not under compute-sanitizer, where torch would then keep the memory of every tensor. docs/debugging.md says which
    uses are seen.
    """
    from .. import _torch_uses

    _torch_uses.watch(report)


def _version() -> Tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is None:
        raise RuntimeError(f"weir.torch: cannot read the version of torch from {torch.__version__!r}; "
                           f"enable() supports {_covered()}")
    return int(found.group(1)), int(found.group(2))


def _covered() -> str:
    return " to ".join(f"{major}.{minor}" for major, minor in COVERED)


def _is_later_than_covered() -> bool:
    return _version() > COVERED[1]


def _check_build(any_version: bool) -> None:
    """Raises a RuntimeError if there is no point in building the extension for this torch."""
    if not torch.version.cuda:
        raise RuntimeError("weir.torch: this torch was built without CUDA")
    if _version() < COVERED[0] and not any_version:
        raise RuntimeError(f"weir.torch: enable() supports torch {_covered()}, this is {torch.__version__}. "
                           "pluggable() works with any version and does less; any_version=True tries it "
                           "anyway.")
    if not torch.compiled_with_cxx11_abi():
        # Nothing to try: strings and lists have another layout on the other side.
        raise RuntimeError(f"weir.torch: this torch {torch.__version__} was built with the C++ ABI from before "
                           "2011, as the wheels of torch 2.6 for CUDA 11.8 and 12.4 were, and cannot be linked "
                           "with weir. Use its wheel for CUDA 12.6, a later torch, or pluggable().")


def _build_failure() -> str:
    """What can be done about an extension that cannot be built."""
    text = f"weir.torch: the extension for torch {torch.__version__} could not be built. "
    if _is_later_than_covered():
        text += (f"enable() supports torch {_covered()}. The allocator interface of later versions may have "
                 "changed: use a newer weir or a supported torch. ")
    return text + ("A C++20 compiler and ninja are needed; enable(verbose=True) shows how it is tried. "
                   "pluggable() works without an extension.")


def _on_stream_created(callback: Callable[[Any], None]) -> None:
    """Calls `callback` with every stream that Python gets from torch's own. This and _torch_sharing.install()
    are the places in which torch is changed: the class stays the same, and a stream is created as before."""
    original = torch.cuda.Stream.__new__

    @functools.wraps(original)
    def wrapper(cls: Any, *args: Any, **kwargs: Any) -> Any:
        stream = original(cls, *args, **kwargs)
        if not kwargs.keys() - {"device", "priority"}:  # the others name a stream that exists
            callback(stream)
        return stream

    torch.cuda.Stream.__new__ = staticmethod(wrapper)  # type: ignore[method-assign,assignment]


def is_enabled() -> bool:
    """Whether enable() made weir the allocator of this process."""
    return _extension is not None and _extension.installed()


def _enabled() -> ModuleType:
    if not is_enabled():
        raise RuntimeError("weir.torch: call weir.torch.enable() first")
    return _extension  # type: ignore[return-value]


def _index(device: Device) -> int:
    if device is None:
        return torch.cuda.current_device()
    if isinstance(device, int):
        return device
    chosen = torch.device(device)
    if chosen.type != "cuda":
        raise ValueError(f"weir.torch: expected a CUDA device, got {str(device)!r}")
    return torch.cuda.current_device() if chosen.index is None else chosen.index


# --- Inspection -------------------------------------------------------------------------------------


def stats(device: Device = None) -> Dict[str, int]:
    """weir's own counters of a device, in bytes where they are not counts (docs/stats.md). Empty before the
    first allocation. torch.cuda.memory_stats() has the same in torch's words."""
    return _enabled().stats(_index(device)) or {}


def report(device: Device = None, nbytes: int = 1) -> str:
    """What a device's memory is used for, in words: by tag, size and stream; what is cached and why it is
    not free; peaks; and what would help a request of `nbytes`. docs/pytorch.md explains each line."""
    index = _index(device)
    fields = _enabled().describe(index, nbytes)
    if fields is None:
        return f"weir under torch, cuda:{index}: nothing was allocated yet"
    return _report_text(index, fields)


def _report_text(index: int, fields: Dict[str, Any]) -> str:
    counters = fields["stats"]
    limit = "" if fields["limit"] is None else f", limit {size_text(fields['limit'])}"
    held_peak = counters["reserved_and_suspended_peak"]
    overhead = held_peak / counters["requested_peak"] if counters["requested_peak"] else 1.0
    suspended = f", {size_text(held_peak)} with suspended memory" if held_peak > counters["reserved_peak"] else ""
    hits = counters["hits"] / counters["allocations"] if counters["allocations"] else 0.0
    lines = [
        f"weir under torch, cuda:{index} ({fields['name']})",
        f"  live      {size_text(counters['requested'])} in {counters['blocks']} tensors' storages "
        f"({size_text(counters['allocated'])} rounded), peak {size_text(counters['requested_peak'])}",
        f"  reserved  {size_text(counters['reserved'])}, peak {size_text(counters['reserved_peak'])}{suspended}: "
        f"{overhead:.3f} of the peak that was requested{limit}",
        f"  cached    {size_text(counters['cached'])}: {size_text(counters['thread_cached'])} by threads, "
        f"{size_text(counters['stream_bound'])} for one stream only; "
        f"waiting for other streams {size_text(counters['pending'])}",
        f"  fragments {size_text(fields['fragments'])} free in pieces that cannot leave; "
        f"longest free piece {size_text(fields['largest_free'])}",
        f"  calls     {counters['allocations']} allocations, {hits:.1%} without a lock, "
        f"{counters['failures']} failed; {counters['handles_created']} pieces of memory taken from the driver, "
        f"{counters['handles_moved']} moved, {counters['handles_released']} released",
        f"  device    {size_text(fields['device_total'])}, {size_text(fields['device_free'])} free, "
        f"{size_text(fields['elsewhere'])} used by others",
    ]
    if counters["suspended"]:
        lines.insert(4, f"  suspended {size_text(counters['suspended'])} of physical memory, which resume() takes "
                        f"again; {size_text(counters['backup'])} held on the host for contents")
    for name, part in fields["tags"]:
        if part["requested"] or part["requested_peak"]:
            lines.append(f"  tag {name or '(none)'}: {size_text(part['requested'])} in {part['blocks']} "
                         f"blocks, peak {size_text(part['requested_peak'])}")
    if fields["sizes"]:
        lines.append("  most of it in blocks of " + ", ".join(
            f"{size_text(size)} x {count}" for size, count in fields["sizes"]))
    for stream, live, bound in fields["streams"]:
        if live or bound:
            name = "default stream" if stream == 0 else f"stream {stream:#x}"
            lines.append(f"  {name}: {size_text(live)} live, {size_text(bound)} cached for it alone")
    for pool, _, part in fields["pools"]:
        if tuple(pool) != (0, 0) and part["reserved"]:
            lines.append(f"  pool {tuple(pool)}: {size_text(part['requested'])} live, "
                         f"{size_text(part['reserved'])} reserved and kept for its graphs")
    if fields["advice"]:
        lines.append("  " + fields["advice"].replace("\n", "\n  "))
    return "\n".join(lines)


def trim(device: Device = None, keep: int = 0) -> int:
    """Releases memory that nothing uses any more to the driver until at most `keep` bytes are reserved, without
    waiting for any stream as torch.cuda.empty_cache() does. Returns how much was released."""
    return _enabled().trim(_index(device), keep)


# --- Recording and tags -----------------------------------------------------------------------------


def record(path: Union[str, "os.PathLike[str]"], device: Device = None, *, stacks: bool = False) -> None:
    """Writes everything that happens to a device's memory to a .weirtrace, until stop() or the end of the
    program. `weir report`, `weir replay` and `weir diff` read it. WEIR_RECORD does the same from outside."""
    index = _index(device)
    _enabled().record(index, os.fspath(path), stacks)
    if not _recorded:
        import atexit
        atexit.register(stop)
    _recorded.append(index)


def stop() -> None:
    """Ends the recordings that record() started."""
    while _recorded:
        _enabled().stop_recording(_recorded.pop())


def mark(text: str) -> None:
    """Puts a remark into the recordings that are under way, "epoch 3" for instance."""
    _enabled().mark(text)


@contextlib.contextmanager
def tag(name: str, *, suspendable: bool = False) -> Iterator[None]:
    """Names what this thread allocates meanwhile; report(), `weir report` and limits tell tags apart.

        with weir.torch.tag("kv cache"):
            cache = torch.empty(...)

    suspendable: it can be suspended, on the device that is current now; declare_suspendable() says more.
    Autograd allocates on threads of its own, which this does not reach.
    """
    scope = _enabled().Tagged(name)
    if suspendable and (torch.cuda.current_device(), name) not in _declared:
        declare_suspendable(name)
    scope.enter()
    try:
        yield
    finally:
        scope.leave()


def watch_stream(stream: "torch.cuda.Stream") -> None:
    """For a stream that torch does not own (torch.cuda.ExternalStream): its work counts, whether or not it
    ever allocates, before memory that was freed leaves its stream, and what is freed on it can be used on
    others as soon as with torch's own. It must be given to release_stream() before it is destroyed. torch's own
    streams are watched without this."""
    _enabled().watch_stream(stream.device_index, stream.cuda_stream)


def release_stream(stream: "torch.cuda.Stream") -> None:
    """Before a stream is destroyed that torch does not own (torch.cuda.ExternalStream): weir will not query the
    driver about it any more. Needed for one that is watched; of another that is destroyed without it, weir
    learns that its work is done only when the whole device is idle. torch's own streams live for ever."""
    _enabled().release_stream(stream.device_index, stream.cuda_stream)


# --- Suspended memory -------------------------------------------------------------------------------


def declare_suspendable(tag: str, *, evictable: bool = False, priority: int = 0, contents: str = "keep",
                        to: str = "pinned", requests: str = "resume", chunk: Optional[int] = None,
                        device: Device = None) -> None:
    """What is allocated with this tag on the device from now on lies apart, so that it can be suspended. What
    was allocated with it before stays where it is. Once declared, later calls change the options.

    evictable  a request that finds no memory may suspend it, the lowest priority first, with the other
               options, which are those of suspend(). A request with its tag brings it back; whoever uses its
               tensors must have called resume() before.
    """
    index = _index(device)
    chosen = _torch_suspend.options(contents, to, requests, chunk)
    _torch_suspend.checked(_enabled().declare_suspendable(index, tag, evictable, priority, chosen))
    _declared.add((index, tag))


def suspend(what: Target = None, *, contents: str = "keep", to: str = "pinned", requests: str = "fail",
            chunk: Optional[int] = None, progress: Optional[Progress] = None, wait: bool = True,
            streams: str = "all", device: Device = None) -> SuspendOutcome:
    """Gives physical memory back to the driver, after waiting for all work that was queued on the device; when
    it returns the memory is anybody's. Tensors stay, at their addresses, and must not be used until resume().
    All or nothing; of what is suspended already it does nothing.

    what      a tag that was declared suspendable, a mem_pool(suspendable=True), the id of a graph's pool
              (graph.pool()), or None: everything of the device, graphs and cuBLAS's workspaces included
    contents  "keep": copied to the host, and back by resume(); "discard": lost
    to        "pinned" host memory, which is slow to get for the first time, or "pageable"
    requests  what allocations with the tag or from the pool do meanwhile: "fail" (a RuntimeError that names
              it), "wait" for another thread's resume(), or "resume"
    chunk     the most bytes that one copy has; None: 32 MiB
    progress  progress(done, total) is called whenever a chunk has arrived. What it raises goes to
              sys.excepthook and changes nothing.
    wait      False: returns at once, with an empty outcome; the memory goes when the work that was queued
              before is done, on a thread of weir's. What fails then goes to the error handler.
    streams   with wait=False: "all" waits for the work of every stream, and keeps other threads from queueing
              work meanwhile. "known" waits only for streams that weir has met; torch's own are among them.
              No other stream may use the memory then.

    Raises weir.Error and its kinds: not_found for a tag that was not declared, NotSupported for a MemPool in
    segments and for memory that was sent to another process, capture_forbidden during a capture.
    """
    chosen = _torch_suspend.options(contents, to, requests, chunk, streams)
    return _torch_suspend.suspend(_enabled(), _index(device), what, chosen, progress, wait)


def resume(what: Target = None, *, progress: Optional[Progress] = None,
           ahead_of: Optional["torch.cuda.Stream"] = None, device: Device = None) -> ResumeOutcome:
    """Brings it back, to the same addresses, with the contents that were kept. What weir caches elsewhere is
    released for it. Raises weir.torch.OutOfMemory, which is a torch.OutOfMemoryError and a weir.OutOfMemory,
    where there is no room: then it stays suspended, contents included, and can be resumed later.

    ahead_of  a stream, as torch.cuda.current_stream(): the copies are not waited for here, but by what is
              queued on it from now on; uses on other streams must be ordered behind that. What has not gone
              yet is taken back, at no cost.
    """
    return _torch_suspend.resume(_enabled(), _index(device), what, progress, ahead_of)


@contextlib.contextmanager
def suspended(what: Target = None, *, device: Device = None, **options: Any) -> Iterator[SuspendOutcome]:
    """suspend() with these options, and resume() at the end of the block, whatever happens there."""
    index = _index(device)
    outcome = suspend(what, device=index, **options)
    try:
        yield outcome
    finally:
        resume(what, device=index, progress=options.get("progress"))


def is_suspended(what: Target, device: Device = None) -> bool:
    """Whether a tag or pool is; False also for a tag that was not declared."""
    return _enabled().is_suspended(_index(device), _torch_suspend.target(what))


def suspend_stats(what: Target = None, device: Device = None) -> SuspendStats:
    """What is suspended of a device, a tag or a pool, and the host memory for its contents."""
    return _torch_suspend.stats(_enabled(), _index(device), what)


def reserve_backup(nbytes: int, kind: str = "pinned", device: Device = None) -> None:
    """Gets host memory for so much contents ahead: pinning takes about a second for 2 GiB."""
    number = _suspend.number_of(kind, _suspend.KINDS, "kind")
    _torch_suspend.checked(_enabled().reserve_backup(_index(device), nbytes, number))


def trim_backup(device: Device = None) -> int:
    """Returns host memory to the system, by whole segments of 32 MiB and more: those that hold no
    contents at all. Returns how much."""
    return _torch_suspend.checked(_enabled().trim_backup(_index(device)))[0]


# --- One pool, and other versions of torch ----------------------------------------------------------


def mem_pool(*, suspendable: bool = False, **arguments: Any) -> "torch.cuda.MemPool":
    """A pool for torch.cuda.use_mem_pool(), with memory of weir's.

        pool = weir.torch.mem_pool()
        with torch.cuda.use_mem_pool(pool):
            weights = torch.empty(...)

    torch's own allocator stays what it is and takes the pool's segments from weir, which reuses and releases
    memory only when the streams that used it have completed their work. After enable() all memory is weir's,
    and this is a plain MemPool. The arguments are those of torch.cuda.MemPool.

    suspendable  after enable(), a pool for suspend(): its memory is one range of addresses in large pieces,
                 not segments that could be registered with others
    """
    if suspendable:
        extension = _enabled()
        pool = torch.cuda.MemPool(**arguments)
        extension.make_pool_suspendable(torch.cuda.current_device(), _torch_suspend.target(pool), False, 0,
                                        _torch_suspend.options("keep", "pinned", "resume", None))
        return pool
    if is_enabled():
        return torch.cuda.MemPool(**arguments)
    provider = torch.cuda.memory.CUDAPluggableAllocator(_library(), "weir_torch_malloc", "weir_torch_free")
    pool = torch.cuda.MemPool(provider.allocator(), **arguments)
    pool.weir_provider = provider  # torch before 2.11 keeps no reference of its own
    return pool


# --- Growable tensors ----------------------------------------------------------------------------------


def growable(shape: Sequence[int], dtype: Optional["torch.dtype"] = None, device: Device = None, *,
             page: Union[int, str] = 16 << 20, name: str = "growable") -> "GrowableTensor":
    """A tensor that grows along its first dimension without being copied: addresses for `shape`, memory as needed.

    shape  the most there can be; addresses cost nothing
    page   what gets memory at a time: a power of two from 2 MiB to 1 GiB

    Under enable() its pages are memory of torch's allocator: freed tensors can serve it, and tensors what it gives
    back. Otherwise they come from weir's default allocator. docs/growable.md is the guide.
    """
    from .. import _torch_growable

    return _torch_growable.make(_extension if is_enabled() else None, _index(device), shape, dtype, page, name)


def growable_list(shape: Sequence[int], dtype: Optional["torch.dtype"] = None, device: Device = None, *,
                  page: Union[int, str] = 16 << 20, name: str = "growable") -> "GrowableList":
    """A list of tensors that lie one behind the other, so that torch.cat() of it needs no copy. Arguments as of
    growable()."""
    from .. import _torch_growable

    return _torch_growable.GrowableList(growable(shape, dtype, device, page=page, name=name))


def pluggable(options: Union[str, Mapping[str, Any], None] = None) -> None:
    """Makes weir the CUDA allocator through torch's plug-in interface, which every version has and which
    does less: no memory_stats, snapshots, histories, MemPools, graph trees or tensors between processes, and
    a lack of memory is a RuntimeError. Before anything is put on a GPU."""
    chosen = options_text(options)
    if chosen:
        _native.lib.weir_default_set_options(chosen.encode())
    allocator = torch.cuda.memory.CUDAPluggableAllocator(_library(), "weir_torch_malloc_or_throw",
                                                         "weir_torch_free")
    hooks = {"set_init_fn": "weir_torch_init", "set_reset_fn": "weir_torch_empty_cache",
             "set_memory_fraction_fn": "weir_torch_memory_fraction",
             "set_base_alloc_fn": "weir_torch_base_alloc",
             "set_record_stream_fn": "weir_torch_record_stream"}
    for setter, name in hooks.items():
        address = ctypes.cast(getattr(_native.lib, name), ctypes.c_void_p).value
        getattr(allocator.allocator(), setter)(address)
    torch.cuda.memory.change_current_allocator(allocator)

    def watch(stream: Any) -> None:
        with contextlib.suppress(Error):  # it is being captured; its requests make it known
            watch_native_stream(stream, Runtime.default().device(stream.device_index))

    _on_stream_created(watch)  # torch never destroys them


def _library() -> str:
    path = _native.library_path()
    if path is None:
        raise RuntimeError("weir.torch: the file of the loaded libweir.so cannot be found")
    return path


# --- The extension ----------------------------------------------------------------------------------


def _load(verbose: bool = False) -> ModuleType:
    """The extension for this torch: built ahead, from the cache, or compiled now."""
    global _extension
    if _extension is None:
        this = _torch_extension.Torch(torch.__version__, str(torch.version.cuda), torch.compiled_with_cxx11_abi())
        _extension, reason = _built_ahead(this)
        _extension = _extension or _cached_or_compiled(reason, verbose)
    return _extension


def _built_ahead(this: "_torch_extension.Torch") -> Tuple[Optional[ModuleType], str]:
    """The extension that was built for this torch; or None, and why."""
    path = _torch_extension.find(this)
    if path is None:
        return None, _torch_extension.mismatch(this)
    try:
        return _import(path), ""
    except ImportError as problem:
        return None, f"{path} was built for this torch and cannot be loaded ({problem})"


def _cached_or_compiled(reason: str, verbose: bool) -> ModuleType:
    library = _library()  # loaded by now, and found again by its soname
    path = _cache() / f"{_key(library)}.so"
    if path.exists():
        return _import(path)
    missing = _torch_extension.missing_tools()
    if missing:
        raise RuntimeError(f"weir.torch: {reason}; and an extension cannot be compiled here without {' and '.join(missing)}. "
                           f"{_torch_extension.advice()}")
    logging.getLogger("weir.torch").warning(
        "weir.torch: %s. An extension is compiled now, once, which takes %s; the result is kept in %s. "
        "`python -m weir.torch_build` does it ahead.", reason, _torch_extension.DURATION, path.parent)
    return _build(path, library, verbose)


def _cache() -> Path:
    folder = os.environ.get("WEIR_CACHE")
    if folder:
        return Path(folder) / "torch"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir" / "torch"


def _key(library: str) -> str:
    """Of everything that the extension is built from: another torch, Python, weir or source is another file."""
    root = _torch_extension.sources()
    digest = hashlib.sha256()
    for part in (torch.__version__, torch.version.cuda, str(torch.compiled_with_cxx11_abi()),
                 sysconfig.get_config_var("EXT_SUFFIX"), library):
        digest.update(str(part).encode() + b"\0")
    for folder in (root / "plugins" / "torch", root / "include"):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".cpp", ".hpp", ".h", ".def"):
                digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    version = _native.lib.weir_version_text().decode()
    return f"torch{torch.__version__}-weir{version}-{digest.hexdigest()[:16]}"


def _import(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(_MODULE, str(path))
    spec = importlib.util.spec_from_file_location(_MODULE, str(path), loader=loader)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    loader.exec_module(module)
    sys.modules[_MODULE] = module
    return module


def _loaded(name: str) -> str:
    """The file of a library that torch has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = "/" + line.rstrip("\n").partition("/")[2]
            if os.path.basename(path).startswith(name):
                return path
    raise RuntimeError(f"weir.torch: this torch has not loaded {name}")


def _build(target: Path, library: str, verbose: bool) -> ModuleType:
    from torch.utils import cpp_extension

    root = _torch_extension.sources()
    target.parent.mkdir(parents=True, exist_ok=True)
    # In a folder of its own, and moved when it is whole: two programs may build at a time, and one that is
    # killed leaves nothing that another would wait for.
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as folder:
        try:
            cuda = _torch_extension.cuda_headers(Path(torch.__file__).parents[1], cpp_extension.CUDA_HOME)
            # Not with_cuda: nothing is compiled for a device, and torch would ask which devices there are.
            module = cpp_extension.load(
                name=_MODULE, build_directory=folder, verbose=verbose, with_cuda=False,
                sources=[str(path) for path in sorted((root / "plugins" / "torch").glob("*.cpp"))],
                extra_include_paths=[str(root / "include"), str(cuda)],
                # -fno-plt: a request makes two calls into libraries, a free as well.
                extra_cflags=["-O2", "-std=c++20", "-fvisibility=hidden", "-fno-plt"],
                # torch's own C++ run time by name: a compiler that would link another one into the
                # extension makes exceptions end the program where they leave it.
                extra_ldflags=["-Wl,-z,now", library, f"-Wl,-rpath,{os.path.dirname(library)}",
                               "-lc10_cuda", *map(_loaded, ("libcudart.so", "libstdc++.so",
                                                            "libgcc_s.so"))])
        except Exception as problem:
            raise RuntimeError(_build_failure()) from problem
        shutil.move(str(Path(folder) / f"{_MODULE}.so"), str(target))
    return module
