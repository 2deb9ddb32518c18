"""Memory and streams: reuse in order, record_stream(), and no two streams in the same bytes."""

import threading

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
        made, seen = [], []

        def make(_):
            made.extend(block(100_000) for _ in range(50))

        def drop(_):
            while made:
                try:
                    made.pop()
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
