"""Prints what MLflow's own client finds of the newest run of an experiment, as JSON. Arguments: URI, experiment."""
import json
import os
import sys

import mlflow

mlflow.set_tracking_uri(sys.argv[1])
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name(sys.argv[2])
runs = client.search_runs([experiment.experiment_id])
run = runs[0]
history = {key: [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, key)] for key in run.data.metrics}
artifacts = []


def walk(path):
    for entry in client.list_artifacts(run.info.run_id, path):
        walk(entry.path) if entry.is_dir else artifacts.append(entry.path)


walk(None)
table = None
if "table.json" in artifacts:
    table = client.load_table(experiment.experiment_id, "table.json", run_ids=[run.info.run_id]).values.tolist()
sizes = {path: os.path.getsize(client.download_artifacts(run.info.run_id, path)) for path in artifacts}
print(json.dumps({"num_runs": len(runs), "status": run.info.status, "params": run.data.params, "tags": run.data.tags,
                  "metrics": history, "artifacts": sizes, "table": table}))
