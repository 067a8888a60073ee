"""Accelerate's trackers: log of two scalars with TensorBoard, MLflow (a file store) and W&B offline; eight images of 3 x 224 x 224."""
import importlib.util
import json
import os
import tempfile
import time

os.environ["ACCELERATE_USE_CPU"] = "true"
import numpy as np  # noqa: E402
from accelerate import Accelerator  # noqa: E402

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"


def log_times(accelerator, num):
    times = []
    for step in range(num):
        start = time.perf_counter()
        accelerator.log({"loss": 1.0 / (step + 1), "lr": 1e-3}, step=step)
        times.append((time.perf_counter() - start) * 1e6)
    return sorted(times)


result = {}
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    accelerator = Accelerator(log_with="tensorboard", project_dir=folder, cpu=True)
    accelerator.init_trackers("p", config={"lr": 1e-3, "opt": "adam"})
    times = log_times(accelerator, 3000)
    result.update(log_median_us=times[len(times) // 2], log_p99_us=times[len(times) * 99 // 100])
    images = np.random.rand(8, 3, 224, 224).astype("float32")
    start = time.perf_counter()
    accelerator.get_tracker("tensorboard").log_images({"im": images}, step=1)
    result["images_ms"] = (time.perf_counter() - start) * 1e3
    accelerator.end_training()
    for name, num in (("mlflow", 100), ("wandb", 1000)):
        if importlib.util.find_spec(name) is None:
            continue
        accelerator = Accelerator(log_with=name, project_dir=folder, cpu=True)
        accelerator.init_trackers("p", config={"lr": 1e-3})
        times = log_times(accelerator, num)
        result[name + "_median_us"], result[name + "_p99_us"] = times[len(times) // 2], times[len(times) * 99 // 100]
        accelerator.end_training()
    os.chdir("/")
print(json.dumps(result))
