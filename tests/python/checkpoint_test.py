"""save and load: what comes back, what torch reads, what is refused."""
import collections
import pickle

import pytest
import torch

import hasten


def state():
    shared = torch.randn(4, 3)
    return {
        "model": collections.OrderedDict(weight=torch.randn(3, 4).to(torch.bfloat16), tied=shared, slice=shared[1:, 1]),
        "optim": {"state": {0: {"step": torch.tensor(7.0), "exp_avg": torch.randn(2)}}, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.99)}]},
        "step": 7, "big": 2**70, "name": "grün", "flags": [True, None, 1.5, 2 - 3j, b"\x00\xff"], "dtype": torch.float16,
        "size": torch.Size([2, 3]), "device": torch.device("cpu"), "empty": torch.empty(0, 5), "scalar": torch.tensor(3),
    }


def assert_equal(one, other):
    assert type(one) is type(other), (type(one), type(other))
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            assert_equal(a, b)
    else:
        assert one == other


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("name", ["7", "deep/state.pt"])
def test_what_was_saved_comes_back_here_and_in_torch(tmp_path, background, name):
    given = state()
    path = str(tmp_path / name)
    save = hasten.save(given, path, background=background)
    save.wait()
    assert save.done
    assert_equal(hasten.load(path), given)
    assert_equal(hasten.load(path, python=True), given)
    assert_equal(torch.load(save.path, weights_only=True), given)


def test_a_background_save_has_the_values_of_its_call(tmp_path):
    weight = torch.ones(1000, 1000)
    save = hasten.save({"weight": weight}, tmp_path / "w.pt", background=True)
    weight.zero_()
    save.wait()
    assert hasten.load(tmp_path / "w.pt")["weight"].eq(1).all()


def test_tensors_of_one_storage_share_it_in_the_file(tmp_path):
    weight = torch.randn(500, 500)
    one = hasten.save({"a": weight}, tmp_path / "one.pt")
    two = hasten.save({"a": weight, "b": weight.t()}, tmp_path / "two.pt")
    sizes = [__import__("os").path.getsize(save.path) for save in (one, two)]
    assert sizes[1] < sizes[0] + 10_000
    loaded = torch.load(two.path, weights_only=True)
    assert loaded["a"].data_ptr() == loaded["b"].data_ptr()


def test_files_of_torch_and_safetensors_are_read(tmp_path):
    given = state()
    torch.save(given, tmp_path / "torch.pt")
    assert_equal(hasten.load(tmp_path / "torch.pt"), given)
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"a": torch.randn(3, 2), "b": torch.arange(4)}
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    for path in (tmp_path / "model.safetensors", tmp_path):
        assert_equal(dict(sorted(hasten.load(path, form="safetensors").items())), tensors)


def test_a_folder_of_dcp_is_read(tmp_path):
    import torch.distributed.checkpoint as dcp

    tensors = {"net.a": torch.randn(3, 2), "net.b": torch.arange(4)}
    dcp.save(dict(tensors), checkpoint_id=str(tmp_path / "dcp"))
    loaded = hasten.load(tmp_path / "dcp")
    assert {name: value.tolist() for name, value in loaded.items()} == {name: value.tolist() for name, value in tensors.items()}


class Evil:
    ran = False

    def __reduce__(self):
        return (exec, ("from checkpoint_test import Evil; Evil.ran = True",))


def test_code_in_a_file_is_not_run(tmp_path):
    from hasten.checkpoint import Inert

    with open(tmp_path / "evil.pkl", "wb") as file:
        pickle.dump({"x": Evil(), "y": 1}, file)
    loaded = hasten.load(tmp_path / "evil.pkl")
    assert not Evil.ran
    assert loaded["y"] == 1 and isinstance(loaded["x"], Inert) and "exec" in loaded["x"].name
    with pytest.raises(Exception):
        hasten.load(tmp_path / "evil.pkl", python=True)


def test_what_has_no_form_is_refused_with_its_place(tmp_path):
    with pytest.raises(hasten.UsageError, match=r"state\.optim\[1\] is a object"):
        hasten.save({"optim": [1, object()]}, tmp_path / "x.pt")
    with pytest.raises(hasten.UsageError, match=r"state\.w is a tensor of layout"):
        hasten.save({"w": torch.empty(2, device="meta")}, tmp_path / "x.pt")
    assert not (tmp_path / "x.pt").exists()


def test_errors_name_the_path_and_are_of_their_kind(tmp_path):
    with pytest.raises(hasten.UsageError, match="nowhere"):
        hasten.load(tmp_path / "nowhere")
    hasten.save(state(), tmp_path / "cut.pt")
    data = (tmp_path / "cut.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(hasten.DataError):
        hasten.load(tmp_path / "cut.pt")


def test_rank_0_writes_for_all(tmp_path):
    from ranks import expect_success, run_ranks

    expect_success(run_ranks(2, """
        import sys, torch, torch.distributed as dist, hasten
        dist.init_process_group("hasten")
        hasten.save({"rank": dist.get_rank()}, sys.argv[1], background=True).wait()
        dist.barrier()
        assert hasten.load(sys.argv[1]) == {"rank": 0}
        dist.destroy_process_group()
    """, str(tmp_path / "7")))
