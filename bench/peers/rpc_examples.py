"""The tutorials of torch.distributed.rpc that bench/run times beside examples/rpc: `pipeline IMAGES SIZE BATCHES` on 3 processes,
`reinforce ROUNDS` and `reinforce_batched ROUNDS` on 1 + N. The same work as the examples of those names."""
import json
import math
import os
import random
import sys
import threading
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.nn as nn
from torch.distributed.optim import DistributedOptimizer
from torch.distributed.rpc import RRef, remote, rpc_async, rpc_sync


class Bottleneck(nn.Module):
    def __init__(self, entry, width, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(entry, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        self.shortcut = None
        if stride != 1 or entry != 4 * width:
            self.shortcut = nn.Sequential(nn.Conv2d(entry, 4 * width, 1, stride=stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return torch.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


def blocks(entry, width, count, stride):
    return [Bottleneck(entry if i == 0 else 4 * width, width, stride if i == 0 else 1) for i in range(count)]


class Stage(nn.Module):
    def __init__(self, half):
        super().__init__()
        self.lock = threading.Lock()
        if half == 0:
            layers = [nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1),
                      *blocks(64, 64, 3, 1), *blocks(256, 128, 4, 2)]
        else:
            layers = [*blocks(512, 256, 6, 2), *blocks(1024, 512, 3, 2), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(2048, 1000)]
        self.layers = nn.Sequential(*layers)

    def forward(self, reference):
        x = reference.to_here()
        with self.lock:
            return self.layers(x)

    def parameter_rrefs(self):
        return [RRef(one) for one in self.parameters()]


def pipeline(images, size, batches):
    times = {}
    for splits in (1, 8):
        first, second = remote("w1", Stage, args=(0,)), remote("w2", Stage, args=(1,))
        optimizer = DistributedOptimizer(torch.optim.SGD, first.rpc_sync().parameter_rrefs() + second.rpc_sync().parameter_rrefs(), lr=0.05)
        start = time.perf_counter()
        for _ in range(batches):
            x = torch.randn(images, 3, size, size)
            labels = torch.zeros(images, 1000).scatter_(1, torch.randint(1000, (images, 1)), 1)
            with dist_autograd.context() as context:
                outputs = [second.rpc_async().forward(first.remote().forward(RRef(part))) for part in x.split(images // splits)]
                dist_autograd.backward(context, [nn.functional.mse_loss(torch.cat(torch.futures.wait_all(outputs)), labels)])
                optimizer.step(context)
        times[f"pipeline_{splits}_s"] = time.perf_counter() - start
    return times


class CartPole:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def reset(self):
        self.state = [self.random.uniform(-0.05, 0.05) for _ in range(4)]
        self.steps = 0
        return torch.tensor(self.state)

    def step(self, action):
        x, v, angle, spin = self.state
        force = 10.0 if action == 1 else -10.0
        cosine, sine = math.cos(angle), math.sin(angle)
        pull = (force + 0.05 * spin * spin * sine) / 1.1
        turn = (9.8 * sine - cosine * pull) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1))
        push = pull - 0.05 * turn * cosine / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * turn]
        self.steps += 1
        done = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2095 or self.steps >= 200
        return torch.tensor(self.state), 1.0, done


class Learner:
    def __init__(self, num_observers):
        self.num_observers = num_observers
        self.policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2))
        self.chosen = {}
        self.lock = threading.Lock()
        self.waiting = torch.futures.Future()
        self.states = {}

    def select_action(self, observer, state):
        with self.lock:
            distribution = torch.distributions.Categorical(torch.softmax(self.policy(state.unsqueeze(0)), 1))
            action = distribution.sample()
            self.chosen.setdefault(observer, []).append(distribution.log_prob(action))
            return action.item()

    def report_reward(self, observer, reward):
        pass

    @staticmethod
    @rpc.functions.async_execution
    def select_action_batch(reference, observer, state):
        self = reference.local_value()
        future = self.waiting.then(lambda done: done.wait()[observer])
        with self.lock:
            self.states[observer] = state
            if len(self.states) == self.num_observers:
                order = sorted(self.states)
                distribution = torch.distributions.Categorical(torch.softmax(self.policy(torch.stack([self.states[one] for one in order])), 1))
                actions = distribution.sample()
                waiting, self.waiting, self.states = self.waiting, torch.futures.Future(), {}
                waiting.set_result({one: action.item() for one, action in zip(order, actions)})
        return future


def play(reference, observer, seed, num_steps):
    game = CartPole(seed)
    state = game.reset()
    for _ in range(num_steps):
        action = reference.rpc_sync().select_action(observer, state)
        state, reward, done = game.step(action)
        reference.rpc_sync().report_reward(observer, reward)
        if done:
            state = game.reset()


def play_batched(reference, observer, seed, num_steps):
    game = CartPole(seed)
    state = game.reset()
    for _ in range(num_steps):
        action = rpc_sync(reference.owner(), Learner.select_action_batch, args=(reference, observer, state))
        state, _, done = game.step(action)
        if done:
            state = game.reset()


def reinforce(function, rounds, world_size):
    learner = RRef(Learner(world_size - 1))
    num_steps = 200
    start = time.perf_counter()
    for number in range(rounds):
        torch.futures.wait_all([rpc_async(f"w{rank}", function, args=(learner, rank, 1000 * number + rank, num_steps), timeout=0)
                                for rank in range(1, world_size)])
    seconds = time.perf_counter() - start
    return {"steps_per_s": rounds * num_steps * (world_size - 1) / seconds}


def main():
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=world_size, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(num_worker_threads=32, rpc_timeout=600))
    if rank == 0:
        if sys.argv[1] == "pipeline":
            line = pipeline(*map(int, sys.argv[2:5]))
        else:
            line = reinforce(play if sys.argv[1] == "reinforce" else play_batched, int(sys.argv[2]), world_size)
        print(json.dumps(line), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
