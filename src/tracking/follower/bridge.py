# The bridge between a journal and a tracker's Python client. hasten starts it as `PYTHON -u -c <this text> FACTS`.
# It follows the journal from the given place, calls the client as Accelerate's class of the same name does, and replies one
# JSON object a line on the standard output it was started with: {"part", "offset"} after what has been handed over,
# {"error", "op"} for a record that the client refused, {"fatal"} if it cannot start, {"done"} at the end.
import json
import os
import select
import sys
import time

replies = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what the client prints goes to its log


def reply(**fields):
    replies.write(json.dumps(fields) + "\n")
    replies.flush()


NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def decoded(values):
    result = {}
    for key, value in values.items():
        if isinstance(value, str):
            value = NUMBERS.get(value, value)
        elif isinstance(value, dict):
            value = value["$text"] if set(value) == {"$text"} else decoded(value)
        result[key] = value
    return result


def flat(values, prefix=""):
    result = {}
    for key, value in values.items():
        if isinstance(value, dict):
            result.update(flat(value, prefix + key + "/"))
        else:
            result[prefix + key] = value
    return result


class Client:
    """One client; the methods take what a record holds. A method that is missing means that the client cannot show it."""

    def __init__(self, facts):
        self.facts = facts
        self.project = facts["project"]
        self.options = dict(facts["options"] or {})
        self.state = facts["state"] or {}
        self.warned = set()

    def dropped(self, key, value):
        if key not in self.warned:
            self.warned.add(key)
            reply(warning=f"the value {value!r:.60} of '{key}' is no number and is not shown")

    def rewind(self, step):
        pass

    def resumed_from(self, identity):
        """Keeps the run's id for the next start; returns that of the run which this one goes on with, or None."""
        old = self.state.get("id")
        self.state = {"id": identity if isinstance(identity, str) else None}
        return old


class Wandb(Client):
    module = "wandb"

    def start(self):
        import importlib

        self.client = importlib.import_module(self.module)
        options = self.options
        if self.state.get("id"):
            options = {**options, "id": self.state["id"], "resume": "allow"}
        self.run = self.client.init(project=self.project, **options)
        self.state = {"id": getattr(self.run, "id", None)}

    def config(self, values):
        self.client.config.update(values, allow_val_change=True)

    def log(self, values, step, kwargs):
        self.run.log(values, step=step, **kwargs)

    def images(self, images, step, kwargs):
        for key, paths in images.items():
            self.run.log({key: [self.client.Image(path) for path in paths]}, step=step, **kwargs)

    def table(self, key, columns, data, step, kwargs):
        self.run.log({key: self.client.Table(columns=columns, data=data, dataframe=None)}, step=step, **kwargs)

    def artifact(self, path, artifact_path):
        self.run.save(path, base_path=os.path.dirname(path), policy="now")

    def finish(self, end):
        if end == "finished":
            self.run.finish()
        else:
            self.run.finish(exit_code=1)


class Trackio(Wandb):
    images = table = artifact = None

    def start(self):  # its runs are known by name
        import trackio

        self.client = trackio
        name = self.state.get("name")
        options = {**self.options, "name": name, "resume": "allow"} if name else self.options
        self.run = trackio.init(project=self.project, **options)
        name = getattr(self.run, "name", None)
        self.state = {"name": name if isinstance(name, str) else None}

    def finish(self, end):
        self.run.finish()


class Swanlab(Wandb):
    module = "swanlab"
    table = artifact = None

    def start(self):
        super().start()
        self.client.config["FRAMEWORK"] = "hasten"

    def log(self, values, step, kwargs):
        self.run.log(flat(values), step=step, **kwargs)

    def finish(self, end):
        self.run.finish()


class CometMl(Client):
    def start(self):
        import comet_ml

        self.run = comet_ml.start(project_name=self.project, **self.options)
        old = self.resumed_from(getattr(self.run, "id", None))
        if old:
            self.run.log_other("resumed_from", old)

    def config(self, values):
        self.run.log_parameters(values)

    def log(self, values, step, kwargs):
        if step is not None:
            self.run.set_step(step)
        for key, value in values.items():
            if isinstance(value, (int, float)):
                self.run.log_metric(key, value, step=step, **kwargs)
            elif isinstance(value, str):
                self.run.log_other(key, value, **kwargs)
            elif isinstance(value, dict):
                self.run.log_metrics(value, step=step, **kwargs)

    def images(self, images, step, kwargs):
        for key, paths in images.items():
            for path in paths:
                self.run.log_image(path, name=key, step=step, **kwargs)

    def table(self, key, columns, data, step, kwargs):
        self.run.log_table(key + ".csv", tabular_data=data, headers=columns, **kwargs)

    def artifact(self, path, artifact_path):
        self.run.log_asset(path, file_name=os.path.join(artifact_path, os.path.basename(path)))

    def finish(self, end):
        self.run.end()


class Aim(Client):
    def start(self):
        import aim

        self.aim = aim
        repo = os.path.dirname(os.path.dirname(self.facts["folder"]))
        self.run = aim.Run(repo=self.options.pop("repo", repo), **self.options)
        self.run.name = self.project
        old = self.resumed_from(getattr(self.run, "hash", None))
        if old:
            self.run["resumed_from"] = old

    def config(self, values):
        self.run["hparams"] = values

    def log(self, values, step, kwargs):
        for key, value in flat(values).items():
            self.run.track(value, name=key, step=step, **kwargs)

    def images(self, images, step, kwargs):
        for key, paths in images.items():
            for path in paths:
                image = self.aim.Image(path, caption="", **kwargs.get("aim_image", {}))
                self.run.track(image, name=key, step=step, **kwargs.get("track", {}))

    def finish(self, end):
        self.run.close()


class Mlflow(Client):
    def start(self):
        import mlflow

        self.mlflow = mlflow
        environment, options = os.environ, self.options
        name = environment.get("MLFLOW_EXPERIMENT_NAME", options.get("experiment_name") or self.project)
        tags = environment.get("MLFLOW_TAGS", options.get("tags"))
        tags = json.loads(tags) if isinstance(tags, str) else tags
        nested = environment.get("MLFLOW_NESTED_RUN", options.get("nested_run", False))
        nested = nested.lower() in ("1", "true", "yes", "y", "on", "t") if isinstance(nested, str) else nested
        found = mlflow.search_experiments(filter_string=f"name = '{name}'")
        if found:
            experiment = found[0].experiment_id
        else:
            experiment = mlflow.create_experiment(name=name, artifact_location=options.get("logging_dir"), tags=tags)
        run_id = self.state.get("run_id") or environment.get("MLFLOW_RUN_ID", options.get("run_id"))
        self.run = mlflow.start_run(run_id=run_id, experiment_id=experiment, run_name=options.get("run_name"), nested=nested,
                                    tags=tags, description=options.get("description"))
        self.state = {"run_id": self.run.info.run_id}

    def config(self, values):
        pairs = [(key, value) for key, value in flat(values).items()]
        for key, value in [pair for pair in pairs if len(str(pair[1])) > 6000]:
            self.mlflow.log_text(str(value), f"params/{key}.txt")
        pairs = [pair for pair in pairs if len(str(pair[1])) <= 6000]
        for start in range(0, len(pairs), 100):
            self.mlflow.log_params(dict(pairs[start:start + 100]))

    def log(self, values, step, kwargs):
        values = flat(values)
        metrics = {key: value for key, value in values.items() if isinstance(value, (int, float))}
        for key, value in values.items():
            if key not in metrics:
                self.mlflow.set_tag("text/" + key, value)
        self.mlflow.log_metrics(metrics, step=step, **kwargs)

    def images(self, images, step, kwargs):
        for key, paths in images.items():
            for path in paths:
                self.mlflow.log_artifact(path, "images/" + key.replace("/", "~"))

    def table(self, key, columns, data, step, kwargs):
        self.mlflow.log_table({name: [row[i] for row in data] for i, name in enumerate(columns)}, key + ".json")

    def artifact(self, path, artifact_path):
        self.mlflow.log_artifact(local_path=path, artifact_path=artifact_path or None)

    def finish(self, end):
        if end == "finished":
            self.mlflow.end_run()
        else:
            self.mlflow.end_run(status="FAILED" if end == "failed" else "KILLED")


class Clearml(Client):
    def start(self):
        from clearml import Task

        self.external = Task.current_task()
        options = dict(self.options)
        options.setdefault("project_name", os.environ.get("CLEARML_PROJECT", self.project))
        options.setdefault("task_name", os.environ.get("CLEARML_TASK", self.project))
        self.run = self.external or Task.init(**options)
        old = self.resumed_from(getattr(self.run, "id", None))
        if old:
            self.run.add_tags([f"resumed_from:{old}"])

    @staticmethod
    def title_series(name):
        for prefix in ("eval", "test", "train"):
            if name.startswith(prefix + "_"):
                return name[len(prefix) + 1:], prefix
        return name, "train"

    def config(self, values):
        self.run.connect_configuration(values)

    def log(self, values, step, kwargs):
        logger = self.run.get_logger()
        for key, value in flat(values).items():
            if not isinstance(value, (int, float)):
                self.dropped(key, value)
                continue
            title, series = self.title_series(key)
            logger.report_scalar(title=title, series=series, value=value, iteration=step, **kwargs)

    def images(self, images, step, kwargs):
        for key, paths in images.items():
            title, series = self.title_series(key)
            for path in paths:
                self.run.get_logger().report_image(title=title, series=series, iteration=step, local_path=path, **kwargs)

    def table(self, key, columns, data, step, kwargs):
        title, series = self.title_series(key)
        self.run.get_logger().report_table(title=title, series=series, table_plot=[columns] + data if columns else data,
                                           iteration=step, **kwargs)

    def artifact(self, path, artifact_path):
        self.run.upload_artifact(os.path.join(artifact_path, os.path.basename(path)), artifact_object=path)

    def finish(self, end):
        if not self.external:
            self.run.close()


class Dvclive(Client):
    step = None

    def start(self):
        from dvclive import Live

        options = {**self.options, "resume": True} if self.state.get("started") else self.options
        self.run = Live(**options)
        self.state = {"started": True}

    def config(self, values):
        self.run.log_params(values)

    def go_to(self, step):
        if self.step is not None and step != self.step:
            self.run.next_step()
        self.step = self.run.step = step

    def log(self, values, step, kwargs):
        from dvclive.plots import Metric

        self.go_to(step)
        for key, value in flat(values).items():
            if Metric.could_log(value):
                self.run.log_metric(key, value, **kwargs)
            else:
                self.dropped(key, value)

    def images(self, images, step, kwargs):
        self.go_to(step)
        for key, paths in images.items():
            for index, path in enumerate(paths):
                self.run.log_image(f"{key}_{index}.png" if len(paths) > 1 else f"{key}.png", path)

    def artifact(self, path, artifact_path):
        self.run.log_artifact(path)

    def finish(self, end):
        if self.step is not None:
            self.run.next_step()
        self.run.end()


CLIENTS = {"wandb": Wandb, "trackio": Trackio, "swanlab": Swanlab, "comet_ml": CometMl, "aim": Aim, "mlflow": Mlflow,
           "clearml": Clearml, "dvclive": Dvclive}


class Journal:
    """The lines of a journal from a place on; None where it ends for now."""

    def __init__(self, path, part, offset):
        self.path, self.part, self.offset = path, part, offset
        self.file = None

    def name(self, part):
        stem, extension = os.path.splitext(self.path)
        return self.path if part == 1 else f"{stem}.{part}{extension}"

    def next(self):
        if self.file is None:
            try:
                self.file = open(self.name(self.part), "rb")
            except FileNotFoundError:
                return None
            self.file.seek(self.offset)
        line = self.file.readline()
        if line.endswith(b"\n"):
            self.offset += len(line)
            return line
        self.file.seek(self.offset)
        if not line and os.path.exists(self.name(self.part + 1)) and not self.file.read(1):
            self.file.close()
            self.file, self.part, self.offset = None, self.part + 1, 0
            return self.next()
        self.file.seek(self.offset)
        return None


def deliver(client, name, record, folder):
    """Hands one record over; True for the run's end."""
    op, step = record["op"], record.get("step")
    if name not in record.get("only", [name]):
        return False
    kwargs = record.get("kwargs", {}).get(name) or {}
    absolute = lambda path: path if os.path.isabs(path) else os.path.join(folder, path)
    arguments = None
    if op == "log":
        arguments = (decoded(record["values"]), step, kwargs)
    elif op == "config":
        arguments = (record["config"],)
    elif op == "images":
        arguments = ({key: [absolute(path) for path in paths] for key, paths in record["images"].items()}, step, kwargs)
    elif op == "table":
        arguments = (record["key"], record["columns"], record["data"], step, kwargs)
    elif op == "artifact":
        arguments = (absolute(record["path"]), record.get("artifact_path", ""))
    elif op == "finish":
        client.finish(record.get("end", "finished"))
        return True
    elif op == "call":
        function = record["function"]
        if function.startswith("_"):
            raise ValueError(f"{function!r} is no public function")
        getattr(client.run, function)(*record.get("arguments", []), **record.get("keywords", {}))
        return False
    elif op in ("histogram", "graph", "embedding"):
        arguments = ()
    if arguments is None:
        return False
    method = getattr(client, op, None)
    if method is None:
        if op not in client.warned:
            client.warned.add(op)
            reply(warning=f"records of the kind '{op}' cannot be shown; they are in the journal")
        return False
    method(*arguments)
    return False


def main():
    facts = json.loads(sys.argv[1])
    name, folder = facts["name"], os.path.dirname(facts["journal"])
    reply(starting=name)
    client = CLIENTS[name](facts)
    try:
        client.start()
    except ImportError as error:
        return reply(fatal=f"{sys.executable} lacks {name}: {error}. Install it: {sys.executable} -m pip install {name.replace('_', '-')}")
    except Exception as error:
        return reply(fatal=f"{name} cannot start: {type(error).__name__}: {error}")
    journal = Journal(facts["journal"], facts["part"], facts["offset"])
    acknowledge = lambda **more: reply(part=journal.part, offset=journal.offset, state=client.state, **more)
    acknowledge()
    said, ended, closed = time.monotonic(), False, False
    while not ended:
        line = journal.next()
        if line is None:
            if closed:
                client.finish("crashed")
                break
            closed = bool(select.select([0], [], [], 0.1)[0]) and not os.read(0, 4096)
        else:
            op = None
            try:
                record = json.loads(line)
                op = record["op"]
                ended = deliver(client, name, record, folder)
            except Exception as error:
                if op is not None:
                    reply(error=f"{type(error).__name__}: {error}", op=op)
                    ended = op == "finish"
        if time.monotonic() - said > 1:
            acknowledge()
            said = time.monotonic()
    acknowledge(done=True)


main()
