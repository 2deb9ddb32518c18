"""What the other process of test_sharing.py does; a module, so that a spawned process finds it."""

import support
import torch


def begin():
    support.enable()
    torch.cuda.init()


def add_one(inbox, outbox):
    """Adds one to every tensor that comes, until None does."""
    begin()
    while True:
        tensors = inbox.get()
        if tensors is None:
            break
        for tensor in tensors:
            tensor.add_(1)
        torch.cuda.synchronize()
        outbox.put(len(tensors))
        del tensor, tensors
    outbox.put("over")


def sum_up(inbox, outbox):
    begin()
    tensors = inbox.get()
    outbox.put([float(tensor.double().sum()) for tensor in tensors])
    del tensors


def make(outbox, done, count):
    """Sends tensors of its own and keeps them until it is told."""
    begin()
    tensors = [torch.full((1000 * (i + 1),), float(i), device="cuda") for i in range(count)]
    torch.cuda.synchronize()
    outbox.put(tensors)
    done.wait(60)


def hold_and_die(inbox, outbox):
    begin()
    kept = inbox.get()
    outbox.put(float(kept.sum()))
    import os

    outbox.close()
    outbox.join_thread()
    os._exit(0)
