"""loader: a DataLoader whose batches are shared out over the ranks, and whose position resumes exactly.

Every rank draws the one order of the loader's sampler and keeps its own batches, by the plan of the C++ library's loaders
(docs/data.md). Rank 0 draws the seed of each epoch's order. A state holds that seed and a position in samples, so that
any number of ranks goes on from it.
"""
import collections
import itertools


def _world():
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _seed_of_rank_0():
    import torch
    import torch.distributed as dist

    seed = torch.empty((), dtype=torch.int64).random_()
    if _world()[1] > 1:
        dist.broadcast(seed, 0)
    return seed.item()


class _Batches:
    """This rank's batches of an epoch, as a DataLoader takes them. Facts of each go into `facts`, in their order."""

    def __init__(self, batches, options):
        self.batches, self.options = batches, options
        self.seed, self.position, self.facts = 0, 0, collections.deque()

    def _seeded(self):
        import torch

        sampler = getattr(self.batches, "sampler", None)
        if hasattr(sampler, "generator"):
            sampler.generator = torch.Generator().manual_seed(self.seed)
        return iter(self.batches)

    def _from_position(self):
        """The batches from the position on, and the first step's, which fill up the end."""
        from hasten.errors import UsageError

        order, head, passed = self._seeded(), [], 0
        a_step = 1 if self.options["split_batches"] else self.options["world_size"]
        while self.position and len(head) < a_step and (batch := next(order, None)) is not None:
            head.append(list(batch))
            passed += len(batch)
        ahead = []
        while passed > self.position:  # a step of more ranks reaches beyond the position
            ahead.insert(0, head[len(head) - len(ahead) - 1])
            passed -= len(ahead[0])
        while passed < self.position and (batch := next(order, None)) is not None:
            passed += len(batch)
        if passed != self.position:
            raise UsageError(f"[data] loader: position {self.position} is inside a batch, or behind the order's {passed} samples. "
                             "Load a state of a loader with this batch size and sampler.")
        return itertools.chain(ahead, order), head

    def __iter__(self):
        from hasten._load import engine

        order, head = self._from_position()
        shard = engine().BatchShard(engine().ShardOfBatches(**self.options), lambda: next(order, None), self.position, head)
        while (batch := shard.next()) is not None:
            indices, num_valid, end = batch
            self.facts.append((num_valid, end))
            yield indices

    def __len__(self):
        from hasten._load import engine

        size = self.options["batch_size"]
        sampler = getattr(self.batches, "sampler", None)
        last = (len(sampler) % size or size) if size and sampler is not None and not self.batches.drop_last else size
        return engine().ShardOfBatches(**self.options).length(len(self.batches), last or 1)


class Loader:
    """What loader gives. `for batch in loader` is an epoch: what is left of it after load_state_dict, else a whole one."""

    def __init__(self, given, split_batches, even_batches):
        import torch

        rank, world_size = _world()
        self._batches = _Batches(given.batch_sampler, dict(
            rank=rank, world_size=world_size, batch_size=getattr(given.batch_sampler, "batch_size", None),
            split_batches=split_batches, even_batches=even_batches, drop_last=bool(getattr(given.batch_sampler, "drop_last", False))))
        names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
                 "prefetch_factor", "persistent_workers")
        self.loader = torch.utils.data.DataLoader(given.dataset, batch_sampler=self._batches,
                                                  **{name: getattr(given, name) for name in names})
        self._state, self._resumes = None, False
        self.epoch = 0
        self.num_valid = None

    @property
    def dataset(self):
        return self.loader.dataset

    def __len__(self):
        """Batches that this rank gets in an epoch."""
        return len(self._batches)

    def __iter__(self):
        own = self._batches
        if self._state is not None and not self._resumes:  # the loop before was left
            self.epoch, self._state = self._state["epoch"] + 1, None
        if self._state is None:
            self._state = {"epoch": self.epoch, "seed": _seed_of_rank_0(), "position": 0}
        self._resumes = False
        own.seed, own.position = self._state["seed"], self._state["position"]
        own.facts.clear()
        for batch in self.loader:
            self.num_valid, end = own.facts.popleft()
            self._state = {**self._state, "position": end}
            yield batch
        self.epoch, self._state = self._state["epoch"] + 1, None

    def state_dict(self):
        """Epoch, seed and position behind the batch in hand. The same on all ranks, and for any number of them."""
        return dict(self._state) if self._state else {"epoch": self.epoch, "seed": None, "position": 0}

    def load_state_dict(self, state):
        """The next epoch that is begun goes on from there."""
        self.epoch = state["epoch"]
        self._state, self._resumes = (None, False) if state["seed"] is None else (dict(state), True)


def loader(given, *, split_batches=False, even_batches=True):
    """Shares the batches of a DataLoader out over the ranks of torch.distributed's world. Call it on all ranks alike.

    split_batches: its batch size is that of all ranks together, and each batch is cut; otherwise whole batches go round the
    ranks. even_batches: all ranks get as many batches, of one size, for which samples of the first step come once more;
    num_valid counts those of the batch in hand that do not. Random samplers draw alike on all ranks; a sampler of the
    program's own has to give all ranks one order. Raises UsageError for a dataset without positions, or a sampler that shares
    samples out by itself.
    """
    import torch

    from hasten.errors import UsageError

    if isinstance(given, Loader):
        return given
    if isinstance(given.dataset, torch.utils.data.IterableDataset) or given.batch_sampler is None:
        raise UsageError("[data] loader: a dataset without positions, or one that makes its batches itself, cannot be shared out. "
                         "Give each rank its part in the dataset (torch.utils.data.get_worker_info, RANK).")
    if isinstance(getattr(given.batch_sampler, "sampler", None), torch.utils.data.DistributedSampler):
        raise UsageError("[data] loader: DistributedSampler gives each rank its samples by itself. Make the DataLoader with "
                         "shuffle=True or False instead.")
    return Loader(given, split_batches, even_batches)
