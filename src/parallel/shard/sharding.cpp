// The collective step, and queries about gradients and state; see hasten/parallel/shard/sharding.h.
#include "hasten/parallel/shard/sharding.h"

#include <c10/util/ScopeExit.h>
#include <torch/types.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "compat/versions.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/compat/storage_watch.h"
#include "hasten/core/error.h"
#include "hasten/parallel/clip/clip.h"
#include "parallel/shard/host_tiles.h"
#include "parallel/shard/model_exchange.h"
#include "parallel/shard/program_writes.h"
#include "parallel/shard/sliced_step.h"
#include "parallel/shard/step_threads.h"
#include "parallel/shard/tiled_state.h"

namespace hasten::parallel {

using namespace shard;

struct Sharding::Impl {
  /// Where optimizer state rests between steps; null: in memory.
  std::unique_ptr<TiledState> tiles;
  std::vector<std::weak_ptr<ModelExchange>> exchanges;
  /// Where models without memory go.
  c10::Device device{at::kCPU};

  std::vector<std::shared_ptr<ShardedModel>> alive() {
    std::vector<std::shared_ptr<ShardedModel>> all;
    for (const auto& weak : exchanges) {
      const auto exchange = weak.lock();
      if (exchange && exchange->model()) all.push_back(exchange->model());
    }
    return all;
  }

  std::vector<std::shared_ptr<RegionModel>> regions() {
    std::vector<std::shared_ptr<RegionModel>> all;
    for (const auto& model : alive()) {
      if (auto region = std::dynamic_pointer_cast<RegionModel>(model)) all.push_back(std::move(region));
    }
    return all;
  }

  /// Sums that a window makes once are made now, if it is not at its end. Collective: yes.
  void complete_gradients() {
    for (const auto& model : alive()) model->complete_gradients();
  }

  /// Ranks that share memory meet before one reads another's part. On devices streams keep the order.
  void meet(const comm::Group& group) {
    if (alive().empty() || !regions().empty()) group.barrier();
  }

  /// Made anew where a model has come, gone or been planned anew.
  const SplitParameters& split() {
    std::vector<Planned> now;
    const auto all = alive();
    for (const auto& model : all) now.push_back({model, model->num_plans()});
    if (now == planned_) return split_;
    planned_ = std::move(now);
    split_.clear();
    for (auto& [optimizer, stepped] : stepped_) {
      std::erase_if(stepped, [](const auto& one) { return one.second.parameter.expired(); });
    }
    for (const auto& model : all) {
      const auto whole = deal_whole(model->items(), model->group().world_size());
      for (size_t item = 0; item < model->parameters().size(); ++item) {
        split_[model->parameters()[item].tensor.unsafeGetTensorImpl()] = {model.get(), item, whole[item]};
      }
    }
    return split_;
  }

  /// Returns the ranks whose parts together are whole gradients: all, or one group along ShardOptions::shard_over.
  comm::Group owners(const comm::Group& everyone) {
    const auto all = alive();
    return all.empty() ? everyone : all.front()->group();
  }

  /// Returns true if a model has been planned anew since the optimizer's last step, as far as this rank can find out.
  bool has_other_plans(const torch::optim::Optimizer& optimizer, const SplitParameters& split, StepKind kind) const;
  /// State goes to its new owners. Collective: yes.
  void follow_plans(torch::optim::Optimizer& optimizer, const SplitParameters& split, StepKind kind);
  void note_plans(const torch::optim::Optimizer& optimizer, const SplitParameters& split, StepKind kind);

 private:
  /// The weak references hold the addresses, so that no later model or parameter lies at one of these.
  struct Planned {
    std::weak_ptr<ShardedModel> model;
    int64_t plan = 0;
    bool operator==(const Planned& other) const { return plan == other.plan && model.lock() == other.model.lock(); }
  };
  struct Stepped {
    c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
    int64_t plan = 0;
    ShardInterval interval = {};
  };
  /// The slices that the state of each optimizer is of.
  std::unordered_map<const torch::optim::Optimizer*, std::unordered_map<const c10::TensorImpl*, Stepped>> stepped_;
  std::vector<Planned> planned_;
  SplitParameters split_;
};

namespace {

SplitParameters those_of(const torch::optim::Optimizer& optimizer, const SplitParameters& split) {
  SplitParameters own;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = split.find(parameter.unsafeGetTensorImpl());
      if (found != split.end()) own.insert(*found);
    }
  }
  return own;
}

// Graphs from before the step must not be used after it, as autograd checks by versions. Low-precision copies are
// stale.
void bump_versions(const SplitParameters& split) {
  for (const auto& [impl, place] : split) {
    const at::Tensor& tensor = place.model->parameters()[place.item].tensor;
    compat::bump_version(tensor);
    compat::notify_changed(tensor);
  }
}

ShardedModel::IsStepped stepped_of(ShardedModel& model, const SplitParameters& split, StepKind kind) {
  const auto find = [&model, &split](size_t item) {
    return split.find(model.parameters()[item].tensor.unsafeGetTensorImpl());
  };
  ShardedModel::IsStepped is_stepped{.any = [&split, find](size_t item) { return find(item) != split.end(); }};
  if (kind != StepKind::kElementwise)
    is_stepped.whole_owner = [find](size_t item) { return find(item)->second.whole_owner; };
  return is_stepped;
}

// A rank whose disk fails leaves the step with the others, which learn it here.
void step_together(const comm::Group& group, const std::function<void()>& step) {
  std::exception_ptr error;
  try {
    step();
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  const at::Tensor failed = torch::full({}, error ? group.rank() + 1 : 0, at::kLong);
  const comm::Purpose purpose("step of a sharded optimizer");
  group.all_reduce_(failed, comm::ReduceOp::kMax);
  if (error) std::rethrow_exception(error);
  if (failed.item<int64_t>() == 0) return;
  throw CommError(Origin{"shard", group.rank(), group.world_size()}, "step", "rank ", failed.item<int64_t>() - 1,
                  " could not read or write its optimizer state, so parameters are between two steps. Go on from the "
                  "last checkpoint.");
}

int num_local_ranks(const std::vector<std::shared_ptr<RegionModel>>& models) {
  return models.empty() ? 1 : static_cast<int>(models.front()->region().local_ranks().size());
}

// Whole parameters are nowhere in memory where each owner keeps a part.
void refuse_parts(const SplitParameters& split, StepKind kind, const comm::Group& group) {
  if (kind != StepKind::kWhole) return;
  for (const auto& [impl, place] : split) {
    if (place.model->steps_whole(place.item)) continue;
    throw UsageError(Origin{"shard", group.rank(), group.world_size()}, "this optimizer steps whole parameters, and '",
                     place.model->items()[place.item].name,
                     "' is kept in parts by several owners. Use SGD, Adam, AdamW, Adagrad or RMSprop, or "
                     "ShardStage::kOptimizer (on CPUs ShardOptions::across_hosts = false).");
  }
}

// A parameter's state as this rank has it, in flat tensors of the whole with zeros elsewhere.
struct OwnPieces {
  at::Tensor facts;
  std::vector<at::Tensor> tensors = {};
};

OwnPieces own_pieces(torch::optim::OptimizerParamState* state, size_t num_names, const at::Tensor& parameter,
                     ShardInterval interval) {
  OwnPieces own{torch::zeros({static_cast<int64_t>(num_names) + 1}, at::kLong)};
  for (size_t i = 0; i < num_names; ++i) {
    own.tensors.push_back(at::zeros({parameter.numel()}, parameter.options().requires_grad(false)));
  }
  if (state == nullptr || interval.size() == 0) return own;
  auto* facts = own.facts.mutable_data_ptr<int64_t>();
  size_t i = 0;
  visit_state(*state, [&](const char*, at::Tensor& tensor) {
    if (tensor.defined() && i < num_names) {
      facts[i] = 1;
      const at::Tensor part = cut_state(tensor, parameter.numel(), interval);
      own.tensors[i].narrow(0, interval.begin, interval.size()).copy_(part);
    }
    ++i;
  });
  facts[num_names] = step_of(*state).value_or(-1) + 1;
  return own;
}

struct Move {
  std::string name;
  ShardInterval from, to;
};

// A parameter's state goes from the slices of one plan to those of another. Collective.
void move_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const Move& move,
                const comm::Group& group) {
  auto& states = optimizer.state();
  const auto names = state_names(optimizer);
  const auto found = states.find(parameter.unsafeGetTensorImpl());
  if (names.empty()) {
    throw UsageError(Origin{"shard", group.rank(), group.world_size()}, "the model was changed, and the state of '",
                     move.name, "' is of a class that cannot be moved to its new owner. Make the optimizer anew.");
  }
  auto own = own_pieces(found == states.end() ? nullptr : found->second.get(), names.size(), parameter, move.from);
  const comm::Purpose purpose("move of optimizer state");
  group.all_reduce_(own.facts, comm::ReduceOp::kMax);
  const int64_t* facts = own.facts.const_data_ptr<int64_t>();
  auto state = make_state(optimizer);
  size_t i = 0;
  visit_state(*state, [&](const char*, at::Tensor& tensor) {
    if (facts[i] > 0) {
      group.all_reduce_(own.tensors[i]);
      tensor = own.tensors[i].narrow(0, move.to.begin, move.to.size()).clone();
    }
    ++i;
  });
  const bool any = std::any_of(facts, facts + names.size() + 1, [](int64_t fact) { return fact > 0; });
  if (facts[names.size()] > 0) set_step(*state, facts[names.size()] - 1);
  if (any && move.to.size() > 0) {
    states[parameter.unsafeGetTensorImpl()] = std::move(state);
  } else {
    states.erase(parameter.unsafeGetTensorImpl());
  }
}

// Gradients in the host's one region are each rank's for the part that it owns. Others are whole on each rank.
std::optional<at::Tensor> owned_part(const SplitParameters& split, const at::Tensor& parameter) {
  const auto found = split.find(parameter.unsafeGetTensorImpl());
  if (found == split.end()) return std::nullopt;
  ShardedModel& model = *found->second.model;
  if (!model.splits_gradients() || !model.has_own_gradient(found->second.item)) return std::nullopt;
  const auto interval = model.owned(found->second.item);
  return interval.size() > 0 ? model.gradient_slice(found->second.item, interval) : at::Tensor();
}

}  // namespace

bool Sharding::Impl::has_other_plans(const torch::optim::Optimizer& optimizer, const SplitParameters& split,
                                     StepKind kind) const {
  const auto known = stepped_.find(&optimizer);
  if (known == stepped_.end()) return false;
  return std::any_of(split.begin(), split.end(), [&](const auto& item) {
    const auto before = known->second.find(item.first);
    return before != known->second.end() && (before->second.plan != item.second.model->num_plans() ||
                                             before->second.interval != shard::stepped_interval(item.second, kind));
  });
}

void Sharding::Impl::note_plans(const torch::optim::Optimizer& optimizer, const SplitParameters& split, StepKind kind) {
  auto& stepped = stepped_[&optimizer];
  for (const auto& [parameter, place] : split) {
    const at::Tensor& tensor = place.model->parameters()[place.item].tensor;
    stepped.insert_or_assign(parameter, Stepped{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
                                                place.model->num_plans(), shard::stepped_interval(place, kind)});
  }
}

void Sharding::Impl::follow_plans(torch::optim::Optimizer& optimizer, const SplitParameters& split, StepKind kind) {
  const at::NoGradGuard no_grad;
  auto& stepped = stepped_[&optimizer];
  std::unordered_set<const c10::TensorImpl*> moved;  // a tied weight may be listed twice
  // In the order of the groups, which is that of all ranks.
  for (const auto& param_group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : param_group.params()) {
      const auto place = split.find(parameter.unsafeGetTensorImpl());
      if (place == split.end() || !moved.insert(place->first).second) continue;
      const auto now = shard::stepped_interval(place->second, kind);
      const auto known = stepped.find(place->first);
      const auto from = known == stepped.end() ? now : known->second.interval;
      const auto& model = *place->second.model;
      move_state(optimizer, parameter, {model.items()[place->second.item].name, from, now}, model.group());
    }
  }
}

Sharding::Sharding(comm::Group group, ShardOptions options)
    : group_(group.with_check(false)), options_(std::move(options)), impl_(std::make_unique<Impl>()) {
  const auto& state = options_.optimizer_offload;
  if (state.device != OffloadDevice::kFile) return;
  if (state.path.empty() || state.tile_numel < 1) {
    throw UsageError(Origin{"shard", group_.rank(), group_.world_size()}, "optimizer state is offloaded to files in '",
                     state.path, "' in tiles of ", state.tile_numel,
                     " elements. Name a folder (OffloadOptions::path) and tiles of at least one element.");
  }
  impl_->tiles = std::make_unique<TiledState>(state);
}

Sharding::~Sharding() = default;

bool Sharding::exchanges_each_backward() const noexcept {
  return options_.stage >= ShardStage::kGradients && options_.hold == GradientHold::kSlices;
}

std::shared_ptr<GradientExchange> Sharding::make_exchange(const comm::Group& group) {
  std::erase_if(impl_->exchanges, [](const auto& weak) { return weak.expired(); });
  // The models before this one. Parameters that they share are theirs.
  const auto is_taken = [before = impl_->exchanges](const at::Tensor& tensor) {
    return std::any_of(before.begin(), before.end(), [&](const auto& weak) {
      const auto exchange = weak.lock();
      return exchange && exchange->model() && exchange->model()->holds(tensor);
    });
  };
  auto exchange = std::make_shared<ModelExchange>(group, options_, impl_->device, is_taken);
  impl_->exchanges.push_back(exchange);
  return exchange;
}

void Sharding::set_device(c10::Device device) {
  impl_->device = device;
}

at::Tensor Sharding::full_gradient(const at::Tensor& parameter) const {
  const auto& split = impl_->split();
  const auto found = split.find(parameter.unsafeGetTensorImpl());
  if (found == split.end()) return parameter.grad();
  auto* model = dynamic_cast<DeviceModel*>(found->second.model);
  return model == nullptr ? parameter.grad() : model->full_gradient(found->second.item);
}

namespace {

// The model on a device that holds the parameter, or what shows its memory, in parts.
std::shared_ptr<DeviceModel> in_parts(const std::vector<std::shared_ptr<ShardedModel>>& models,
                                      const at::Tensor& parameter, size_t& item) {
  for (const auto& model : models) {
    auto on_device = std::dynamic_pointer_cast<DeviceModel>(model);
    const auto found = on_device ? on_device->item_of(parameter) : std::nullopt;
    if (!found) continue;
    item = *found;
    return on_device->is_resident(item) ? nullptr : on_device;
  }
  return nullptr;
}

}  // namespace

std::optional<ShardedStatePiece> Sharding::value_part(const at::Tensor& parameter) const {
  size_t item = 0;
  const auto model = in_parts(impl_->alive(), parameter, item);
  if (!model) return std::nullopt;
  const auto interval = model->owned(item);
  ShardedStatePiece piece{model->items()[item].name, {}, interval, parameter.sizes().vec(), {}, parameter};
  if (interval.size() > 0) piece.tensor = model->value_slice(item, interval);
  return piece;
}

bool Sharding::set_value(const at::Tensor& parameter, const at::Tensor& value) const {
  size_t item = 0;
  const auto model = in_parts(impl_->alive(), parameter, item);
  if (model) model->set_value(item, value);
  return model != nullptr;
}

struct WholeParameters::Impl {
  std::vector<std::shared_ptr<DeviceModel>> models;
};

WholeParameters::WholeParameters(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WholeParameters::WholeParameters(WholeParameters&&) noexcept = default;

WholeParameters::~WholeParameters() {
  if (!impl_) return;
  for (const auto& model : impl_->models) model->set_whole(false);
}

WholeParameters Sharding::summon() const {
  auto all = std::make_unique<WholeParameters::Impl>();
  for (const auto& model : impl_->alive()) {
    auto on_device = std::dynamic_pointer_cast<DeviceModel>(model);
    if (!on_device) continue;
    on_device->set_whole(true);
    all->models.push_back(std::move(on_device));
  }
  return WholeParameters(std::move(all));
}

bool Sharding::reads_collectively() const {
  const auto models = impl_->alive();
  return std::any_of(models.begin(), models.end(), [](const auto& model) {
    return dynamic_cast<const DeviceModel*>(model.get()) != nullptr &&
           model->options().stage == ShardStage::kParameters;
  });
}

bool Sharding::steps(const torch::optim::Optimizer& optimizer) const {
  return !those_of(optimizer, impl_->split()).empty();
}

int64_t Sharding::num_private_copies() const {
  int64_t count = 0;
  for (const auto& model : impl_->alive()) count += model->num_private_copies();
  return count;
}

UnitCounts Sharding::unit_counts() const {
  UnitCounts sum;
  for (const auto& model : impl_->alive()) {
    const auto counts = model->unit_counts();
    sum.fills += counts.fills;
    sum.shared += counts.shared;
    sum.pulled_bytes += counts.pulled_bytes;
    sum.max_held_bytes += counts.max_held_bytes;
  }
  return sum;
}

at::Tensor Sharding::step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& own_step) {
  const StepKind kind = step_kind(optimizer);
  if (kind == StepKind::kAll) {
    throw UsageError(Origin{"shard", group_.rank(), group_.world_size()},
                     "LBFGS needs all parameters at once and cannot step slices. Use ShardStage::kNone.");
  }
  const auto split = those_of(optimizer, impl_->split());
  const auto models = impl_->alive();
  const auto regions = impl_->regions();
  // Ranks that share memory meet round a step.
  const bool meets = models.empty() || !regions.empty();
  refuse_parts(split, kind, group_);
  for (const auto& model : models) model->begin_step();
  const auto at_end = c10::make_scope_exit([&] {
    for (const auto& model : models) model->end_step();
  });
  bool moves = impl_->has_other_plans(optimizer, split, kind);
  // Returns when all ranks have come: nothing reads the parameters from here on.
  if (meets) moves = take_in_program_writes(regions, group_, moves);
  if (moves) impl_->follow_plans(optimizer, split, kind);
  at::Tensor loss;
  if (impl_->tiles && kind == StepKind::kElementwise) {
    step_together(group_, [&] { loss = impl_->tiles->step(optimizer, split, own_step); });
  } else if (kind == StepKind::kElementwise && steps_on_host(split)) {
    const StepThreads threads(options_.optimizer_offload, num_local_ranks(regions));
    loss = step_by_tiles(optimizer, split, own_step, options_.optimizer_offload.tile_numel);
  } else {
    const StepThreads threads(options_.optimizer_offload, num_local_ranks(regions));
    const SlicedStep slices(optimizer, split, kind);
    loss = own_step();
  }
  for (const auto& model : models) model->exchange_stepped(stepped_of(*model, split, kind));
  // Whole parameters were stepped by other ranks than those that cast their parts.
  const comm::Purpose purpose("step of a sharded optimizer");
  if (meets && kind == StepKind::kWhole && !options_.param_dtype.empty()) group_.barrier();
  for (const auto& model : models) model->finish_step();
  if (meets) group_.barrier();
  bump_versions(split);
  impl_->note_plans(optimizer, split, kind);
  return loss;
}

bool Sharding::is_copy() const {
  const auto all = impl_->alive();
  return std::any_of(all.begin(), all.end(),
                     [](const auto& model) { return model->replicas() != nullptr && model->replicas()->rank() > 0; });
}

std::optional<ShardInterval> Sharding::stepped_interval(const torch::optim::Optimizer& optimizer,
                                                        const at::Tensor& parameter) const {
  const auto& all = impl_->split();
  const auto place = all.find(parameter.unsafeGetTensorImpl());
  if (place == all.end()) return std::nullopt;
  return shard::stepped_interval(place->second, step_kind(optimizer));
}

std::vector<ShardedStatePiece> Sharding::sharded_state(const torch::optim::Optimizer& optimizer) const {
  const auto& all = impl_->split();
  const StepKind kind = step_kind(optimizer);
  std::vector<ShardedStatePiece> pieces;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto place = all.find(parameter.unsafeGetTensorImpl());
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (place == all.end() || state == optimizer.state().end() || state->second == nullptr) continue;
      const auto interval = shard::stepped_interval(place->second, kind);
      const auto add = [&](const char* name, at::Tensor& tensor) {
        if (!tensor.defined()) return;
        pieces.push_back({place->second.model->items()[place->second.item].name, name, interval,
                          parameter.sizes().vec(), cut_state(tensor, parameter.numel(), interval), parameter});
      };
      if (visit_state(*state->second, add)) continue;
      throw UsageError(Origin{"shard", group_.rank(), group_.world_size()}, "the state of '",
                       place->second.model->items()[place->second.item].name,
                       "' is of a class that is not known here. Save such an optimizer by its own means.");
    }
  }
  return pieces;
}

std::vector<ShardedStatePiece> Sharding::full_state(const torch::optim::Optimizer& optimizer) const {
  const at::NoGradGuard no_grad;
  const auto& all = impl_->split();
  const StepKind kind = step_kind(optimizer);
  const auto names = state_names(optimizer);
  std::vector<ShardedStatePiece> pieces;
  for (const auto& param_group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : param_group.params()) {
      const auto place = all.find(parameter.unsafeGetTensorImpl());
      if (place == all.end()) continue;
      const std::string& name = place->second.model->items()[place->second.item].name;
      const ShardInterval whole{0, parameter.numel()};
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      auto own = own_pieces(state == optimizer.state().end() ? nullptr : state->second.get(), names.size(), parameter,
                            shard::stepped_interval(place->second, kind));
      // Which of them there are on any rank, and the steps counted, plus one.
      const auto& group = place->second.model->group();
      const comm::Purpose purpose("optimizer state of all ranks");
      group.all_reduce_(own.facts, comm::ReduceOp::kMax);
      const int64_t* facts = own.facts.const_data_ptr<int64_t>();
      for (size_t i = 0; i < names.size(); ++i) {
        if (facts[i] == 0) continue;
        group.all_reduce_(own.tensors[i]);
        pieces.push_back({name, names[i], whole, parameter.sizes().vec(),
                          own.tensors[i].as_strided(parameter.sizes(), parameter.strides()), parameter});
      }
      if (facts[names.size()] == 0) continue;
      pieces.push_back({name, "step", {0, 1}, {}, torch::scalar_tensor(facts[names.size()] - 1, at::kLong), parameter});
    }
  }
  return pieces;
}

std::optional<at::Tensor> Sharding::owned_gradient(const at::Tensor& parameter) const {
  return owned_part(impl_->split(), parameter);
}

double Sharding::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) const {
  announce({.kind = ShardCall::Kind::kClipNorm, .parameters = &parameters, .first = max_norm, .second = norm_type});
  impl_->complete_gradients();
  const auto& split = impl_->split();
  const auto owned = [&](const at::Tensor& parameter) { return owned_part(split, parameter); };
  const double norm =
      clip_gradients_(parameters, max_norm, {.norm_type = norm_type, .owned = owned, .group = impl_->owners(group_)})
          .norm;
  const comm::Purpose purpose("clipping of gradients");
  impl_->meet(group_);  // every rank may read every gradient from here on
  return norm;
}

void Sharding::clip_grad_value_(const std::vector<at::Tensor>& parameters, double limit) const {
  const at::NoGradGuard no_grad;
  announce({.kind = ShardCall::Kind::kClipValue, .parameters = &parameters, .first = limit});
  impl_->complete_gradients();
  const auto& split = impl_->split();
  const comm::Purpose purpose("clipping of gradients");
  impl_->meet(group_);  // no rank reads gradients any more
  clip_values_(parameters, limit, [&](const at::Tensor& parameter) { return owned_part(split, parameter); });
  impl_->meet(group_);
}

bool Sharding::has_finite_gradients(const std::vector<at::Tensor>& parameters) const {
  announce({.kind = ShardCall::Kind::kFinite, .parameters = &parameters});
  impl_->complete_gradients();
  const auto& split = impl_->split();
  const auto owned = [&](const at::Tensor& parameter) { return owned_part(split, parameter); };
  return gradient_norm(parameters, {.owned = owned, .group = impl_->owners(group_)}).finite;
}

void Sharding::scale_gradients_(const std::vector<at::Tensor>& parameters, double factor) const {
  impl_->complete_gradients();
  const auto& split = impl_->split();
  const comm::Purpose purpose("clipping of gradients");
  impl_->meet(group_);  // no rank reads gradients any more
  parallel::scale_gradients_(parameters, factor,
                             [&](const at::Tensor& parameter) { return owned_part(split, parameter); });
}

}  // namespace hasten::parallel
