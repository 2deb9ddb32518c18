# SPDX-License-Identifier: Apache-2.0
"""Memory and streams: reuse in order, record_stream(), and no two streams in the same bytes."""

import threading
import unittest

import support
import torch
from support import GPU, MIB, AllocatorTest, allocated, block, busy, reserved, stat

N = 4 * MIB  # elements of float32: 16 MiB


def full(value):
    return torch.full((N,), float(value), device=GPU)


class Order(AllocatorTest):
    def test_freed_memory_is_reused_by_its_stream_at_once(self):
        busy()
        full(1)
        held = reserved()
        for value in range(20):
            full(value)  # the stream is busy with the first ones still
        self.assertEqual(reserved(), held)

    def test_what_a_busy_stream_still_reads_is_not_given_to_another(self):
        one, other = torch.cuda.Stream(), torch.cuda.Stream()
        for _ in range(5):
            with torch.cuda.stream(one):
                x = full(1)
                busy(20)
                y = x + 0
                del x
            with torch.cuda.stream(other):
                z = [full(7) for _ in range(3)]
            torch.cuda.synchronize()
            self.assertTrue(bool((y == 1).all()))
            del y, z

    def test_a_loop_over_many_streams_keeps_every_value(self):
        streams = [torch.cuda.Stream() for _ in range(8)]
        kept = []
        for i in range(64):
            with torch.cuda.stream(streams[i % 8]):
                x = full(i)[: 1000 + i]
                busy(1)
                kept.append((i, x * 2))
                del x
        torch.cuda.synchronize()
        for i, y in kept:
            self.assertTrue(bool((y == 2 * i).all()), i)

    def test_streams_of_both_priorities(self):
        low, high = torch.cuda.Stream(priority=0), torch.cuda.Stream(priority=-1)
        for stream in (low, high, torch.cuda.default_stream()):
            with torch.cuda.stream(stream):
                x = full(3)
                self.assertEqual(float(x.sum()), 3.0 * N)

    def test_an_external_stream(self):
        own = torch.cuda.Stream()
        external = torch.cuda.ExternalStream(own.cuda_stream)
        with torch.cuda.stream(external):
            x = full(2) + 1
        external.synchronize()
        self.assertTrue(bool((x == 3).all()))
        del x
        external.synchronize()

    def test_streams_that_come_and_go(self):
        base = allocated()
        for i in range(100):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                full(i).sum()
        torch.cuda.synchronize()
        self.assertEqual(allocated(), base)


class RecordStream(AllocatorTest):
    def test_memory_is_kept_until_the_recorded_stream_is_done(self):
        side = torch.cuda.Stream()
        for _ in range(5):
            x = full(1)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                busy(30)
                y = x + 0
            x.record_stream(side)
            del x
            z = [full(9) for _ in range(4)]
            torch.cuda.synchronize()
            self.assertTrue(bool((y == 1).all()))
            del y, z

    def test_memory_comes_back_afterwards(self):
        side = torch.cuda.Stream()
        base = allocated()
        x = full(1)
        with torch.cuda.stream(side):
            busy(10)
        x.record_stream(side)
        del x
        torch.cuda.synchronize()
        full(2)  # what is done is noticed by the next request
        torch.cuda.synchronize()
        self.assertEqual(allocated(), base)
        self.assertEqual(stat("active_bytes.all.current"), stat("allocated_bytes.all.current"))

    def test_the_block_comes_back_before_fresh_memory(self):
        side = torch.cuda.Stream()
        reader = torch.cuda.Stream()
        with torch.cuda.stream(side):
            x = block(700)
            address = x.data_ptr()
        with torch.cuda.stream(reader):
            busy(50)
        x.record_stream(reader)
        del x
        with torch.cuda.stream(side):
            early = block(700)
            self.assertNotEqual(early.data_ptr(), address)
            reader.synchronize()
            late = block(700)
            self.assertEqual(late.data_ptr(), address)
        del early, late

    def test_what_waits_is_requested_and_active_but_not_allocated(self):
        size = 16 * MIB + 5
        names = ("requested_bytes", "active_bytes", "active", "allocated_bytes", "allocation")
        base = {name: stat(f"{name}.all.current") for name in names}

        def more():
            return {name: stat(f"{name}.all.current") - base[name] for name in names}

        side = torch.cuda.Stream()
        x = block(size)
        rounded = more()["allocated_bytes"]
        with torch.cuda.stream(side):
            busy(200)
        x.record_stream(side)
        del x
        self.assertEqual(more(), {"requested_bytes": size, "active_bytes": rounded, "active": 1,
                                  "allocated_bytes": 0, "allocation": 0})
        torch.cuda.reset_peak_memory_stats()
        self.assertEqual(stat("requested_bytes.all.peak") - base["requested_bytes"], size)
        self.assertEqual(stat("active_bytes.all.peak") - base["active_bytes"], rounded)
        freed = stat("requested_bytes.all.freed")
        torch.cuda.synchronize()
        full(2)  # what is done is noticed by the next request
        torch.cuda.synchronize()
        self.assertEqual(more(), dict.fromkeys(names, 0))
        self.assertEqual(stat("requested_bytes.all.freed") - freed, size + 4 * N)

    def test_recording_a_stream_twice_or_its_own(self):
        side = torch.cuda.Stream()
        x = full(1)
        x.record_stream(torch.cuda.current_stream())
        x.record_stream(side)
        x.record_stream(side)
        del x
        torch.cuda.synchronize()
        self.assertTrue(bool((full(5) == 5).all()))

    def test_several_recorded_streams(self):
        sides = [torch.cuda.Stream() for _ in range(4)]
        x = full(1)
        sums = []
        for i, side in enumerate(sides):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                busy(5 * (i + 1))
                sums.append(x + i)
            x.record_stream(side)
        del x
        noise = [full(-1) for _ in range(6)]
        torch.cuda.synchronize()
        for i, y in enumerate(sums):
            self.assertTrue(bool((y == 1 + i).all()))
        del noise

    def test_of_a_view_is_of_its_storage(self):
        side = torch.cuda.Stream()
        x = full(1)
        view = x[100:]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            busy(30)
            y = x + 0
        view.record_stream(side)
        del x, view
        z = [full(4) for _ in range(4)]
        torch.cuda.synchronize()
        self.assertTrue(bool((y == 1).all()))
        del z

    def test_empty_cache_while_a_recorded_stream_is_busy(self):
        side = torch.cuda.Stream()
        x = full(1)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            busy(50)
            y = x + 0
        x.record_stream(side)
        del x
        torch.cuda.empty_cache()
        z = full(3)
        torch.cuda.synchronize()
        self.assertTrue(bool((y == 1).all()))
        self.assertTrue(bool((z == 3).all()))

    def test_of_an_empty_tensor_and_of_a_sparse_use(self):
        block(0).record_stream(torch.cuda.Stream())

    def test_a_stream_that_waited_before_the_request_may_use_the_memory(self):
        """A request queues nothing, so what waited for its stream before is behind all that counts."""
        main, out, back = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
        saved = torch.empty(N, pin_memory=True)
        twos = torch.full((N,), 2.0).pin_memory()
        for _ in range(5):
            x = full(1)
            out.wait_stream(main)
            with torch.cuda.stream(out):
                busy(20)
                saved.copy_(x, non_blocking=True)
            x.record_stream(out)
            del x
            back.wait_stream(main)
            y = torch.empty(N, device=GPU)
            with torch.cuda.stream(back):
                y.copy_(twos, non_blocking=True)
            y.record_stream(back)
            main.wait_stream(back)
            torch.cuda.synchronize()
            self.assertTrue(bool((saved == 1).all()))
            self.assertTrue(bool((y == 2).all()))
            del y
            saved.zero_()

    def test_a_prefetcher(self):
        """A copy stream fills what the main stream uses, many times over."""
        copy, main = torch.cuda.Stream(), torch.cuda.current_stream()
        host = [torch.full((N,), float(i)).pin_memory() for i in range(4)]

        def fetch(i):
            with torch.cuda.stream(copy):
                return host[i % 4].to(GPU, non_blocking=True)

        upcoming, wrong = fetch(0), torch.zeros((), device=GPU)
        for i in range(60):
            main.wait_stream(copy)
            x = upcoming
            x.record_stream(main)
            upcoming = fetch(i + 1)
            busy(1)
            wrong += (x != i % 4).sum()
            del x
        self.assertEqual(int(wrong), 0)


class UndeclaredUses(AllocatorTest):
    """A tensor is read on a stream that never allocates, nobody records that, and it is freed meanwhile. Its
    memory may be reused at once on its own stream, which these programs do not do, and nowhere else."""

    def read_later(self, side, target, x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            busy(60)
            target.copy_(x, non_blocking=True)

    def check(self, target):
        torch.cuda.synchronize()
        self.assertEqual((float(target.min()), float(target.max())), (1.0, 1.0))

    def test_another_stream_does_not_get_the_memory(self):
        side, third = torch.cuda.Stream(), torch.cuda.Stream()
        for _ in range(5):
            target, x = full(0), full(1)
            self.read_later(side, target, x)
            del x
            with torch.cuda.stream(third):
                z = [full(9) for _ in range(4)]
            self.check(target)
            del z

    def test_another_stream_does_not_get_a_piece_of_it(self):
        side, third = torch.cuda.Stream(), torch.cuda.Stream()
        target, x = full(0), full(1)
        self.read_later(side, target, x)
        del x
        with torch.cuda.stream(third):
            z = [torch.full((N // 8,), 9.0, device=GPU) for _ in range(40)]
        self.check(target)
        del z

    def test_several_readers_of_several_priorities(self):
        sides = [torch.cuda.Stream(priority=priority) for priority in (0, -1, -2, 0, -1)]
        third = torch.cuda.Stream()
        x, targets = full(1), [full(0) for _ in sides]
        for side, target in zip(sides, targets):
            self.read_later(side, target, x)
        del x
        with torch.cuda.stream(third):
            z = [full(9) for _ in range(4)]
        for target in targets:
            self.check(target)
        del z

    def test_a_cache_that_is_emptied(self):
        side, third = torch.cuda.Stream(), torch.cuda.Stream()
        target, x = full(0), full(1)
        self.read_later(side, target, x)
        del x
        torch.cuda.empty_cache()
        with torch.cuda.stream(third):
            z = [full(9) for _ in range(4)]
        self.check(target)
        del z

    def test_a_device_without_room(self):
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        side, third = torch.cuda.Stream(), torch.cuda.Stream()
        target, x = full(0), full(1)
        total = torch.cuda.get_device_properties(GPU).total_memory
        torch.cuda.set_per_process_memory_fraction((reserved() + 8 * MIB) / total)
        self.read_later(side, target, x)
        del x
        with torch.cuda.stream(third):
            z = full(9)  # there is no room for it but where the reader is
        self.check(target)
        self.assertEqual(float(z.max()), 9.0)

    PROGRAM = """
        import torch
        from support import GPU, MIB, busy

        N = MIB

        def full(value):
            return torch.full((N,), float(value), device=GPU)

        def read_everywhere(streams):
            x, targets = full(1), [full(0) for _ in streams]
            torch.cuda.synchronize()
            for side, target in zip(streams, targets):
                with torch.cuda.stream(side):
                    busy(60)
                    target.copy_(x, non_blocking=True)
            del x
            with torch.cuda.stream(torch.cuda.Stream(priority=-1)):
                z = [full(9) for _ in range(8)]
            torch.cuda.synchronize()
            wrong = [i for i, target in enumerate(targets) if not bool((target == 1).all())]
            assert not wrong, wrong

        def new_stream():  # by way of C++
            stream = torch.Stream(device="cuda")
            return torch.cuda.Stream(stream_id=stream.stream_id, device_index=stream.device_index,
                                     device_type=stream.device_type)
        """

    def test_more_streams_than_torch_has(self):
        self.assert_ran(support.run_program(self.PROGRAM + """
        streams = [torch.cuda.Stream() for _ in range(40)]  # a probe shows 8 of them
        read_everywhere(streams[12:20])
        read_everywhere(streams)
        """))

    def test_streams_that_cpp_hands_out(self):
        self.assert_ran(support.run_program(self.PROGRAM + """
        for count in (1, 7, 30):
            read_everywhere([new_stream() for _ in range(count)])
        """))

    def test_streams_of_before(self):
        self.assert_ran(support.run_program(self.PROGRAM + """
        read_everywhere(early)
        """, before="import torch; early = [torch.cuda.Stream() for _ in range(9)]"))
        self.assert_ran(support.run_program(self.PROGRAM + """
        read_everywhere(early)
        """, before="import torch; early = [torch.cuda.Stream() for _ in range(32)]"))


class Handles(AllocatorTest):
    """Which streams a program gets, and what happens to those that are not torch's."""

    def test_streams_come_in_torchs_order(self):
        self.assert_ran(support.run_program("""
        import torch
        from support import GPU, MIB

        for i in range(70):
            stream = torch.cuda.Stream()
            assert (stream.stream_id >> 5) & 31 == i % 32, (i, stream.stream_id)
            with torch.cuda.stream(stream):  # and what it frees goes to others
                torch.empty(16 * MIB, device=GPU)
            torch.cuda.empty_cache()
        """))

    @unittest.skipUnless(support.WEIR, "torch's own allocator keeps memory to its stream")
    def test_memory_passes_between_torchs_streams(self):
        streams = [torch.cuda.Stream() for _ in range(4)]
        with torch.cuda.stream(streams[0]):
            full(1)
        torch.cuda.synchronize()
        held = reserved()
        for stream in streams:
            with torch.cuda.stream(stream):
                full(2)
            torch.cuda.synchronize()
        self.assertEqual(reserved(), held)

    EXTERNAL = """
        import ctypes
        import torch
        from support import GPU, MIB

        driver = ctypes.CDLL("libcuda.so.1")

        def create():
            stream = ctypes.c_void_p()
            assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
            return stream

        def destroy(stream):
            assert driver.cuStreamDestroy_v2(stream) == 0

        def work(streams):
            for i in range(40):
                with torch.cuda.stream(streams[i % len(streams)]):
                    x = torch.full((4 * MIB,), float(i), device=GPU)
                    assert float(x.max()) == i
                    y = torch.empty((i % 7 + 1) * MIB, device=GPU)
                    del x, y
            torch.cuda.empty_cache()

        torch.cuda.init()
        torch.empty(1, device=GPU)
        own = [torch.cuda.Stream() for _ in range(3)] + [torch.cuda.default_stream()]
        """

    def test_external_streams_may_be_destroyed_by_their_owner(self):
        self.assert_ran(support.run_program(self.EXTERNAL + """
        for _ in range(5):
            foreign = create()
            external = torch.cuda.ExternalStream(foreign.value)
            with torch.cuda.stream(external):
                x = torch.full((4 * MIB,), 3.0, device=GPU)
                kept = x + 1
            recorded = torch.full((4 * MIB,), 5.0, device=GPU)
            recorded.record_stream(external)
            external.synchronize()
            del x, recorded
            work(own)
            destroy(foreign)
            work(own)
            assert float(kept.min()) == 4
            del kept  # on a stream that is no more
            work(own)
        """))

    def test_an_external_stream_that_never_allocates_may_be_destroyed(self):
        self.assert_ran(support.run_program(self.EXTERNAL + """
        foreign = create()
        external = torch.cuda.ExternalStream(foreign.value)
        x, y = torch.full((4 * MIB,), 3.0, device=GPU), torch.zeros(4 * MIB, device=GPU)
        torch.cuda.synchronize()
        with torch.cuda.stream(external):
            y.copy_(x, non_blocking=True)
        external.synchronize()
        destroy(foreign)
        del x
        work(own)
        assert float(y.min()) == 3
        """))

    def test_a_capture_begins_on_an_external_stream_that_never_allocated(self):
        self.assert_ran(support.run_program(self.EXTERNAL + """
        external = torch.cuda.ExternalStream(create().value)
        x = torch.zeros(4 * MIB, device=GPU)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=external):
            y = x + 1
            z = (y * 2) + 1
        for value in (1.0, 4.0):
            x.fill_(value)
            graph.replay()
            torch.cuda.synchronize()
            assert float(z.min()) == float(z.max()) == 2 * value + 3
        work(own)
        """))

    def test_a_capture_takes_in_an_external_stream_that_never_allocated(self):
        self.assert_ran(support.run_program(self.EXTERNAL + """
        external = torch.cuda.ExternalStream(create().value)
        x = torch.zeros(4 * MIB, device=GPU)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
            external.wait_stream(torch.cuda.current_stream())
            y.record_stream(external)
            with torch.cuda.stream(external):
                z = y * 2
            del y
            passing = torch.full((4 * MIB,), 9.0, device=GPU)  # not y's memory: z may not be done
            torch.cuda.current_stream().wait_stream(external)
        for value in (1.0, 4.0):
            x.fill_(value)
            graph.replay()
            torch.cuda.synchronize()
            assert float(z.min()) == float(z.max()) == 2 * value + 2
        work(own)
        """))

    def test_a_block_that_waits_for_the_end_of_a_capture_is_freed_once(self):
        self.assert_ran(support.run_program(self.EXTERNAL + """
        external = torch.cuda.ExternalStream(create().value)
        x = torch.zeros(MIB, device=GPU)
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.current"]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            external.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(external):
                y = x + 1
                raw = torch.cuda.caching_allocator_alloc(4 * MIB, stream=external)
            torch.cuda.caching_allocator_delete(raw)
            for _ in range(2):
                try:
                    torch.cuda.caching_allocator_delete(raw)
                    raise SystemExit("it was freed twice")
                except RuntimeError as refused:
                    assert "invalid device pointer" in str(refused), refused
            torch.cuda.current_stream().wait_stream(external)
        kept = [torch.full((MIB,), float(i), device=GPU) for i in range(8)]
        for value in (1.0, 4.0):
            x.fill_(value)
            graph.replay()
            torch.cuda.synchronize()
            assert float(y.min()) == float(y.max()) == value + 1
        assert all(float(each.min()) == float(each.max()) == i for i, each in enumerate(kept))
        del graph, y, kept
        assert torch.cuda.memory_stats()["allocation.all.current"] <= before + 2  # the generator's state
        work(own)
        """))

    @unittest.skipUnless(support.WEIR, "weir's own interface")
    def test_an_external_stream_can_be_watched(self):
        self.assert_ran(support.run_program(self.EXTERNAL + """
        import weir.torch
        from support import busy

        foreign = create()
        external = torch.cuda.ExternalStream(foreign.value)
        weir.torch.watch_stream(external)
        for _ in range(3):
            x, y = torch.full((4 * MIB,), 3.0, device=GPU), torch.zeros(4 * MIB, device=GPU)
            torch.cuda.synchronize()
            with torch.cuda.stream(external):
                busy(60)
                y.copy_(x, non_blocking=True)
            del x
            with torch.cuda.stream(own[0]):
                z = [torch.full((4 * MIB,), 9.0, device=GPU) for _ in range(4)]
            torch.cuda.synchronize()
            assert float(y.min()) == float(y.max()) == 3
            del z
        weir.torch.release_stream(external)
        destroy(foreign)
        work(own)
        """))


class Threads(AllocatorTest):
    def work(self, body, count=8):
        errors = []

        def guarded(number):
            try:
                body(number)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def test_threads_with_streams_of_their_own(self):
        def body(number):
            generator = torch.Generator().manual_seed(number)
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(50):
                    size = int(torch.randint(1, MIB, (), generator=generator))
                    x = torch.full((size,), float(number), device=GPU)
                    y = x * 2 + i
                    del x
                    if i % 10 == 0:
                        assert bool((y == 2 * number + i).all()), (number, i)
                torch.cuda.current_stream().synchronize()

        before = allocated()
        self.work(body)
        torch.cuda.synchronize()
        self.assertEqual(allocated(), before)

    def test_threads_on_one_stream(self):
        def body(number):
            for i in range(50):
                x = torch.full((1000 * (number + 1),), float(i), device=GPU)
                assert float(x.min()) == float(x.max()) == i

        self.work(body)

    def test_memory_freed_by_another_thread(self):
        before = allocated()
        blocks, seen = [], []

        def make(_):
            blocks.extend(block(100_000) for _ in range(50))

        def drop(_):
            while blocks:
                try:
                    blocks.pop()
                except IndexError:
                    break
            seen.append(1)

        self.work(make, 4)
        self.work(drop, 4)
        self.assertEqual(len(seen), 4)
        self.assertEqual(allocated(), before)

    def test_backward_on_its_own_thread(self):
        before = allocated()
        x = torch.randn(512, 512, device=GPU, requires_grad=True)
        (x @ x).relu().sum().backward()
        self.assertTrue(bool(torch.isfinite(x.grad).all()))
        del x
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        self.assertEqual(allocated(), before)


if __name__ == "__main__":
    support.main()
