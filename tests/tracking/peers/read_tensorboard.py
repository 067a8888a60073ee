"""Prints what TensorBoard's own reader finds in a folder, as JSON."""
import json
import sys

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import plugin_data_pb2

reader = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={name: 0 for name in ("scalars", "images", "histograms", "tensors")})
reader.Reload()
tags = reader.Tags()
found = {"scalars": {}, "texts": {}, "images": {}, "histograms": {}, "hparams": {}, "graph": bool(tags["graph"])}
for tag in tags["scalars"]:
    found["scalars"][tag] = [[event.step, repr(event.value)] for event in reader.Scalars(tag)]
for tag in tags["tensors"]:
    metadata = reader.SummaryMetadata(tag).plugin_data.plugin_name
    for event in reader.Tensors(tag):
        proto = event.tensor_proto
        if metadata == "text":
            found["texts"].setdefault(tag, []).append([event.step, proto.string_val[0].decode()])
        elif metadata == "scalars":
            found["scalars"].setdefault(tag, []).append([event.step, repr(proto.double_val[0])])
for tag in tags["images"]:
    found["images"][tag] = [[event.step, event.width, event.height] for event in reader.Images(tag)]
for tag in tags["histograms"]:
    value = reader.Histograms(tag)[0].histogram_value
    found["histograms"][tag] = [value.min, value.max, value.num, value.sum, len(value.bucket_limit), len(value.bucket)]
if tags["graph"]:
    found["nodes"] = [node.name for node in reader.Graph().node]
try:
    for tag, content in reader.PluginTagToContent("hparams").items():
        data = plugin_data_pb2.HParamsPluginData.FromString(content)
        kind = data.WhichOneof("data")
        found["hparams"][kind] = sorted(data.session_start_info.hparams) if kind == "session_start_info" else True
        if kind == "experiment":
            found["hparams"]["metrics"] = [info.name.tag for info in data.experiment.metric_infos]
except KeyError:
    pass
print(json.dumps(found))
