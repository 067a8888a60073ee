// Learner::Impl: what copies of a Learner share, and the loop's actions over an Accelerator.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/learner/learner.h"
#include "learner/loop.h"
#include "hasten/process/stop.h"

namespace hasten::learner {

/// Model, optimizer and loaders as one Accelerator has prepared them. The order of epochs goes on from fit to fit.
struct Engine {
  explicit Engine(Accelerator with) : accelerator(std::move(with)) {}

  Accelerator accelerator;
  std::optional<parallel::PreparedModel<std::shared_ptr<torch::nn::Module>>> model = {};
  std::shared_ptr<torch::optim::Optimizer> prepared_for = {};
  std::optional<optim::PreparedOptimizer<torch::optim::Optimizer>> optimizer = {};
  std::unique_ptr<PreparedLoader> train = {}, valid = {};
  /// Order of the training loader.
  LoaderOrder order = LoaderOrder::kTurns;
  /// Learner::Impl::data_version that the loaders are of.
  int64_t data_version = 0;
};

/// State that changes in a loop. A loop inside a loop sets it aside.
struct LoopState {
  int64_t epoch = 0, n_epoch = 1, iter = 0, n_iter = 0, train_iter = 0;
  double pct_train = 0;
  bool training = false;
  Batch batch = {};
  Tensors predictions = {};
  at::Tensor loss = {}, loss_grad = {};
  /// The loss as it was computed, until Learner::loss() is called and detaches it.
  at::Tensor attached_loss = {};
};

struct Learner::Impl final : LoopActions {
  Impl(Loaders own_loaders, AnyModel own_model, LearnerOptions own_options);

  // ---- Callbacks (learner.cpp).
  void add(CallbackEntry entry);
  CallbackEntry remove(std::string_view name);
  void arrange();
  void event(Event event) override;
  void call(Callback& callback, Event event);
  [[noreturn]] void rethrow(std::string_view callback, Event event) const;

  // ---- The loop's actions (loop_actions.cpp).
  void begin_epoch(int64_t epoch) override;
  void begin_batches() override;
  bool next_batch() override;
  void end_batches() noexcept override;
  void forward() override;
  bool has_targets() const override { return !state.batch.targets.empty(); }
  void compute_loss() override;
  void backward() override;
  bool steps() const override;
  void step() override;
  void zero_grad() override;

  Engine& engine();
  /// Whether the Accelerator makes one step of several batches.
  bool accumulates() const { return current && current->accelerator.options().gradient_accumulation_steps > 1; }
  /// Opens the Accelerator's scope of a training batch, of which it makes a step together with others.
  void open_window();
  /// Returns the engine's loaders, prepared when they are needed first; null without data.
  PreparedLoader* train_loader();
  PreparedLoader* valid_loader();
  void use(std::shared_ptr<Engine> other);
  Tensors call_model(const Tensors& inputs);
  at::Tensor loss_of(const Tensors& outputs, const Tensors& targets) const;
  void require_ready();
  void forget();

  // ---- Fits (fit.cpp).
  void create_opt();
  void fit(int64_t num_epochs, const std::optional<HyperValue>& lr, const FitOptions& fit_options);
  bool in_pass() const noexcept { return pass_ != nullptr; }
  /// A validation pass over a loader; `inner`: without the events of fit and epoch.
  void validate(const Loader& loader, bool inner);
  Loader loader_of(int ds_idx, const std::optional<Loader>& given, bool reorder) const;

  /// Reports uncaught exceptions where no Accelerator does.
  std::shared_ptr<const void> error_report = {};
  Loaders loaders;
  /// Counts set_loaders, so that every engine prepares the new ones.
  int64_t data_version = 0;
  AnyModel model;
  LearnerOptions options;
  std::vector<LayerGroup> groups;
  size_t frozen = 0;
  std::shared_ptr<torch::optim::Optimizer> optimizer = {};
  Hypers hypers = {};
  LoopState state = {};
  Loop loop{*this};
  bool logging = true, bars = true;
  /// The pass that runs.
  PassKind pass_kind = PassKind::kFit;
  /// Backward weighs a batch by its samples; off where a callback does.
  bool weighs_batches = true;
  /// Gradients of a backward have not been stepped yet.
  bool gradients_wait = false;
  /// The default one, of LearnerOptions::accelerator or this process alone; and the one in use.
  std::shared_ptr<Engine> own_engine = {}, current = {};
  /// Data of the next validation pass in the place of the engine's, prepared when the pass begins.
  std::optional<Loader> other_source = {};
  std::unique_ptr<PreparedLoader> other_loader = {};
  /// The range test trains on a loader of its own, so that the order of later fits does not move.
  bool probing = false;
  std::unique_ptr<PreparedLoader> probe = {};
  /// Batches before the position that the next training pass goes on from; the loader has it already.
  int64_t resume_iter = 0;

  Callbacks entries = {};
  using Lists = std::array<std::vector<CallbackEntry>, kNumEvents>;
  std::shared_ptr<const Lists> lists = std::make_shared<Lists>();
  /// A handle that does not own: for callbacks.
  Learner self = {};

 private:
  PreparedLoader* pass_ = nullptr;
  bool pass_open_ = false;
  std::optional<parallel::NoSync> window_ = {};
  /// Position in a pass over a loader that does not give it to the Accelerator itself.
  training::LoaderPosition position_ = {};
};

/// Puts a value back at the end of a scope.
template <class T>
class Restore {
 public:
  Restore(T& place, T value) : place_(place), before_(std::exchange(place, std::move(value))) {}
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;
  ~Restore() { place_ = std::move(before_); }

 private:
  T& place_;
  T before_;
};

}  // namespace hasten::learner
