# SPDX-License-Identifier: Apache-2.0
"""What the other process of test_sharing.py does; a module, so that a spawned process finds it.

Which allocator it uses is in WEIR_TORCH_ALLOCATOR when it is started.
"""

import hashlib
import os

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
    outbox.put([float(tensor.detach().double().sum()) for tensor in tensors])
    del tensors


def make(outbox, done, count):
    """Sends tensors of its own and keeps them until it is told."""
    begin()
    tensors = [torch.full((1000 * (i + 1),), float(i), device="cuda") for i in range(count)]
    torch.cuda.synchronize()
    outbox.put(tensors)
    done.wait(60)


def make_of_sizes(outbox, done, sizes):
    """Sends numbered elements in tensors of these lengths, and forgets the tensors at once."""
    begin()
    for size in sizes:
        outbox.put(numbered(size))
    done.wait(60)


def numbered(size):
    """Elements of which every one of a tensor differs from its neighbours, far ones included."""
    return torch.arange(size, dtype=torch.int32, device="cuda")


def check_numbered(inbox, outbox):
    """Whether every element of each tensor is the one it should be; adds one to each."""
    begin()
    while True:
        tensor = inbox.get()
        if tensor is None:
            break
        right = torch.equal(tensor, numbered(tensor.numel()))
        tensor.add_(1)
        torch.cuda.synchronize()
        del tensor
        outbox.put(right)
    outbox.put("over")


def which_allocator(inbox, outbox):
    begin()
    outbox.put(torch.cuda.memory.get_allocator_backend())
    inbox.get()


def train(rank, folder, ranks):
    """Trains a small model with data parallelism over gloo; rank 0 leaves a digest of its weights."""
    begin()
    torch.use_deterministic_algorithms(True)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank,
                                         world_size=ranks)
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 10)).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    for step in range(12):
        data = torch.randn(8 + 5 * (step % 4), 64).cuda()
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    with open(os.path.join(folder, f"digest{rank}"), "w") as file:
        file.write(digest.hexdigest())
    torch.distributed.destroy_process_group()


def hold_until_told(inbox, outbox):
    begin()
    kept = inbox.get()
    outbox.put(float(kept.sum()))
    inbox.get()
    del kept
    outbox.put("over")


def hold_and_die(inbox, outbox):
    begin()
    kept = inbox.get()
    outbox.put(float(kept.sum()))
    outbox.close()
    outbox.join_thread()
    os._exit(0)
