"""Reads what hasten wrote into the folder argv[1] with torch, safetensors, accelerate and DCP, and compares the values."""
import json
import pathlib
import sys

import torch
import torch.distributed.checkpoint as dcp
from accelerate import load_checkpoint_in_model
from safetensors.torch import load_file

folder = pathlib.Path(sys.argv[1])
expected = torch.arange(24, dtype=torch.float32).reshape(4, 6)


def check(what, good):
    if not good:
        sys.exit(f"{what} is wrong")
    print("good:", what)


for options in ({}, {"mmap": True}, {"map_location": "meta"}):
    value = torch.load(folder / "values.pt", weights_only=True, **options)
    if options.get("map_location") != "meta":
        check(f"tensor {options}", torch.equal(value["tensor"], expected))
        check(f"transposed view {options}", torch.equal(value["view"], expected.t()) and value["view"].untyped_storage().data_ptr() == value["tensor"].untyped_storage().data_ptr())
        check(f"dtypes {options}", all(str(tensor.dtype) == "torch." + name for name, tensor in value["dtypes"].items()))
        check(f"float8 {options}", value["dtypes"]["float8_e4m3fn"].view(torch.uint8).tolist() == [56, 64])
        check(f"uint16 {options}", value["dtypes"]["uint16"].tolist() == [14393, 16449])
    check(f"numbers {options}", value["numbers"] == [None, True, False, 0, 255, 256, 65535, 65536, -1, 2**31, -(2**31), 2**63, 2**64 - 1, 10**30, 1.5, float("inf")])
    check(f"texts {options}", value["texts"] == ("", "äöü €", b"\x00\xff raw"))
    check(f"parameter {options}", isinstance(value["parameter"], torch.nn.Parameter) and value["parameter"].requires_grad)
    check(f"size and dtype {options}", value["size"] == torch.Size([2, 0, 7]) and value["dtype"] == torch.bfloat16)

state = torch.load(folder / "state.pt", weights_only=True)
check("state_dict", list(state) == ["0.weight", "0.bias"] and state._metadata[""]["version"] == 1)
torch.nn.Sequential(torch.nn.Linear(6, 4)).load_state_dict(state)
check("load_state_dict", True)

check("safetensors", torch.equal(load_file(folder / "model" / "model.safetensors")["0.weight"], expected))
index = json.loads((folder / "sharded" / "model.safetensors.index.json").read_text())
check("index", set(index["weight_map"]) == {"0.weight", "0.bias"} and index["metadata"]["total_size"] == 112)
for name in ("model", "sharded", "bin"):
    model = torch.nn.Sequential(torch.nn.Linear(6, 4))
    load_checkpoint_in_model(model, str(folder / name))
    check(f"load_checkpoint_in_model of {name}", torch.equal(model[0].weight.data, expected))

target = {"0.weight": torch.zeros(4, 6), "0.bias": torch.zeros(4)}
dcp.load(target, storage_reader=dcp.HuggingFaceStorageReader(str(folder / "shards")))
check("dcp.load of shards", torch.equal(target["0.weight"], expected) and torch.equal(target["0.bias"], torch.arange(4, dtype=torch.float32)))
