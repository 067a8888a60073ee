// See learner/callbacks/tracking.h.
#include "hasten/learner/callbacks/tracking.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <fstream>

#include "hasten/learner/learner.h"
#include "hasten/learner/recorder.h"
#include "hasten/tracking/run/trackers.h"
#include "learner/sample_tables.h"

namespace hasten::learner {
namespace {

tracking::Values values_of(const TrackedValues& values) {
  tracking::Values result;
  for (const auto& [name, value] : values) result.emplace_back(name, value);
  return result;
}

/// Returns the trackers of the fit's Accelerator. Throws: UsageError if no run has begun.
tracking::Trackers& running_trackers(Learner& learn, std::string_view callback) {
  auto& trackers = learn.accelerator().trackers();
  if (learn.accelerator().is_main_process() && !trackers.is_running()) {
    throw UsageError(
        Origin{"learner"}, callback,
        " without a run; set AcceleratorOptions::log_with and call init_trackers of the Accelerator that the fit runs "
        "on first.");
  }
  return trackers;
}

/// Returns the modules as nodes: names with "/", each fed by the one before it among its siblings.
std::vector<tracking::GraphNode> graph_of(const torch::nn::Module& module) {
  std::vector<tracking::GraphNode> nodes{{"input", "Placeholder", {}}};
  for (const auto& item : module.named_modules("", false)) {
    if (!item.value()->children().empty()) continue;
    auto name = item.key();
    std::replace(name.begin(), name.end(), '.', '/');
    nodes.push_back({name, item.value()->name().substr(item.value()->name().rfind(':') + 1), {nodes.back().name}});
  }
  return nodes;
}

}  // namespace

void Tracking::before_fit(Learner& learn) {
  if (!sink) running_trackers(learn, name());
}

void Tracking::before_train(Learner& /*learn*/) {
  trained_ = true;
}

void Tracking::send(Learner& learn, const TrackedValues& values) {
  if (sink)
    sink(values, step);
  else
    learn.accelerator().log(values_of(values), step);
}

void Tracking::after_batch(Learner& learn) {
  if (!learn.training() || learn.is_unwinding()) return;
  ++step;
  if (options.every == 0 || step % options.every != 0 || !learn.accelerator().is_main_process()) return;
  TrackedValues values{{"train_loss", learn.recorder().smooth_loss()}};
  if (options.hypers) {
    for (const auto& name : learn.hypers().names()) {
      const auto groups = learn.hypers().get(name);
      for (size_t i = 0; i < groups.size(); ++i) values.emplace_back(text(name, "_", i), groups[i]);
    }
  }
  send(learn, values);
}

void Tracking::after_epoch(Learner& learn) {
  if (!std::exchange(trained_, false) || learn.is_unwinding() || !learn.accelerator().is_main_process()) return;
  const auto& row = learn.recorder().final_record();
  const auto columns = learn.recorder().columns();
  TrackedValues values{{"epoch", static_cast<double>(learn.epoch())}};
  for (size_t i = 0; i < std::min(row.size(), columns.size()); ++i) values.emplace_back(columns[i], row[i]);
  send(learn, values);
}

tracking::Trackers& TensorBoard::trackers(Learner& learn) const {
  return own_ ? *own_ : learn.accelerator().trackers();
}

void TensorBoard::send(Learner& learn, const TrackedValues& values) {
  trackers(learn).log(values_of(values), step);
}

void TensorBoard::before_fit(Learner& learn) {
  if (board.projector && board.log_dir.empty()) {
    throw UsageError(Origin{"learner"},
                     "tensor_board with a projector and no log_dir; set TensorBoardOptions::log_dir.");
  }
  if (board.log_dir.empty()) running_trackers(learn, name());
  if (!learn.accelerator().is_main_process()) return;
  if (!own_ && !board.log_dir.empty()) {
    tracking::TrackersSetup setup{
        .log_with = {"tensorboard"}, .logging_dir = board.log_dir, .run_key = tracking::make_run_id()};
    setup.options.per_rank_metrics = false;
    own_ =
        std::shared_ptr<tracking::Trackers>(new tracking::Trackers(std::move(setup)), [](tracking::Trackers* trackers) {
          trackers->finish();
          delete trackers;
        });
    own_->init("learner");
  }
  if (board.trace_model && !std::exchange(traced_, true)) trackers(learn).log_graph(graph_of(*learn.model().module()));
}

void TensorBoard::before_validate(Learner& /*learn*/) {
  inputs_.clear();
  targets_.clear();
  predictions_.clear();
}

void TensorBoard::after_batch(Learner& learn) {
  Tracking::after_batch(learn);
  if (learn.training() || learn.is_unwinding() || learn.predictions().empty() || !learn.accelerator().is_main_process())
    return;
  constexpr size_t kMostVectors = 1000;
  const bool requested =
      (board.log_preds && learn.iter() == 0) || (board.projector && predictions_.size() < kMostVectors);
  if (!requested) return;
  const auto& prediction = learn.predictions().front();
  const auto rows = board.projector ? prediction.size(0) : std::min(board.n_preds, prediction.size(0));
  for (int64_t i = 0; i < rows; ++i) {
    predictions_.push_back(prediction[i].detach().cpu());
    if (!learn.targets().empty()) targets_.push_back(learn.targets().front()[i].cpu());
    if (learn.iter() == 0 && i < board.n_preds) inputs_.push_back(learn.inputs().front()[i].detach().cpu());
  }
}

void TensorBoard::show_predictions(Learner& learn) {
  const auto rows = std::min(inputs_.size(), static_cast<size_t>(board.n_preds));
  const auto first = [rows](const std::vector<at::Tensor>& from) {
    return from.size() < rows ? at::Tensor() : at::stack(at::TensorList(from.data(), rows));
  };
  Predictions samples{.inputs = first(inputs_), .targets = first(targets_), .decoded = first(predictions_)};
  if (const auto& loss = learn.loss_func()) samples.decoded = loss.decodes(loss.activation(samples.decoded));
  show_in_trackers(trackers(learn), learn.loaders(), samples, board.n_preds, step);
}

void TensorBoard::after_epoch(Learner& learn) {
  Tracking::after_epoch(learn);
  if (board.log_preds && !inputs_.empty() && !learn.is_unwinding()) show_predictions(learn);
}

void TensorBoard::write_projector(const Learner& learn) const {
  std::filesystem::create_directories(board.log_dir);
  std::ofstream vectors(board.log_dir / "predictions.tsv"), names(board.log_dir / "targets.tsv"),
      config(board.log_dir / "projector_config.pbtxt");
  vectors.imbue(std::locale::classic());
  for (size_t i = 0; i < predictions_.size(); ++i) {
    const auto row = predictions_[i].flatten().to(at::kDouble);
    for (int64_t j = 0; j < row.numel(); ++j) vectors << (j == 0 ? "" : "\t") << row.const_data_ptr<double>()[j];
    vectors << '\n';
    names << (i < targets_.size() ? sample_text(targets_[i], learn.loaders().vocab) : "-") << '\n';
  }
  config << "embeddings {\n  tensor_name: \"predictions\"\n  tensor_path: \"predictions.tsv\"\n  metadata_path: "
            "\"targets.tsv\"\n}\n";
  if (!vectors || !names || !config)
    throw DataError(Origin{"learner"}, board.log_dir.string(), "cannot write the projector's files into ",
                    board.log_dir.string());
}

void TensorBoard::after_fit(Learner& learn) {
  if (!learn.accelerator().is_main_process()) return;
  if (board.projector && !learn.is_unwinding() && !predictions_.empty()) write_projector(learn);
}

ShowGraph::ShowGraph(int64_t batches) : every(batches) {
  if (batches < 1)
    throw UsageError(Origin{"learner"}, "ShowGraph of every ", batches, " batches; expected at least 1.");
}

void ShowGraph::after_batch(Learner& learn) {
  if (!learn.training() || learn.is_unwinding()) return;
  if (++step % every != 0 || !learn.accelerator().is_main_process()) return;
  running_trackers(learn, name()).log({{"graph", {{"train", learn.recorder().smooth_loss()}}}}, step);
}

void ShowGraph::after_epoch(Learner& learn) {
  if (step == 0 || learn.is_unwinding() || !learn.accelerator().is_main_process()) return;
  running_trackers(learn, name()).log({{"graph", {{"valid", learn.recorder().value_of("valid_loss")}}}}, step);
}

}  // namespace hasten::learner
