"""loader: which samples each rank gets, and going on from a state."""
import json

import pytest
import torch
from ranks import expect_success, run_ranks

import hasten

EPOCHS = """
    import json, sys, torch, torch.distributed as dist, hasten
    from torch.utils.data import DataLoader, TensorDataset
    options = json.loads(sys.argv[1])
    stop, state = options.pop("stop", None), options.pop("state", None)
    workers, shuffle, own = options.pop("workers", 0), options.pop("shuffle", True), options.pop("loader", {})
    dist.init_process_group("hasten")
    torch.manual_seed(dist.get_rank())
    data = TensorDataset(torch.arange(options.pop("samples")))
    loader = hasten.loader(DataLoader(data, shuffle=shuffle, num_workers=workers, **options), **own)
    if state:
        loader.load_state_dict(state)
    for epoch in range(2):
        got, valid = [], 0
        for number, (batch,) in enumerate(loader):
            got.append(batch.tolist())
            valid += loader.num_valid
            if number + 1 == stop:
                print("state", json.dumps(loader.state_dict()))
                stop = None
        print("epoch", json.dumps([got, valid, len(loader)]))
    dist.barrier()
    dist.destroy_process_group()
"""


def epochs(size=2, **options):
    """By rank: the batches of two epochs, how many samples came once, and the state behind batch `stop`."""
    found = []
    for rank in expect_success(run_ranks(size, EPOCHS, json.dumps(options))):
        lines = [line.split(" ", 1) for line in rank.output.splitlines()]
        found.append(([json.loads(text) for word, text in lines if word == "epoch"],
                      [json.loads(text) for word, text in lines if word == "state"]))
    return found


def samples(batches):
    return [sample for batch in batches for sample in batch]


@pytest.mark.parametrize("own", [{}, {"split_batches": True}])
def test_ranks_share_one_order_in_which_each_sample_comes_once(own):
    ranks = epochs(samples=22, batch_size=4, loader=own)
    for epoch in range(2):
        shares = [rank[0][epoch] for rank in ranks]
        assert sorted(set(sum((samples(batches) for batches, _, _ in shares), []))) == list(range(22))
        assert sum(valid for _, valid, _ in shares) == 22
        assert all(len(batches) == length for batches, _, length in shares)
        assert len({length for _, _, length in shares}) == 1
    assert ranks[0][0][0][0] != ranks[0][0][1][0]  # another order


def test_without_even_batches_nothing_comes_twice():
    ranks = epochs(samples=22, batch_size=4, shuffle=False, loader={"even_batches": False})
    assert sorted(sum((samples(rank[0][0][0]) for rank in ranks), [])) == list(range(22))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_goes_on_exactly_from_a_state(workers):
    whole = epochs(samples=40, batch_size=4, stop=2, workers=workers)
    states = [rank[1][0] for rank in whole]
    assert states[0] == states[1] and states[0]["position"] == 16
    for rank, (again, before) in enumerate(zip(epochs(samples=40, batch_size=4, state=states[0], workers=workers), whole)):
        assert again[0][0][0] == before[0][0][0][2:], rank


def test_another_number_of_ranks_goes_on_from_it():
    whole = epochs(samples=40, batch_size=4, stop=2)
    seen = sum((samples(rank[0][0][0][:2]) for rank in whole), [])
    alone = epochs(size=1, samples=40, batch_size=4, state=whole[0][1][0])
    assert sorted(seen + samples(alone[0][0][0][0])) == list(range(40))
    three = epochs(size=3, samples=40, batch_size=4, state=whole[0][1][0], loader={"even_batches": False})
    assert sorted(seen + sum((samples(rank[0][0][0]) for rank in three), [])) == list(range(40))


def test_what_cannot_be_shared_out_is_refused():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(hasten.UsageError, match="without positions"):
        hasten.loader(torch.utils.data.DataLoader(Stream()))
    data = list(range(8))
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0)
    with pytest.raises(hasten.UsageError, match="DistributedSampler"):
        hasten.loader(torch.utils.data.DataLoader(data, sampler=sampler))
    loader = hasten.loader(torch.utils.data.DataLoader(data, batch_size=3))
    loader.load_state_dict({"epoch": 0, "seed": 1, "position": 4})
    with pytest.raises(hasten.UsageError, match="position 4 is inside a batch"):
        next(iter(loader))
