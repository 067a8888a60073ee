#!/usr/bin/env python3
"""merge_wheels.py FOLDER WHEEL…: one wheel of the Python package for several minor releases of torch.

Each WHEEL is one that `pip wheel . --no-build-isolation --no-deps` has built against another torch, for one Python. The first
gives all files, the others their engines. `import hasten` takes the engine of the torch that is there.
"""
import base64
import hashlib
import os
import re
import sys
import zipfile

ENGINE = re.compile(r"hasten/_engine_\d+_\d+\.[^/]*")


def digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def files_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: (info.external_attr, archive.read(info)) for info in archive.infolist() if not info.is_dir()}


def merge(wheels):
    """The files of all wheels together, with the record that pip checks."""
    files = files_of(wheels[0])
    for wheel in wheels[1:]:
        if os.path.basename(wheel) != os.path.basename(wheels[0]):
            sys.exit(f"merge_wheels.py: {wheel} is not of the same version, Python and platform as {wheels[0]}.")
        engines = {name: content for name, content in files_of(wheel).items() if ENGINE.fullmatch(name)}
        again = sorted(set(engines) & set(files))
        if again or not engines:
            sys.exit(f"merge_wheels.py: {wheel} has {'the engine ' + again[0] + ' as well' if again else 'no engine'}. Give one wheel for "
                     "each torch.")
        files |= engines
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    lines = [f"{name},{digest(data)},{len(data)}\n" for name, (_, data) in sorted(files.items()) if name != record]
    files[record] = (files[record][0], "".join([*lines, f"{record},,\n"]).encode())
    return files


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out = os.path.join(sys.argv[1], os.path.basename(sys.argv[2]))
    files = merge(sys.argv[2:])
    os.makedirs(sys.argv[1], exist_ok=True)
    with zipfile.ZipFile(out, "x", zipfile.ZIP_DEFLATED) as archive:
        for name, (attributes, data) in sorted(files.items(), key=lambda item: (item[0].endswith("/RECORD"), item[0])):
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = attributes, zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    print(out)


if __name__ == "__main__":
    main()
