# SPDX-License-Identifier: Apache-2.0
"""Ten programs as people run them in PyTorch: what the allocators are compared with. others_measured.py has more.

Models start from random weights with fixed seeds; sizes are drawn once from a seed, so every allocator
sees the same requests. The first eight have the shapes of the recordings in traces/.
"""

import importlib
import random
import threading
from dataclasses import dataclass
from typing import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

GPU = "cuda"


@dataclass
class Running:
    """A workload that is set up: `step(i)` does the i-th step and says how many units it was."""

    step: Callable[[int], int]
    results: Callable[[], list]


@dataclass(frozen=True)
class Workload:
    name: str
    unit: str  # what is counted: "steps" or "tokens"
    warm: int  # steps before anything is timed
    round: int  # steps that are timed together
    turns: int  # how many different rounds there are: the second goes on where the first ended
    check: int  # steps after which the results are compared
    start: Callable[[], Running]


WORKLOADS = {}


def workload(unit, *, warm, round, check, turns=2):
    """Registers the function that sets the workload up."""

    def register(start):
        WORKLOADS[start.__name__] = Workload(start.__name__, unit, warm, round, turns, check, start)
        return start

    return register


def training(model, optimizer, loss_of):
    """A step computes loss_of(i), goes back and updates."""
    last = {}

    def step(i):
        loss = loss_of(i)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last["loss"] = loss.detach()
        return 1

    return Running(step, lambda: [*model.parameters(), last["loss"]])


def adamw(model, rate=1e-4):
    return torch.optim.AdamW(model.parameters(), rate)


def import_libraries():
    """What the workloads need, which takes long; a workload whose library is missing fails by itself."""
    for module in ("transformers.models.gpt2.modeling_gpt2", "transformers.models.bert.modeling_bert",
                   "transformers.models.llama.modeling_llama", "torchvision", "torch_geometric.nn"):
        try:
            importlib.import_module(module)
        except ImportError:
            pass


def llama(width, layers, heads, kv_heads):
    from transformers import LlamaConfig, LlamaForCausalLM

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(GPU):
            model = LlamaForCausalLM(LlamaConfig(
                hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv_heads, intermediate_size=width * 8 // 3 // 64 * 64,
                vocab_size=32000, max_position_embeddings=4096))
    finally:
        torch.set_default_dtype(before)
    return model.to(torch.bfloat16)


# --- Training ----------------------------------------------------------------------------------------


@workload("steps", warm=8, round=6, turns=1, check=2)
def gpt2_train():
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device(GPU):
        model = GPT2LMHeadModel(GPT2Config()).train()

    def loss_of(_):
        x = torch.randint(0, 50257, (8, 1024), device=GPU)
        with torch.autocast(GPU, torch.bfloat16):
            return model(x, labels=x).loss

    return training(model, adamw(model), loss_of)


@workload("steps", warm=10, round=10, turns=1, check=2)
def vit_train():
    import torchvision

    with torch.device(GPU):
        model = torchvision.models.vit_b_16().train()

    def loss_of(_):
        x = torch.randn(64, 3, 224, 224, device=GPU)
        y = torch.randint(0, 1000, (64,), device=GPU)
        with torch.autocast(GPU, torch.bfloat16):
            return F.cross_entropy(model(x), y)

    return training(model, adamw(model), loss_of)


@workload("steps", warm=28, round=7, check=3)
def bert_varlen():
    from transformers import BertConfig, BertForMaskedLM

    draw = random.Random(0)
    shapes = [(draw.choice([8, 16, 24, 32]), draw.randrange(32, 512)) for _ in range(28)]
    with torch.device(GPU):
        model = BertForMaskedLM(BertConfig()).train()

    def loss_of(i):
        x = torch.randint(0, 30000, shapes[i % len(shapes)], device=GPU)
        with torch.autocast(GPU, torch.bfloat16):
            return model(input_ids=x, labels=x).loss

    return training(model, adamw(model), loss_of)


class MixtureOfExperts(nn.Module):
    """Each token goes to the two experts that the gate likes best."""

    def __init__(self, width, experts=16, chosen=2):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts))
        self.chosen = chosen

    def forward(self, tokens):
        weights, experts = self.gate(tokens).softmax(-1).topk(self.chosen, -1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, slots = (experts == number).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, expert(tokens[rows]) * weights[rows, slots, None])
        return out


@workload("steps", warm=12, round=2, check=2)
def moe_train():
    width = 1024
    draw = random.Random(0)
    counts = [draw.randrange(1000, 9000) for _ in range(12)]
    with torch.device(GPU):
        layers = nn.ModuleList(MixtureOfExperts(width) for _ in range(8))

    def loss_of(i):
        tokens = torch.randn(counts[i % len(counts)], width, device=GPU)
        with torch.autocast(GPU, torch.bfloat16):
            for layer in layers:
                tokens = tokens + layer(tokens).float()
        return tokens.square().mean()

    return training(layers, adamw(layers, 3e-4), loss_of)


@workload("steps", warm=60, round=12, check=2)
def gnn_sample():
    from torch_geometric.nn import SAGEConv

    draw = random.Random(0)
    graphs = []
    for _ in range(60):
        nodes = draw.randrange(5_000, 120_000)
        graphs.append((nodes, draw.randrange(2, 12) * nodes))
    with torch.device(GPU):
        convs = nn.ModuleList([SAGEConv(256, 512), SAGEConv(512, 512), SAGEConv(512, 64)])

    def loss_of(i):
        nodes, edges = graphs[i % len(graphs)]
        h = torch.randn(nodes, 256, device=GPU)
        edge_index = torch.randint(0, nodes, (2, edges), device=GPU)
        for conv in convs:
            h = conv(h, edge_index).relu()
        return h.mean()

    return training(convs, torch.optim.Adam(convs.parameters()), loss_of)


@workload("steps", warm=18, round=3, check=2)
def llama_ckpt_varlen():
    draw = random.Random(0)
    shapes = []
    for _ in range(18):
        length = draw.randrange(256, 4096)
        shapes.append((draw.choice([1, 2, 4]), length))
    model = llama(2048, 16, 16, 8).train()
    model.gradient_checkpointing_enable()
    model.config.use_cache = False

    def loss_of(i):
        x = torch.randint(0, 32000, shapes[i % len(shapes)], device=GPU)
        return model(input_ids=x, labels=x).loss

    return training(model, adamw(model), loss_of)


@workload("steps", warm=16, round=5, check=4)
def multistream_prefetch():
    """A copy stream fetches the next batch, a communication stream gathers gradients."""
    draw = random.Random(0)
    # As many as the different rounds have steps: what one has fetched is what the next one begins with.
    rows = [draw.randrange(256, 6000) for _ in range(16)]
    host = torch.randn(6000, 2048).pin_memory()
    with torch.device(GPU):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 4096), nn.GELU(),
                                              nn.Linear(4096, 2048)) for _ in range(12)))
    optimizer = adamw(model)
    copy, comm = torch.cuda.Stream(), torch.cuda.Stream()

    def fetch(i):
        with torch.cuda.stream(copy):
            return host[:rows[i % len(rows)]].to(GPU, non_blocking=True)

    state = {"next": fetch(0)}

    def step(i):
        main = torch.cuda.current_stream()
        main.wait_stream(copy)
        x = state.pop("next")
        x.record_stream(main)
        state["next"] = fetch(i + 1)
        loss = model(x).square().mean()
        loss.backward()
        comm.wait_stream(main)
        with torch.cuda.stream(comm):
            pieces = []
            for parameter in model.parameters():
                gathered = parameter.grad.reshape(-1) * 1.0
                parameter.grad.record_stream(comm)
                pieces.append(gathered.half().float())
            bucket = torch.cat(pieces)
        main.wait_stream(comm)
        bucket.record_stream(main)
        # What came over the other stream is what the update uses: a race would show in the weights.
        begin = 0
        for parameter in model.parameters():
            parameter.grad.copy_(bucket[begin:begin + parameter.numel()].view_as(parameter))
            begin += parameter.numel()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        state["loss"] = loss.detach()
        return 1

    return Running(step, lambda: [*model.parameters(), state["loss"]])


# --- Serving -----------------------------------------------------------------------------------------


@workload("tokens", warm=3, round=1, check=1)
def serve_short():
    """Six threads, a stream each; a step is one request of each of them."""
    model = llama(1024, 6, 8, 4).eval()
    clients = 6
    draws = [random.Random(seed) for seed in range(clients)]
    requests = [[(draw.choice([1, 2, 4]), draw.randrange(16, 1200), draw.randrange(3, 6))
                 for _ in range(3)] for draw in draws]
    streams = [torch.cuda.Stream() for _ in range(clients)]
    last, errors = {}, []

    def serve(client, i):
        try:
            batch, prompt, tokens = requests[client][i % 3]
            with torch.cuda.stream(streams[client]), torch.inference_mode():
                seeded = torch.Generator(GPU).manual_seed(10 * client + i)
                x = torch.randint(0, 32000, (batch, prompt), device=GPU, generator=seeded)
                cache = None
                for _ in range(tokens):
                    out = model(input_ids=x, past_key_values=cache, use_cache=True)
                    cache, x = out.past_key_values, out.logits[:, -1:].argmax(-1)
                last[client] = x.clone()
                streams[client].synchronize()
        except Exception as error:  # to the thread that waits
            errors.append(error)

    def step(i):
        threads = [threading.Thread(target=serve, args=(client, i)) for client in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return sum(batch * tokens for batch, _, tokens in (client[i % 3] for client in requests))

    return Running(step, lambda: [last[client] for client in sorted(last)])


@workload("tokens", warm=4, round=1, check=1)
def generate():
    """Generation with a cache that grows by a token a step; a step is one batch of requests."""
    model = llama(1024, 12, 8, 4).eval()
    draw = random.Random(0)
    requests = [(draw.choice([4, 8, 16]), draw.randrange(128, 1024)) for _ in range(4)]
    tokens, last = 24, {}

    def step(i):
        batch, prompt = requests[i % len(requests)]
        with torch.inference_mode():
            x = torch.randint(0, 32000, (batch, prompt), device=GPU)
            cache, said = None, []
            for _ in range(tokens):
                out = model(input_ids=x, past_key_values=cache, use_cache=True)
                cache, x = out.past_key_values, out.logits[:, -1:].argmax(-1)
                said.append(x)
            last["said"] = torch.cat(said, 1)
        return batch * tokens

    return Running(step, lambda: [last["said"]])


class Decoder(nn.Module):
    """A small transformer with caches of fixed size, so that a step can be captured."""

    def __init__(self, layers=12, width=1024, heads=16, vocabulary=32000, context=1024):
        super().__init__()
        self.heads, self.context = heads, context
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.layers = nn.ModuleList(nn.ModuleDict({
            "before": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width),
            "out": nn.Linear(width, width), "after": nn.LayerNorm(width),
            "mlp": nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))}) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def caches(self, batch):
        size = (batch, self.heads, self.context, self.norm.normalized_shape[0] // self.heads)
        return [tuple(torch.zeros(size, dtype=torch.bfloat16, device=GPU) for _ in range(2))
                for _ in self.layers]

    def forward(self, tokens, positions, caches, mask):
        """Puts the tokens at `positions` into the caches; logits of the last one."""
        batch, length = tokens.shape
        x = self.words(tokens) + self.places(positions)
        for layer, (keys, values) in zip(self.layers, caches):
            q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                       for part in layer["qkv"](layer["before"](x)).chunk(3, -1))
            keys.index_copy_(2, positions, k)
            values.index_copy_(2, positions, v)
            seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            x = x + layer["out"](seen.transpose(1, 2).reshape(batch, length, -1))
            x = x + layer["mlp"](layer["after"](x))
        return self.head(self.norm(x[:, -1]))


class CapturedDecode:
    """One decode step of one batch size, as a CUDA graph."""

    def __init__(self, model, batch, pool):
        self.model, self.caches = model, model.caches(batch)
        self.token = torch.zeros(batch, 1, dtype=torch.long, device=GPU)
        self.position = torch.zeros(1, dtype=torch.long, device=GPU)
        self.slots = torch.arange(model.context, device=GPU)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # everything lazy happens before the capture
            for _ in range(2):
                self.once()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.logits = self.once()

    def once(self):
        return self.model(self.token, self.position, self.caches,
                          self.slots <= self.position[:, None])

    def generate(self, prompt, tokens):
        """Takes in the prompt eagerly, then replays the graph once a token."""
        length = prompt.shape[1]
        places = torch.arange(length, device=GPU)
        logits = self.model(prompt, places, self.caches, self.slots <= places[:, None])
        self.position.fill_(length - 1)
        said = []
        for _ in range(tokens):
            best = logits.float().topk(50)
            chosen = torch.multinomial(best.values.softmax(-1), 1)
            word = best.indices.gather(1, chosen)
            said.append(word)
            self.token.copy_(word)
            self.position.add_(1)
            self.graph.replay()
            logits = self.logits
        return torch.cat(said, 1)


@workload("tokens", warm=4, round=2, check=1)
def graph_decode():
    """A decode loop by CUDA graphs of three batch sizes that share a pool; sampling is eager."""
    with torch.device(GPU):
        model = Decoder().to(torch.bfloat16).eval()
    draw = random.Random(0)
    prompts = [draw.randrange(64, 700) for _ in range(12)]
    last = {}
    with torch.inference_mode():
        pool = torch.cuda.graph_pool_handle()
        graphs = {batch: CapturedDecode(model, batch, pool) for batch in (16, 4, 1)}

    def step(i):
        count = 0
        with torch.inference_mode():
            for number, (batch, captured) in enumerate(graphs.items()):
                length = prompts[(3 * i + number) % len(prompts)]
                prompt = torch.randint(0, 32000, (batch, length), device=GPU)
                last[batch] = captured.generate(prompt, 32)
                count += batch * 32
        return count

    return Running(step, lambda: [last[batch] for batch in graphs])


# --- Comparing results -------------------------------------------------------------------------------


def be_deterministic(on):
    """Same inputs, same bits: what the comparison of results needs and timing does not."""
    torch.use_deterministic_algorithms(on, warn_only=True)
    # Filled on the stream of the request, behind a program that uses the memory on another one.
    torch.utils.deterministic.fill_uninitialized_memory = not on
    torch.backends.cudnn.deterministic = on
    torch.backends.cudnn.benchmark = False
    for choose in (torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.enable_mem_efficient_sdp,
                   torch.backends.cuda.enable_cudnn_sdp):
        choose(not on)


def fingerprint(tensors):
    """A number of every bit of the tensors. Whole numbers only: the order of adding is no matter."""
    total = 0
    for tensor in tensors:
        words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        flat = tensor.detach().contiguous().view(-1).view(words)
        hashed = len(flat)
        for number, piece in enumerate(flat.split(1 << 24)):
            weight = torch.arange(1, 2 * len(piece), 2, device=piece.device)
            hashed = (hashed * 1_000_003 + (piece.long() * weight).sum().item() + number) % (1 << 64)
        total = (total * 6_364_136_223_846_793_005 + hashed) % (1 << 64)
    return f"{total:016x}"
