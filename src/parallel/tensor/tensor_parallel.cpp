// See tensor_parallel.h.
#include "hasten/parallel/tensor/tensor_parallel.h"

#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include <set>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/plan/module_tree.h"
#include "parallel/parameters/parameter_sync.h"
#include "parallel/tensor/cut_axis.h"
#include "parallel/tensor/exchange.h"
#include "parallel/tensor/handler.h"
#include "parallel/tensor/model_rules.h"

namespace hasten::parallel {

// The parameters that are cut. The handle has them and not the axis, which would keep itself: libtorch keeps a tensor's
// interceptors while there are weak references to it.
class tensor::CutParameters {
 public:
  explicit CutParameters(Origin origin) : origin_(std::move(origin)) {}

  void add(const std::string& name, const at::Tensor& parameter) {
    all_.emplace_back(name, c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()));
  }
  // Throws: UsageError for a parameter whose values were replaced since (to(), set_data), which loses its record.
  void require_intact() const {
    for (const auto& [name, weak] : all_) {
      const auto impl = weak.lock();
      if (!impl || impl->get_backend_meta() != nullptr) continue;
      throw UsageError(origin_, "the values of '", name,
                       "' were replaced after prepare (to(), set_data), so that it is no longer known as a part. Move "
                       "or convert the model before prepare.");
    }
  }

 private:
  Origin origin_;
  std::vector<std::pair<std::string, c10::weak_intrusive_ptr<c10::TensorImpl>>> all_;
};

namespace {

// Names of tables at the embeddings that own them. A head may hold the same tensor, and multiplies by it.
std::set<std::string> tables_of(const torch::nn::Module& module) {
  std::set<std::string> tables;
  module.apply([&](const std::string& name, const torch::nn::Module& part) {
    if (part.as<torch::nn::EmbeddingImpl>() != nullptr) tables.insert(name.empty() ? "weight" : name + ".weight");
  });
  return tables;
}

std::vector<PlanParameter> plan_parameters(const torch::nn::Module& module) {
  const auto tables = tables_of(module);
  std::vector<PlanParameter> all;
  for (const auto& item : module.named_parameters()) {
    all.push_back(
        {item.key(), item.value().sizes().vec(), tables.contains(item.key()), item.value().unsafeGetTensorImpl()});
  }
  return all;
}

void require_plan(const TensorPlan& plan, const torch::nn::Module& module, const comm::Group& group) {
  if (!plan.empty()) return;
  std::vector<std::string> names;
  module.apply([&](const std::string& name, const torch::nn::Module& part) {
    if (!name.empty() && !part.parameters(false).empty()) names.push_back(name);
  });
  throw UsageError(
      Origin{"tensor", group.rank(), group.world_size()}, "there is no rule for cutting '",
      plan::short_class_name(module.name()),
      "'. Give a plan, .parallel.tensor_plan = {{NAME, \"colwise\"}, {NAME, \"rowwise\"}}, with names of: ",
      join(names, ", "), ".");
}

class ForwardScopeHook : public ForwardHook {
 public:
  explicit ForwardScopeHook(std::shared_ptr<tensor::CutParameters> parameters) : parameters_(std::move(parameters)) {}
  std::unique_ptr<Entered> enter(torch::nn::Module&) override {
    parameters_->require_intact();
    return std::make_unique<Scope>();
  }

 private:
  struct Scope : Entered {
    tensor::ForwardScope scope;
  };
  std::shared_ptr<tensor::CutParameters> parameters_;
};

void require_no_gradient(const std::string& name, const at::Tensor& parameter, const comm::Group& group) {
  if (!parameter.is_leaf()) {
    throw UsageError(Origin{"tensor", group.rank(), group.world_size()}, "'", name,
                     "' is computed from other tensors, and cannot be cut. Cut what it is computed from.");
  }
}

}  // namespace

TensorParallel::TensorParallel(torch::nn::Module& module, comm::Group group, const TensorParallelOptions& options) {
  if (group.world_size() == 1) return;
  check_same_module(module, group);
  const int parts = group.world_size();
  const auto parameters = plan_parameters(module);
  const TensorPlan plan = options.plan.empty() ? tensor::plan_by_classes(module, parameters, parts) : options.plan;
  require_plan(plan, module, group);
  cuts_ = resolve_plan(plan, parameters, parts);
  std::vector<at::Tensor> values = module.parameters();
  const auto buffers = module.buffers();
  values.insert(values.end(), buffers.begin(), buffers.end());
  broadcast_tensors(values, group);
  values.clear();
  axis_ = tensor::make_axis(group, {.sequence_parallel = options.sequence_parallel,
                                    .strict = options.strict,
                                    .recompute_exchanges = options.recompute_exchanges,
                                    .place = options.place});
  parameters_ = std::make_shared<tensor::CutParameters>(Origin{"tensor", group.rank(), parts});
  const at::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    const auto found = cuts_.find(item.key());
    if (found == cuts_.end()) continue;
    at::Tensor parameter = item.value();
    require_no_gradient(item.key(), parameter, group);
    Placement placement{parameter.sizes().vec(), found->second};
    const auto part = [&](const at::Tensor& whole) {
      return cut_tensor(whole, found->second, parts, group.rank()).clone(at::MemoryFormat::Contiguous);
    };
    const at::Tensor gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
    parameter.set_data(part(parameter.detach()));
    // A backward before prepare belongs to the first step.
    if (gradient.defined()) parameter.mutable_grad() = part(gradient.is_sparse() ? gradient.to_dense() : gradient);
    parameters_->add(item.key(), parameter);
    axis_->add(item.key(), parameter, std::move(placement));
  }
}

std::shared_ptr<ForwardHook> TensorParallel::forward_hook() const {
  return axis_ ? std::make_shared<ForwardScopeHook>(parameters_) : nullptr;
}

ParallelCounts TensorParallel::counts() const {
  return axis_ ? axis_->counts() : ParallelCounts{};
}

const comm::Group& TensorParallel::group() const noexcept {
  static const comm::Group kAlone;
  return axis_ ? axis_->group() : kAlone;
}

at::Tensor local_value(const at::Tensor& value) {
  const auto* const global = tensor::GlobalTensor::of(value);
  return global == nullptr ? value : local_value(global->local());
}

at::Tensor whole_value(const at::Tensor& value) {
  return tensor::whole_of(value);
}

bool is_cut_value(const at::Tensor& value) noexcept {
  return tensor::GlobalTensor::of(value) != nullptr;
}

}  // namespace hasten::parallel
