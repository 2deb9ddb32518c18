#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Frees that came too early for a use on another stream: what covers a use, what does not, and what torch tells of it."""

import importlib
import sys
import threading
import types
import unittest
import warnings
from types import SimpleNamespace

import support  # noqa: F401  (the package's path)

from weir._uses import UndeclaredUse, UseBook

BLOCK, OTHER = 0x1000, 0x2000
OWN, SIDE, THIRD = 0, 7, 8  # streams of device 0
USED = (("train.py", 12, "step"),)
FREED = (("train.py", 30, "main"),)


class Book(unittest.TestCase):
    def setUp(self):
        self.stack = USED
        self.book = UseBook(lambda: self.stack)
        self.book.allocated(BLOCK, (0, OWN))

    def use(self, stream=SIDE, operation="aten::add"):
        self.book.used(BLOCK, (0, stream), operation)

    def free(self):
        self.stack = FREED
        return self.book.freed(BLOCK)

    def test_a_use_on_another_stream_is_found_with_both_streams_and_stacks(self):
        self.use()
        self.assertEqual(self.free(), [UndeclaredUse(BLOCK, OWN, SIDE, "aten::add", USED, FREED)])

    def test_the_last_use_of_each_stream_is_told(self):
        self.use(SIDE, "aten::add")
        self.use(THIRD, "aten::mul")
        self.use(SIDE, "aten::sub")
        self.assertEqual([(each.used_on, each.operation) for each in self.free()],
                         [(SIDE, "aten::sub"), (THIRD, "aten::mul")])

    def test_its_own_stream_needs_nothing(self):
        self.use(OWN)
        self.assertEqual(self.free(), [])

    def test_a_declared_stream_is_covered_before_and_behind_its_use(self):
        self.use()
        self.book.declared(BLOCK, (0, SIDE))
        self.use()
        self.use(THIRD)
        self.assertEqual([each.used_on for each in self.free()], [THIRD])

    def test_a_wait_of_its_stream_covers_what_was_queued_before_the_event(self):
        self.use()
        self.book.event_recorded(1, (0, SIDE))
        self.book.event_waited(1, (0, OWN))
        self.assertEqual(self.free(), [])

    def test_a_wait_does_not_cover_what_was_queued_behind_the_event(self):
        self.book.event_recorded(1, (0, SIDE))
        self.use()
        self.book.event_waited(1, (0, OWN))
        self.assertEqual([each.used_on for each in self.free()], [SIDE])

    def test_an_event_is_what_it_was_last_recorded_as(self):
        self.book.event_recorded(1, (0, SIDE))
        self.use()
        self.book.event_recorded(1, (0, SIDE))
        self.book.event_waited(1, (0, OWN))
        self.assertEqual(self.free(), [])

    def test_a_wait_of_another_stream_does_not_help(self):
        self.use()
        self.book.event_recorded(1, (0, SIDE))
        self.book.event_waited(1, (0, THIRD))
        self.assertEqual([each.used_on for each in self.free()], [SIDE])

    def test_order_goes_on_from_stream_to_stream(self):
        self.use()
        self.book.event_recorded(1, (0, SIDE))
        self.book.event_waited(1, (0, THIRD))
        self.book.event_recorded(2, (0, THIRD))
        self.book.event_waited(2, (0, OWN))
        self.assertEqual(self.free(), [])

    def test_the_host_that_waited_for_the_stream_the_event_or_the_device_covers_it(self):
        for wait in (lambda book: book.stream_synchronized((0, SIDE)), lambda book: book.device_synchronized(0),
                     lambda book: (book.event_recorded(1, (0, SIDE)), book.event_synchronized(1))):
            self.setUp()
            self.use()
            wait(self.book)
            self.assertEqual(self.free(), [])

    def test_the_host_that_waited_for_another_stream_or_too_soon_does_not(self):
        self.use()
        self.book.stream_synchronized((0, THIRD))
        self.assertEqual(len(self.free()), 1)
        self.book.allocated(BLOCK, (0, OWN))
        self.book.device_synchronized(0)
        self.use()
        self.assertEqual(len(self.free()), 1)

    def test_a_deleted_event_is_forgotten(self):
        self.use()
        self.book.event_recorded(1, (0, SIDE))
        self.book.event_deleted(1)
        self.book.event_waited(1, (0, OWN))
        self.assertEqual(len(self.free()), 1)

    def test_a_new_block_at_the_same_address_begins_anew(self):
        self.use()
        self.free()
        self.book.allocated(BLOCK, (0, SIDE))
        self.assertEqual(self.book.freed(BLOCK), [])

    def test_blocks_that_were_there_before_are_left_alone(self):
        self.book.used(OTHER, (0, SIDE), "aten::add")
        self.book.declared(OTHER, (0, SIDE))
        self.assertEqual(self.book.freed(OTHER), [])

    def test_default_streams_of_two_devices_are_two_streams(self):
        def used_by_the_other_device():
            self.book.allocated(BLOCK, (0, 0))
            self.book.used(BLOCK, (1, 0), "aten::copy_")

        used_by_the_other_device()
        found = self.free()
        self.assertEqual([(each.stream, each.device, each.used_on, each.used_on_device) for each in found],
                         [(0, 0, 0, 1)])
        self.assertIn("freed on stream 0x0 of device 0 while stream 0x0 of device 1 may still use it", str(found[0]))
        used_by_the_other_device()
        self.book.device_synchronized(0)
        self.assertEqual(len(self.free()), 1)
        used_by_the_other_device()
        self.book.device_synchronized(1)
        self.assertEqual(self.free(), [])

    def test_finalizers_may_call_it_in_the_middle_of_a_call(self):
        # The stack is made where Python may collect garbage, and so is every other object.
        def collected():
            if not self.inside:
                self.inside = True
                self.found += self.book.freed(OTHER)
                self.book.event_deleted(1)
                self.book.used(BLOCK, (0, THIRD), "aten::add")
                self.inside = False
            return USED

        class Key(tuple):
            def __hash__(key):
                collected()
                return super().__hash__()

            __eq__ = tuple.__eq__

        def program():
            for _ in range(3):
                self.book.allocated(OTHER, (0, OWN))
                self.inside = True
                self.book.used(OTHER, (0, THIRD), "aten::mul")
                self.inside = False
                self.book.used(OTHER, (0, SIDE), "aten::add")
                self.book.allocated(OTHER, Key((0, SIDE)))
                self.book.event_recorded(1, Key((0, SIDE)))
                self.book.event_waited(1, Key((0, OWN)))
                self.book.stream_synchronized(Key((0, SIDE)))
                self.book.device_synchronized(0)
                self.book.used(BLOCK, Key((0, SIDE)), "aten::sub")
            self.ended = True

        self.inside, self.found, self.ended = False, [], False
        self.book = UseBook(collected)
        self.book.allocated(BLOCK, (0, OWN))
        thread = threading.Thread(target=program, daemon=True)  # it does not end where it waits for itself
        thread.start()
        thread.join(30)
        self.assertTrue(self.ended)
        self.assertEqual({(each.used_on, each.operation) for each in self.found}, {(THIRD, "aten::mul")})
        self.assertEqual([(each.used_on, each.operation) for each in self.book.freed(BLOCK)],
                         [(THIRD, "aten::add"), (SIDE, "aten::sub")])

    def test_it_is_put_into_words(self):
        self.use()
        self.assertEqual(str(self.free()[0]),
                         "memory at 0x1000 was freed on stream 0x0 while stream 0x7 may still use it: aten::add was "
                         "queued there, nobody called record_stream(), and the one stream did not wait for the other\n"
                         "  used in\n    step at train.py:12\n  freed in\n    main at train.py:30\n")
        found = UndeclaredUse(BLOCK, OWN, SIDE, "aten::add", (), FREED)
        self.assertIn("  used in\n    (not recorded)\n", str(found))


def argument(name, writes=None):
    alias = None if writes is None else SimpleNamespace(is_write=writes)
    return SimpleNamespace(name=name, alias_info=alias)


def operation(name, arguments, returns, outcome):
    def func(*_args, **_kwargs):
        return outcome

    func._schema = SimpleNamespace(name=name, arguments=arguments, returns=returns)
    return func


class FakeTorch:
    """What weir._torch_uses reads of torch."""

    NAMES = ("torch", "torch.cuda", "torch.cuda._gpu_trace", "torch.utils", "torch.utils._pytree",
             "torch.utils._python_dispatch")

    def __init__(self):
        self.modules = {name: types.ModuleType(name) for name in self.NAMES}
        torch = self.torch = self.modules["torch"]
        for name, module in self.modules.items():
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(self.modules[parent], child, module)
        self.callbacks = {}
        self.active = False
        self.entered = []
        self.stream = OWN
        self.device = 0
        for each in ("memory_allocation", "memory_deallocation", "event_record", "event_wait", "event_deletion",
                     "event_synchronization", "stream_synchronization", "device_synchronization"):
            setattr(self.modules["torch.cuda._gpu_trace"], "register_callback_for_" + each,
                    lambda callback, name=each: self.callbacks.setdefault(name, callback))
        torch.__file__ = "/usr/lib/torch/__init__.py"
        torch._C = SimpleNamespace(_activate_gpu_trace=lambda: setattr(self, "active", True))
        torch.cuda.current_stream = lambda device=None: SimpleNamespace(cuda_stream=self.stream)
        torch.cuda.current_device = lambda: self.device
        torch.cuda.Stream = lambda stream_id, device_index, device_type: SimpleNamespace(cuda_stream=stream_id)
        torch.Tensor = Tensor
        torch.utils._pytree.tree_flatten = lambda value: (value if isinstance(value, list) else [value], None)
        entered = self.entered

        class Mode:
            def __enter__(self):
                entered.append(self)

        torch.utils._python_dispatch.TorchDispatchMode = Mode


class Tensor:
    def __init__(self, address, is_cuda=True, device=0):
        self.device = SimpleNamespace(index=device)
        self.is_cuda = is_cuda
        self.address = address

    def untyped_storage(self):
        if self.address is None:
            raise NotImplementedError("no storage")
        return SimpleNamespace(data_ptr=lambda: self.address)


class Torch(unittest.TestCase):
    """What the parts of torch that are hooked into tell the book."""

    def setUp(self):
        self.fake = FakeTorch()
        self.kept = {name: sys.modules.pop(name, None) for name in (*FakeTorch.NAMES, "weir._torch_uses")}
        sys.modules.update(self.fake.modules)
        self.uses = importlib.import_module("weir._torch_uses")
        self.found = []
        self.uses.watch(self.found.append)
        self.mode = self.fake.entered[0]
        self.tell = self.fake.callbacks

    def tearDown(self):
        for name, module in self.kept.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module

    def run_operation(self, func, *args, **kwargs):
        return self.mode.__torch_dispatch__(func, (), args, kwargs)

    def read(self, *tensors):
        self.run_operation(operation("aten::sum", [argument("self")] * len(tensors), [argument("")], None), *tensors)

    def test_an_undeclared_use_is_told_at_the_free(self):
        self.tell["memory_allocation"](BLOCK)
        self.fake.stream = SIDE
        self.read(Tensor(BLOCK))
        self.fake.stream = OWN
        self.tell["memory_deallocation"](BLOCK)
        self.assertEqual([(each.address, each.stream, each.used_on, each.operation) for each in self.found],
                         [(BLOCK, OWN, SIDE, "aten::sum")])
        self.assertEqual(self.found[0].used_at[0][2], "run_operation")
        self.assertEqual(self.found[0].freed_at[0][2], "test_an_undeclared_use_is_told_at_the_free")
        self.assertTrue(self.fake.active)

    def test_stacks_begin_with_the_program(self):
        called = {}
        exec(compile("def fire(callback, *args): callback(*args)", "/usr/lib/torch/_utils.py", "exec"), called)
        self.tell["memory_allocation"](BLOCK)
        self.fake.stream = SIDE
        called["fire"](self.read, Tensor(BLOCK))
        self.fake.stream = OWN
        called["fire"](self.tell["memory_deallocation"], BLOCK)
        self.assertEqual([function for _, _, function in self.found[0].freed_at][0],
                         "test_stacks_begin_with_the_program")
        self.assertEqual([function for _, _, function in self.found[0].used_at][:4],
                         ["run_operation", "read", "fire", "test_stacks_begin_with_the_program"])

    def test_record_stream_declares(self):
        self.tell["memory_allocation"](BLOCK)
        self.fake.stream = SIDE
        self.read(Tensor(BLOCK))
        record = operation("aten::record_stream", [argument("self", True), argument("s")], [], None)
        self.run_operation(record, Tensor(BLOCK), SimpleNamespace(stream_id=SIDE, device_index=0, device_type=1))
        self.tell["memory_deallocation"](BLOCK)
        self.assertEqual(self.found, [])

    def test_default_streams_of_two_devices_are_two_streams(self):
        for device, wait in ((0, None), (0, "stream_synchronization"), (1, "stream_synchronization"),
                             (0, "device_synchronization"), (1, "device_synchronization")):
            with self.subTest(device=device, wait=wait):
                self.found.clear()
                self.tell["memory_allocation"](BLOCK)
                self.read(Tensor(BLOCK, device=1))
                self.fake.device = device  # that is waited for
                if wait is not None:
                    self.tell[wait](*([OWN] if wait == "stream_synchronization" else []))
                self.fake.device = 0
                self.tell["memory_deallocation"](BLOCK)
                self.assertEqual([(each.device, each.used_on_device) for each in self.found],
                                 [] if device == 1 else [(0, 1)])

    def test_events_and_synchronisations_order(self):
        for wait in (lambda: (self.tell["event_record"](5, SIDE), self.tell["event_wait"](5, OWN)),
                     lambda: (self.tell["event_record"](5, SIDE), self.tell["event_synchronization"](5)),
                     lambda: self.tell["stream_synchronization"](SIDE),
                     self.tell["device_synchronization"]):  # torch tells no more than that
            self.tell["memory_allocation"](BLOCK)
            self.fake.stream = SIDE
            self.read(Tensor(BLOCK))
            self.fake.stream = OWN
            wait()
            self.tell["memory_deallocation"](BLOCK)
            self.assertEqual(self.found, [])
        self.tell["memory_allocation"](BLOCK)
        self.fake.stream = SIDE
        self.read(Tensor(BLOCK))
        self.tell["event_record"](5, SIDE)
        self.tell["event_deletion"](5)
        self.tell["event_wait"](5, OWN)
        self.tell["memory_deallocation"](BLOCK)
        self.assertEqual(len(self.found), 1)

    def test_results_lists_and_named_arguments_are_uses_and_views_are_none(self):
        made, listed, named, viewed = 0x10, 0x20, 0x30, 0x40
        for address in (made, listed, named, viewed):
            self.tell["memory_allocation"](address)
        self.fake.stream = SIDE
        cat = operation("aten::cat", [argument("tensors"), argument("dim"), argument("out", True)],
                        [argument("", True)], Tensor(made))
        outcome = self.run_operation(cat, [Tensor(listed), Tensor(listed)], out=Tensor(named))
        self.assertEqual(outcome.address, made)
        view = operation("aten::view", [argument("self", False), argument("size")], [argument("", False)],
                         Tensor(viewed))
        self.run_operation(view, Tensor(viewed), 3)
        pair = operation("aten::max", [argument("self")], [argument("", False), argument("")],
                         (Tensor(viewed), Tensor(made)))
        self.run_operation(pair, 3)
        for address in (made, listed, named, viewed):
            self.tell["memory_deallocation"](address)
        self.assertEqual([(each.address, each.operation) for each in self.found],
                         [(made, "aten::max"), (listed, "aten::cat"), (named, "aten::cat")])

    def test_what_has_no_memory_on_a_gpu_is_nothing(self):
        self.tell["memory_allocation"](BLOCK)
        self.fake.stream = SIDE
        self.read(Tensor(BLOCK, is_cuda=False), Tensor(None), Tensor(0), 3, None)
        self.tell["memory_deallocation"](BLOCK)
        self.assertEqual(self.found, [])

    def test_a_thread_is_watched_once_and_the_latest_report_counts(self):
        latest = []
        self.uses.watch(latest.append)
        self.assertEqual(len(self.fake.entered), 1)
        self.tell["memory_allocation"](BLOCK)
        self.fake.stream = SIDE
        self.read(Tensor(BLOCK))
        self.tell["memory_deallocation"](BLOCK)
        self.assertEqual((len(latest), self.found), (1, []))

    def test_without_a_report_it_is_a_warning(self):
        self.uses.watch()
        self.tell["memory_allocation"](BLOCK)
        self.fake.stream = SIDE
        self.read(Tensor(BLOCK))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.tell["memory_deallocation"](BLOCK)
        self.assertEqual([each.category for each in said], [self.uses.UndeclaredUseWarning])
        self.assertIn("memory at 0x1000 was freed on stream 0x0 while stream 0x7", str(said[0].message))


if __name__ == "__main__":
    unittest.main()
