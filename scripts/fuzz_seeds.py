"""Writes the golden files as seeds of scripts/fuzz into the folder argv[1]: one byte that names the reader, then the file."""
import pathlib
import sys

out = pathlib.Path(sys.argv[1])
golden = pathlib.Path(__file__).parent.parent / "tests" / "golden"
# The order of tests/files/fuzzer.cpp.
PYTHON, SAFETENSORS, INDEX, MANIFEST, JSON, DCP = range(6)
MANIFEST_SEED = (b'{"format":"hasten checkpoint","version":1,"writer":"w","libtorch":"","save_id":"ab","time":0,"world_size":1,'
                 b'"strategy":"","hosts":[],"step":1,"iteration":0,"accumulation":null,"files":[{"name":"a","bytes":9000,'
                 b'"header_xxh3":"00000000000000000000000000000000"}],"tensors":{"w":{"dtype":"float32","shape":[4],"kind":"model",'
                 b'"pieces":[[0,[0],[4],"00000000000000000000000000000000",4096]]}}}')


def write(reader, name, data):
    if len(data) < 100_000:
        (out / f"{reader}-{name}").write_bytes(bytes([reader]) + data)


out.mkdir(parents=True, exist_ok=True)
for path in sorted(golden.rglob("*")):
    if not path.is_file():
        continue
    name = "-".join(path.relative_to(golden).parts)
    if path.name == ".metadata":
        write(DCP, name, path.read_bytes())
    elif path.suffix in (".pt", ".pth", ".bin", ".pkl", ".distcp"):
        write(PYTHON, name, path.read_bytes())
    elif path.suffix == ".safetensors":
        write(SAFETENSORS, name, path.read_bytes())
    elif path.name.endswith(".index.json"):
        write(INDEX, name, path.read_bytes())
write(MANIFEST, "seed", MANIFEST_SEED)
write(JSON, "seed", b'{"a": [1, -2.5e3, null, true, "\\u00e4"], "b": {"$double": "nan"}}')
print(len(list(out.iterdir())), "seeds")
