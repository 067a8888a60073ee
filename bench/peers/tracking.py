"""Accelerate's TensorBoard tracker: log of two scalars, and eight images of 3 x 224 x 224."""
import json
import os
import tempfile
import time

os.environ["ACCELERATE_USE_CPU"] = "true"
import numpy as np  # noqa: E402
from accelerate import Accelerator  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    accelerator = Accelerator(log_with="tensorboard", project_dir=folder, cpu=True)
    accelerator.init_trackers("p", config={"lr": 1e-3, "opt": "adam"})
    times = []
    for step in range(3000):
        start = time.perf_counter()
        accelerator.log({"loss": 1.0 / (step + 1), "lr": 1e-3}, step=step)
        times.append(time.perf_counter() - start)
    times.sort()
    images = np.random.rand(8, 3, 224, 224).astype("float32")
    start = time.perf_counter()
    accelerator.get_tracker("tensorboard").log_images({"im": images}, step=1)
    images_s = time.perf_counter() - start
    accelerator.end_training()
print(json.dumps({"log_median_us": times[len(times) // 2] * 1e6, "log_p99_us": times[len(times) * 99 // 100] * 1e6, "images_ms": images_s * 1e3}))
