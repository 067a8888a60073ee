// The collective step, and what is asked about gradients and state; see hasten/parallel/shard/sharding.h.
#include "hasten/parallel/shard/sharding.h"

#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "hasten/compat/storage_watch.h"
#include "hasten/core/error.h"
#include "hasten/offload/units/state_file.h"
#include "parallel/shard/program_writes.h"
#include "parallel/shard/sliced_step.h"

namespace hasten::parallel {

using namespace shard;

struct Sharding::Impl {
  /// Where optimizer state rests between steps; null: in memory.
  std::unique_ptr<offload::StateFile> state_file;
  std::vector<std::weak_ptr<ShardedModel>> models;

  std::vector<std::shared_ptr<ShardedModel>> alive() {
    std::vector<std::shared_ptr<ShardedModel>> all;
    for (const auto& weak : models) {
      if (auto model = weak.lock()) all.push_back(std::move(model));
    }
    return all;
  }

  SplitParameters split() {
    SplitParameters split;
    for (const auto& model : alive()) {
      const auto whole = deal_whole(model->items(), model->group().world_size());
      for (size_t item = 0; item < model->parameters().size(); ++item) {
        split[model->parameters()[item].tensor.unsafeGetTensorImpl()] = {model.get(), item, whole[item]};
      }
    }
    return split;
  }
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

// Graphs from before the step must not be used after it, as autograd checks by versions; low-precision copies
// are stale.
void tell_of_change(const SplitParameters& split) {
  for (const auto& [impl, place] : split) {
    auto* tensor = const_cast<c10::TensorImpl*>(impl);
    if (!tensor->is_inference()) tensor->bump_version();
    compat::notify_changed(place.model->parameters()[place.item].tensor);
  }
}

// Hosts hold regions of their own: what the ranks with this rank's place on the others have stepped comes here.
void exchange_stepped(ShardedModel& model, const SplitParameters& split, StepKind kind) {
  if (model.across() == nullptr) return;
  const at::NoGradGuard no_grad;
  const int hosts = model.num_hosts(), local = model.region().local_index();
  const auto pieces = [&](int host, const auto& visit) {
    for (size_t item = 0; item < model.items().size(); ++item) {
      const auto found = split.find(model.parameters()[item].tensor.unsafeGetTensorImpl());
      if (found == split.end()) continue;
      const int owner = local * hosts + host;
      const auto interval = kind == StepKind::kElementwise
                                ? owned_interval(model.plan(), model.items(), item, owner)
                                : ShardInterval{0, found->second.whole_owner == owner ? model.items()[item].numel : 0};
      if (interval.size() > 0) visit(model.value_slice(item, interval).view(at::kByte));
    }
  };
  int64_t most = 0;
  for (int host = 0; host < hosts; ++host) {
    int64_t bytes = 0;
    pieces(host, [&](const at::Tensor& piece) { bytes += piece.numel(); });
    most = std::max(most, bytes);
  }
  const at::Tensor all = at::empty({hosts * most}, at::kByte);
  const at::Tensor mine = all.narrow(0, model.region().host_index() * most, most);
  int64_t end = 0;
  pieces(model.region().host_index(), [&](const at::Tensor& piece) {
    mine.narrow(0, end, piece.numel()).copy_(piece);
    end += piece.numel();
  });
  model.across()->all_gather_into_(all, mine);
  for (int host = 0; host < hosts; ++host) {
    if (host == model.region().host_index()) continue;
    int64_t begin = host * most;
    pieces(host, [&](const at::Tensor& piece) {
      piece.copy_(all.narrow(0, begin, piece.numel()));
      begin += piece.numel();
    });
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
    if (tensor.defined()) {
      facts[i] = 1;
      const at::Tensor part = cut_state(tensor, parameter.numel(), interval);
      own.tensors[i].narrow(0, interval.begin, interval.size()).copy_(part);
    }
    ++i;
  });
  facts[num_names] = step_of(*state).value_or(-1) + 1;
  return own;
}

double power_sum(const at::Tensor& values, double norm_type) {
  const at::Tensor wide = values.to(at::kDouble);
  if (std::isinf(norm_type)) return wide.numel() == 0 ? 0 : wide.abs().max().item<double>();
  return norm_type == 2 ? wide.square().sum().item<double>() : wide.abs().pow(norm_type).sum().item<double>();
}

}  // namespace

Sharding::Sharding(comm::Group group, ShardOptions options)
    : group_(group.with_check(false)), options_(std::move(options)), impl_(std::make_unique<Impl>()) {
  const auto& state = options_.optimizer_offload;
  if (state.device != OffloadDevice::kFile) return;
  if (state.path.empty() || state.tile_numel < 1) {
    throw UsageError(Origin{"shard", group_.rank(), group_.world_size()}, "optimizer state is offloaded to files in '",
                     state.path, "' in tiles of ", state.tile_numel,
                     " elements. Name a folder (OffloadOptions::path) and tiles of at least one element.");
  }
  impl_->state_file = std::make_unique<offload::StateFile>(state.path);
}

Sharding::~Sharding() = default;

bool Sharding::exchanges_each_backward() const noexcept {
  return options_.stage >= ShardStage::kGradients && options_.hold == GradientHold::kSlices;
}

std::shared_ptr<GradientExchange> Sharding::make_exchange(const comm::Group& group) {
  std::erase_if(impl_->models, [](const auto& weak) { return weak.expired(); });
  // The models before this one; what they share is theirs.
  const auto is_taken = [before = impl_->models](const at::Tensor& tensor) {
    return std::any_of(before.begin(), before.end(), [&](const auto& weak) {
      const auto model = weak.lock();
      if (!model) return false;
      const auto& storages = model->storages();
      return std::any_of(storages.begin(), storages.end(),
                         [&](const auto& storage) { return storage.home.is_of(tensor); });
    });
  };
  auto model = std::make_shared<ShardedModel>(group, options_, is_taken);
  impl_->models.push_back(model);
  return model;
}

bool Sharding::steps(const torch::optim::Optimizer& optimizer) const {
  return !those_of(optimizer, impl_->split()).empty();
}

int64_t Sharding::num_private_copies() const {
  int64_t count = 0;
  for (const auto& model : impl_->alive()) {
    for (const auto& storage : model->storages()) count += storage.home.has_left() ? 1 : 0;
  }
  return count;
}

at::Tensor Sharding::step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& own_step) {
  const StepKind kind = step_kind(optimizer);
  if (kind == StepKind::kAll) {
    throw UsageError(Origin{"shard", group_.rank(), group_.world_size()},
                     "LBFGS needs all parameters at once and cannot step slices. Use ShardStage::kNone.");
  }
  const auto split = those_of(optimizer, impl_->split());
  const auto models = impl_->alive();
  // Returns when all ranks have come: nothing reads the parameters from here on.
  take_in_program_writes(models, group_);
  at::Tensor loss;
  if (impl_->state_file && kind == StepKind::kElementwise) {
    loss = step_in_tiles(optimizer, split, own_step);
  } else {
    const SlicedStep slices(optimizer, split, kind);
    loss = own_step();
  }
  for (const auto& model : models) exchange_stepped(*model, split, kind);
  group_.barrier();
  tell_of_change(split);
  return loss;
}

// Parameters of up to tile_numel owned elements are stepped together; the state of one tile is in memory.
at::Tensor Sharding::step_in_tiles(torch::optim::Optimizer& optimizer, const SplitParameters& split,
                                   const std::function<at::Tensor()>& own_step) {
  auto& file = *impl_->state_file;
  std::vector<std::vector<at::Tensor>> tiles(1);
  int64_t numel = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = split.find(parameter.unsafeGetTensorImpl());
      if (found == split.end()) continue;
      const int64_t more = stepped_interval(found->second, StepKind::kElementwise).size();
      if (numel > 0 && numel + more > options_.optimizer_offload.tile_numel) {
        tiles.emplace_back();
        numel = 0;
      }
      tiles.back().push_back(parameter);
      numel += more;
    }
  }
  const auto each_tensor = [&](const std::vector<at::Tensor>& tile, const auto& visit) {
    for (const at::Tensor& parameter : tile) {
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      visit_state(*state->second, [&](const char*, at::Tensor& tensor) {
        if (tensor.defined()) visit(tensor);
      });
    }
  };
  at::Tensor loss;
  for (size_t i = 0; i < tiles.size(); ++i) {
    if (i + 1 < tiles.size()) each_tensor(tiles[i + 1], [&](at::Tensor& tensor) { file.fetch(tensor); });
    std::unordered_set<const c10::TensorImpl*> stepped;
    for (const at::Tensor& parameter : tiles[i]) stepped.insert(parameter.unsafeGetTensorImpl());
    {
      const SlicedStep slices(optimizer, split, StepKind::kElementwise, &stepped, i == 0);
      const at::Tensor given = own_step();
      if (i == 0) loss = given;
    }
    each_tensor(tiles[i], [&](at::Tensor& tensor) {
      if (!file.holds(tensor)) tensor = file.store(tensor);
      file.release(tensor);
    });
  }
  return loss;
}

std::vector<ShardedStatePiece> Sharding::sharded_state(const torch::optim::Optimizer& optimizer) const {
  const auto all = impl_->split();
  const StepKind kind = step_kind(optimizer);
  std::vector<ShardedStatePiece> pieces;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto place = all.find(parameter.unsafeGetTensorImpl());
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (place == all.end() || state == optimizer.state().end()) continue;
      const auto interval = stepped_interval(place->second, kind);
      const auto add = [&](const char* name, at::Tensor& tensor) {
        if (!tensor.defined()) return;
        pieces.push_back({place->second.model->items()[place->second.item].name, name, interval,
                          parameter.sizes().vec(), cut_state(tensor, parameter.numel(), interval)});
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
  const auto all = impl_->split();
  const StepKind kind = step_kind(optimizer);
  const auto names = state_names(optimizer);
  std::vector<ShardedStatePiece> pieces;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto place = all.find(parameter.unsafeGetTensorImpl());
      if (place == all.end()) continue;
      const std::string& name = place->second.model->items()[place->second.item].name;
      const ShardInterval whole{0, parameter.numel()};
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      auto own = own_pieces(state == optimizer.state().end() ? nullptr : state->second.get(), names.size(),
                            parameter, stepped_interval(place->second, kind));
      // Which of them there are on any rank, and the steps counted, plus one.
      group_.all_reduce_(own.facts, comm::ReduceOp::kMax);
      const int64_t* facts = own.facts.const_data_ptr<int64_t>();
      for (size_t i = 0; i < names.size(); ++i) {
        if (facts[i] == 0) continue;
        group_.all_reduce_(own.tensors[i]);
        pieces.push_back({name, names[i], whole, parameter.sizes().vec(),
                          own.tensors[i].as_strided(parameter.sizes(), parameter.strides())});
      }
      if (facts[names.size()] == 0) continue;
      pieces.push_back({name, "step", {0, 1}, {}, torch::scalar_tensor(facts[names.size()] - 1, at::kLong)});
    }
  }
  return pieces;
}

double Sharding::gradient_norm(const std::vector<at::Tensor>& parameters, double norm_type) const {
  const at::NoGradGuard no_grad;
  const auto split = impl_->split();
  double own = 0, common = 0;
  const auto add = [&](double& to, double value) { to = std::isinf(norm_type) ? std::max(to, value) : to + value; };
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    const auto found = split.find(parameter.unsafeGetTensorImpl());
    if (found == split.end()) {
      add(common, power_sum(parameter.grad(), norm_type));
      continue;
    }
    const auto interval = found->second.model->owned(found->second.item);
    if (interval.size() > 0) add(own, power_sum(gradient_part(found->second, parameter, interval), norm_type));
  }
  const at::Tensor total = torch::full({1}, own, at::kDouble);
  group_.all_reduce_(total, std::isinf(norm_type) ? comm::ReduceOp::kMax : comm::ReduceOp::kSum);
  double sum = total.item<double>();
  add(sum, common);
  return std::isinf(norm_type) ? sum : std::pow(sum, 1 / norm_type);
}

namespace {

// Each rank changes the slices that it owns where the gradient is one mapping, and its whole copy elsewhere.
template <class Change>
void change_gradients(const std::vector<at::Tensor>& parameters, const SplitParameters& split,
                      const Change& change) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    const auto found = split.find(parameter.unsafeGetTensorImpl());
    const bool in_slices = found != split.end() && found->second.model->splits_gradients() &&
                           found->second.model->has_own_gradient(found->second.item);
    if (!in_slices) {
      change(gradient.detach());
      continue;
    }
    const auto interval = found->second.model->owned(found->second.item);
    if (interval.size() > 0) change(found->second.model->gradient_slice(found->second.item, interval));
  }
}

}  // namespace

void Sharding::scale_gradients(const std::vector<at::Tensor>& parameters, double factor) const {
  change_gradients(parameters, impl_->split(), [&](at::Tensor gradient) { gradient.mul_(factor); });
  group_.barrier();
}

void Sharding::clip_gradients(const std::vector<at::Tensor>& parameters, double limit) const {
  change_gradients(parameters, impl_->split(), [&](at::Tensor gradient) { gradient.clamp_(-limit, limit); });
  group_.barrier();
}

double Sharding::clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                                double norm_type) const {
  const double norm = gradient_norm(parameters, norm_type);
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1) scale_gradients(parameters, factor);
  return norm;
}

std::shared_ptr<Sharding> make_sharding(const comm::Group& group, const ShardOptions& options,
                                        training::GradientState& gradients) {
  if (options.stage == ShardStage::kNone || group.world_size() == 1) return nullptr;
  auto sharding = std::make_shared<Sharding>(group, options);
  gradients.set_step_scope([sharding](torch::optim::Optimizer& optimizer, const std::function<void()>& own) {
    if (!sharding->steps(optimizer)) return own();
    sharding->step(optimizer, [&]() -> at::Tensor {
      own();
      return {};
    });
  });
  return sharding;
}

DdpOptions with_sharding(DdpOptions options, const std::shared_ptr<Sharding>& sharding) {
  if (!sharding) return options;
  options.make_exchange = [sharding](const comm::Group& group) { return sharding->make_exchange(group); };
  return options;
}

bool exchanges_each_backward(const std::shared_ptr<Sharding>& sharding) noexcept {
  return sharding && sharding->exchanges_each_backward();
}

double clip_grad_norm_(const std::shared_ptr<Sharding>& sharding, const std::vector<at::Tensor>& parameters,
                       double max_norm, double norm_type) {
  if (sharding) return sharding->clip_grad_norm(parameters, max_norm, norm_type);
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm, norm_type);
}

void clip_grad_value_(const std::shared_ptr<Sharding>& sharding, const std::vector<at::Tensor>& parameters,
                      double limit) {
  if (sharding) return sharding->clip_gradients(parameters, limit);
  torch::nn::utils::clip_grad_value_(parameters, limit);
}

}  // namespace hasten::parallel
