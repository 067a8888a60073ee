// TensorBoard's messages as bytes: a Summary with one value of each kind, and the Event round it. Pure functions; the
// bytes are those of torch.utils.tensorboard. The field numbers are those of TensorFlow's summary.proto and
// event.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/tracking/journal/value.h"

namespace hasten::tracking::summary {

std::string scalar(std::string_view tag, float value);
/// Returns a number with 53 bits, in the form of TensorBoard's own writer (a tensor under the plugin "scalars").
std::string double_scalar(std::string_view tag, double value);
std::string text(std::string_view tag, std::string_view value);
std::string image(std::string_view tag, int width, int height, int channels, std::string_view png);
std::string histogram(std::string_view tag, const Histogram& histogram);

/// Returns the three Summaries of hyper-parameters. Leaves are numbers, bools and texts; others are given as their JSON
/// text.
std::string hparams_experiment(const core::Value& config, const std::vector<std::string>& metrics);
std::string hparams_start(const core::Value& config, double time_s);
std::string hparams_end(bool success, double time_s);

/// GraphDef.
std::string graph(const std::vector<GraphNode>& nodes);

/// Event messages, not yet framed.
std::string event(double time_s, int64_t step, std::string_view summary);
std::string version_event(double time_s);
std::string graph_event(double time_s, std::string_view graph);
/// Makes TensorBoard drop what other files of the run have at `step` and later.
std::string start_event(double time_s, int64_t step);

/// Appends record(event(time_s, step, scalar(tag, value))), made in one pass.
void append_scalar_record(std::string& out, double time_s, int64_t step, std::string_view tag, float value);

/// Returns the record of a TFRecord file: length, its checksum, data, its checksum.
std::string record(std::string_view data);

}  // namespace hasten::tracking::summary
