// Validation and predictions of a Learner. See learner.h and predictions.h.
#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>
#include <iomanip>
#include <iostream>

#include "hasten/learner/callbacks/predictions.h"
#include "hasten/learner/distributed.h"
#include "hasten/learner/recorder.h"
#include "learner/checkpoint.h"
#include "learner/learner_impl.h"
#include "learner/sample_tables.h"

namespace hasten::learner {
namespace {

std::vector<std::string> left_out(const Callbacks& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) {
    if (entry.callback->removed_for_predictions()) names.emplace_back(entry.callback->name());
  }
  return names;
}

}  // namespace

void GatherPreds::before_validate(Learner& /*learn*/) {
  for (auto* parts : {&inputs, &preds, &targets, &decoded, &losses}) parts->clear();
}

void GatherPreds::after_batch(Learner& learn) {
  if (learn.training() || learn.is_unwinding() || learn.predictions().empty()) return;
  const at::NoGradGuard no_grad;
  const auto& accelerator = learn.accelerator();
  const auto all = [&](const at::Tensor& tensor) { return accelerator.gather_for_metrics(tensor.detach()).cpu(); };
  const auto& loss = learn.loss_func();
  const auto& prediction = learn.predictions().front();
  const auto activated = options.act ? options.act(prediction) : loss ? loss.activation(prediction) : prediction;
  if (options.with_input) inputs.push_back(all(learn.inputs().front()));
  if (options.with_decoded) decoded.push_back(all(loss ? loss.decodes(activated) : activated));
  if (options.with_preds) preds.push_back(all(activated));
  const auto write = [&](const at::Tensor& own, const std::filesystem::path& folder) {
    if (folder.empty()) return;
    const auto whole = all(own);
    if (!accelerator.is_main_process()) return;
    // A copy, as a slice would bring its whole storage along.
    const auto bytes = torch::jit::pickle_save(whole.clone(at::MemoryFormat::Contiguous));
    write_file(folder / text(learn.iter()), {bytes.begin(), bytes.end()});
  };
  write(prediction, options.save_preds);
  if (learn.targets().empty()) return;
  const auto& target = learn.targets().front();
  if (options.with_targs) targets.push_back(all(target));
  write(target, options.save_targs);
  if (!options.with_loss) return;
  auto values = loss.compute(prediction, target, Reduction::kNone);
  // Gives a number for each sample if a sample has several pixels or values.
  const int64_t samples = prediction.size(0);
  if (values.numel() != samples) values = values.reshape({samples, -1}).mean(1);
  losses.push_back(all(values.reshape({samples})));
}

at::Tensor GatherPreds::joined(const std::vector<at::Tensor>& parts) const {
  return parts.empty() ? at::Tensor() : at::cat(parts, options.concat_dim);
}

Loader Learner::Impl::loader_of(int ds_idx, const std::optional<Loader>& given, bool reorder) const {
  if (given) return *given;
  if (ds_idx != 0 && ds_idx != 1) {
    throw UsageError(Origin{"learner"}, "ds_idx ", ds_idx,
                     "; expected 0 for the training data or 1 for the validation data.");
  }
  const auto& loader = ds_idx == 0 ? loaders.train : loaders.valid;
  if (!loader)
    throw UsageError(Origin{"learner"}, "no ", ds_idx == 0 ? "training" : "validation",
                     " data; give a loader, or set Loaders.");
  return reorder ? loader.in_order() : loader;
}

void Learner::Impl::validate(const Loader& loader, bool inner) {
  const LoopState before = state;
  auto other = std::exchange(other_loader, nullptr);
  const auto leave = c10::make_scope_exit([&] {
    other_loader = std::move(other);
    state = before;
  });
  other_source = loader;
  state.training = false;
  if (!inner) {
    loop.validate();
    return;
  }
  // A loop inside the running one: its cancels and open scopes are its own, and modules go on in the modes they had.
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes;
  for (auto& one : model.module()->modules()) modes.emplace_back(one, one->is_training());
  Loop outer = std::exchange(loop, Loop(*this));
  PreparedLoader* const pass = std::exchange(pass_, nullptr);
  const bool open = std::exchange(pass_open_, false);
  const auto back = c10::make_scope_exit([&] {
    loop = outer;
    pass_ = pass;
    pass_open_ = open;
    for (const auto& [module, training] : modes) module->train(training);
  });
  loop.validation_only();
}

std::vector<double> Learner::validate(const ValidateOptions& o) const {
  const auto loader = impl_->loader_of(o.ds_idx, o.loader, true);
  const Restore quiet(impl_->logging, false);
  const Restore kind(impl_->pass_kind, PassKind::kValidate);
  added_cbs(o.cbs, [&] { impl_->validate(loader, false); });
  return recorder().final_record();
}

Predictions Learner::get_preds(const PredsOptions& o) const {
  if (o.with_loss && !loss_func()) {
    throw UsageError(Origin{"learner"},
                     "get_preds with losses of a Learner whose loss takes all outputs; expected LearnerOptions::loss.");
  }
  const auto loader = impl_->loader_of(o.ds_idx, o.loader, o.reorder);
  const auto gather = std::make_shared<GatherPreds>(o);
  const Restore quiet(impl_->logging, false);
  const Restore kind(impl_->pass_kind, PassKind::kPredictions);
  removed_cbs(left_out(impl_->entries), [&] {
    auto callbacks = o.cbs;
    callbacks.push_back(entry_of(gather));
    added_cbs(callbacks, [&] { impl_->validate(loader, o.inner); });
  });
  return {.inputs = gather->joined(gather->inputs),
          .preds = gather->joined(gather->preds),
          .targets = gather->joined(gather->targets),
          .decoded = gather->joined(gather->decoded),
          .losses = gather->joined(gather->losses)};
}

Prediction Learner::predict(const std::vector<at::Tensor>& inputs) const {
  Batch batch;
  for (const auto& input : inputs) batch.inputs.push_back(input.unsqueeze(0));
  const auto preds =
      get_preds({.loader = Loader(std::vector<Batch>(static_cast<size_t>(distributed_world_size(*this)), batch)),
                 .with_decoded = true});
  Prediction result{.label = preds.decoded[0], .probabilities = preds.preds[0]};
  const auto& vocab = loaders().vocab;
  const bool is_class = result.label.dim() == 0 && !result.label.is_floating_point();
  if (is_class && result.label.item<int64_t>() >= 0 &&
      static_cast<size_t>(result.label.item<int64_t>()) < vocab.size()) {
    result.decoded = vocab[static_cast<size_t>(result.label.item<int64_t>())];
  } else {
    result.decoded = text(result.label);
    if (is_class) result.decoded = text(result.label.item<int64_t>());
  }
  return result;
}

Predictions Learner::tta(const TtaOptions& o) const {
  if (o.n < 1 || !loaders().augment) {
    throw UsageError(Origin{"learner"}, "tta with n ", o.n, loaders().augment ? "" : " and without Loaders::augment",
                     "; expected at least one pass and an augmentation.");
  }
  struct Augment : Callback {
    explicit Augment(std::function<Batch(const Batch&)> given) : change(std::move(given)) {}
    std::string_view name() const override { return "tta"; }
    int order() const override { return -100; }
    void before_batch(Learner& learn) override { learn.impl().state.batch = change(learn.impl().state.batch); }
    std::function<Batch(const Batch&)> change;
  };
  auto plain = get_preds({.ds_idx = o.ds_idx, .loader = o.loader});
  std::vector<at::Tensor> passes;
  for (int64_t i = 0; i < o.n; ++i) {
    passes.push_back(
        get_preds({.ds_idx = o.ds_idx, .loader = o.loader, .cbs = callbacks(Augment(loaders().augment))}).preds);
  }
  const auto all = at::stack(passes);
  if (o.use_max)
    plain.preds = at::stack({std::get<0>(all.max(0)), plain.preds}).amax(0);
  else
    plain.preds = at::lerp(all.mean(0), plain.preds, o.beta);
  return plain;
}

std::string Learner::show_results(int64_t num_samples) const {
  const auto results = get_preds({.with_input = accelerator().trackers().is_used(), .with_decoded = true});
  const auto& vocab = loaders().vocab;
  const auto shown = [&](const at::Tensor& value) { return sample_text(value, vocab); };
  std::string table = "target              prediction\n";
  for (int64_t i = 0; i < std::min(num_samples, results.decoded.size(0)); ++i) {
    const auto target = results.targets.defined() ? shown(results.targets[i]) : std::string("-");
    table += target + std::string(target.size() < 20 ? 20 - target.size() : 1, ' ') + shown(results.decoded[i]) + "\n";
  }
  log(table);
  auto& trackers = accelerator().trackers();
  if (trackers.is_running()) show_in_trackers(trackers, loaders(), results, num_samples);
  return table;
}

std::string Learner::summary() const {
  std::ostringstream table;
  table.imbue(std::locale::classic());
  int64_t total = 0, trained = 0;
  table << std::left << std::setw(40) << "layer" << std::setw(28) << "shapes" << std::setw(16) << "parameters"
        << "trainable\n";
  for (const auto& item : impl_->model.module()->named_modules("", false)) {
    if (!item.value()->children().empty()) continue;
    int64_t own = 0, own_trained = 0;
    std::string shapes;
    for (const auto& parameter : item.value()->parameters(false)) {
      shapes += text(shapes.empty() ? "" : " ", parameter.sizes());
      own += parameter.numel();
      own_trained += parameter.requires_grad() ? parameter.numel() : 0;
    }
    table << std::setw(40) << item.key() + " " + item.value()->name().substr(item.value()->name().rfind(':') + 1)
          << std::setw(28) << shapes << std::setw(16) << own
          << (own == 0             ? ""
              : own_trained == own ? "yes"
              : own_trained == 0   ? "no"
                                   : "partly")
          << "\n";
  }
  for (const auto& parameter : impl_->model.module()->parameters()) {
    total += parameter.numel();
    trained += parameter.requires_grad() ? parameter.numel() : 0;
  }
  table << "total " << total << ", trainable " << trained << ", loss " << (loss_func() ? loss_func().name() : "own")
        << "\n";
  return table.str();
}

}  // namespace hasten::learner
