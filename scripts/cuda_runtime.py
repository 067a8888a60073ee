#!/usr/bin/env python3
"""Prints the packages with the two CUDA libraries that libtorch_cpu of a CUDA wheel loads, one a line.

libtorch_cpu.so of a CUDA build needs libcudart and libcupti (for its profiler), a few megabytes; torch as a whole
asks for gigabytes. The versions are those that the installed torch itself names. Used by ./dev.
"""
import re
from importlib import metadata


def needed(requirements):
    """The requirement strings for cudart and cupti among those of torch."""
    found = []
    for requirement in requirements:
        text = requirement.split(";")[0].strip()
        bundle = re.match(r"cuda-toolkit\[.*\]==([0-9]+\.[0-9]+)", text)
        if bundle:
            # The bundle itself is empty: its extras name these two packages, whose versions start with its own.
            found += [f"nvidia-cuda-{name}=={bundle.group(1)}.*" for name in ("runtime", "cupti")]
        elif re.match(r"nvidia-cuda-(runtime|cupti)\b", text):
            found.append(text)
    return found


if __name__ == "__main__":
    print("\n".join(needed(metadata.requires("torch") or [])))
