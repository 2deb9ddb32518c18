# SPDX-License-Identifier: Apache-2.0
"""A process ends well whatever is still there, in whatever order it goes."""

import concurrent.futures
import textwrap
import unittest

import support

PROGRAMS = {
    "with_live_tensors": """
        kept = [torch.ones(1000 * (i + 1), device="cuda") for i in range(50)]
        """,
    "without_ever_allocating": "assert torch.cuda.is_available()",
    "with_work_still_queued": """
        x = torch.ones(1 << 20, device="cuda")
        support.busy(300)
        y = x + 1
        """,
    "with_a_live_graph_and_its_outputs": """
        x = torch.ones(1000, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        graph.replay()
        """,
    "with_a_live_pool": """
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = torch.ones(1 << 20, device="cuda")
        """,
    "with_recorded_streams": """
        side = torch.cuda.Stream()
        x = torch.ones(1 << 20, device="cuda")
        with torch.cuda.stream(side):
            support.busy(100)
            y = x + 1
        x.record_stream(side)
        del x
        """,
    "with_threads_that_still_allocate": """
        import threading, time
        def work():
            while True:
                torch.ones(1000, device="cuda").sum()
                time.sleep(0.001)
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
        torch.cuda.synchronize()
        import os, sys
        sys.stdout.flush()
        os._exit(0)
        """,
    "threads_that_ended_before": """
        import threading
        kept = []
        threads = [threading.Thread(target=lambda: kept.append(torch.ones(1000, device="cuda")))
                   for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
    "while_history_is_recorded": """
        torch.cuda.memory._record_memory_history()
        x = torch.ones(1000, device="cuda")
        """,
    "after_running_out_of_memory": """
        try:
            torch.empty(1 << 47, dtype=torch.uint8, device="cuda")
            raise SystemExit("there was memory")
        except torch.OutOfMemoryError:
            pass
        x = torch.ones(1000, device="cuda")
        """,
    "with_tensors_in_a_cycle_and_in_modules": """
        import sys
        class Node: pass
        a, b = Node(), Node()
        a.other, b.other = b, a
        a.tensor, b.tensor = torch.ones(5, device="cuda"), torch.ones(5, device="cuda")
        sys.modules["torch"].kept_here = torch.ones(1000, device="cuda")
        import atexit
        atexit.register(lambda: torch.ones(10, device="cuda").sum().item())
        """,
    "an_exception": """
        x = torch.ones(1000, device="cuda")
        raise ValueError("on purpose")
        """,
    "a_fork_that_does_not_touch_the_gpu": """
        import os
        x = torch.ones(1000, device="cuda")
        child = os.fork()
        if child == 0:
            os._exit(7)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), float(x.sum()))
        """,
}
BAD = ("terminate called", "Segmentation fault", "Exception ignored", "CUDA error")


class Endings(unittest.TestCase):
    """The programs run side by side; a test waits for its own."""

    @classmethod
    def setUpClass(cls):
        cls.pool = concurrent.futures.ThreadPoolExecutor(5)
        cls.running = {name: cls.pool.submit(support.run_program, "import torch\n" + textwrap.dedent(text))
                       for name, text in PROGRAMS.items()}

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown()

    def ended(self, name, status=0):
        """What the program printed and complained of."""
        actual, said, errors = self.running[name].result()
        self.assertEqual(actual, status, errors[-3000:])
        for bad in BAD:
            self.assertNotIn(bad, errors)
        return said, errors

    def test_an_exception(self):
        self.assertIn("on purpose", self.ended("an_exception", 1)[1])

    def test_a_fork_that_does_not_touch_the_gpu(self):
        self.assertIn("7 1000.0", self.ended("a_fork_that_does_not_touch_the_gpu")[0])


def _test_of(name):
    return lambda self: self.ended(name)


for _name in PROGRAMS:
    if not hasattr(Endings, f"test_{_name}"):
        setattr(Endings, f"test_{_name}", _test_of(_name))


if __name__ == "__main__":
    support.main()
