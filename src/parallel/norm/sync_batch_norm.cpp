// Finds the BatchNorms of a model, marks them, and takes their operator over; see sync_batch_norm.h.
#include "hasten/parallel/norm/sync_batch_norm.h"

#include <ATen/ops/batch_norm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "hasten/core/error.h"
#include "parallel/norm/global_batch_norm.h"
#include "parallel/norm/mark.h"
#include "parallel/norm/sync_group.h"
#include "parallel/parameters/parameter_sync.h"

namespace hasten::parallel {
namespace {

struct BatchNormMark : Mark {
  c10::intrusive_ptr<SyncGroup> group;
  std::string name;
  /// Read only where the operator does not see whether the module trains: without running statistics. A clone
  /// carries its original's mark, but not on the same tensor.
  std::weak_ptr<torch::nn::Module> module;
  const c10::TensorImpl* carrier = nullptr;
};

Origin origin_of(const comm::Group& group) {
  return {"sync_batch_norm", group.rank(), group.world_size()};
}

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1dImpl>() != nullptr ||
         module.as<torch::nn::BatchNorm2dImpl>() != nullptr ||
         module.as<torch::nn::BatchNorm3dImpl>() != nullptr;
}

// The module's own parameters and buffers that operators get: all of them carry the mark.
std::vector<at::Tensor> carriers(const torch::nn::Module& batch_norm) {
  std::vector<at::Tensor> tensors;
  for (const auto& tensor : batch_norm.parameters(/*recurse=*/false)) tensors.push_back(tensor);
  for (const auto& item : batch_norm.named_buffers(/*recurse=*/false)) {
    if (item.value().is_floating_point()) tensors.push_back(item.value());
  }
  return tensors;
}

// set_data takes the mark from a tensor but leaves its hooks.
void refuse_backward_without_mark(const at::Tensor& weight, const std::string& name, const Origin& origin) {
  if (!weight.requires_grad()) return;
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(weight.getIntrusivePtr());
  weight.register_hook([weak, name, origin](const at::Tensor& gradient) {
    const auto strong = weak.lock();
    if (!strong || strong->key_set().has(kMarkKey)) return gradient;
    throw UsageError(origin, "'", name,
                     "' normalised this rank's batch alone: its tensors got other data (set_data) after "
                     "convert_sync_batchnorm. Convert the model again.");
  });
}

void mark(torch::nn::Module& batch_norm, const std::string& name,
          const c10::intrusive_ptr<SyncGroup>& group) {
  const auto tensors = carriers(batch_norm);
  for (const at::Tensor& tensor : tensors) {
    auto mark = c10::make_intrusive<BatchNormMark>();
    mark->group = group;
    mark->name = name;
    mark->module = batch_norm.weak_from_this();
    mark->carrier = tensor.unsafeGetTensorImpl();
    set_mark(tensor, std::move(mark));
  }
  refuse_backward_without_mark(tensors.front(), name, origin_of(group->group()));
}

// Names as in named_modules(), which needs the root to be held by a shared_ptr.
template <class Visit>
void for_each_batch_norm(torch::nn::Module& module, const std::string& name, const Visit& visit) {
  if (is_batch_norm(module)) visit(module, name.empty() ? module.name() : name);
  for (const auto& child : module.named_children()) {
    for_each_batch_norm(*child.value(), name.empty() ? child.key() : name + '.' + child.key(), visit);
  }
}

// Whether the module trains; `training` is also true where there are no running statistics to evaluate with.
bool trains(const BatchNormMark& mark, const at::Tensor& carrier, bool training, bool tracks) {
  if (!training || tracks) return training;
  const auto module = mark.module.lock();
  if (module && carrier.unsafeGetTensorImpl() == mark.carrier) return module->is_training();
  throw UsageError(origin_of(mark.group->group()), "a clone of '", mark.name,
                   "' runs, whose mode is not known because it has no running statistics "
                   "(track_running_stats(false)). Convert the clone with convert_sync_batchnorm.");
}

at::Tensor batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_var, bool training, double momentum,
                      double eps, bool cudnn_enabled) {
  const BatchNormTensors tensors = {weight.value_or(at::Tensor()), bias.value_or(at::Tensor()),
                                    running_mean.value_or(at::Tensor()), running_var.value_or(at::Tensor())};
  const at::Tensor& carrier = tensors.weight.defined() ? tensors.weight : tensors.running_mean;
  const auto mark = c10::dynamic_intrusive_pointer_cast<BatchNormMark>(mark_of(carrier));
  if (mark && trains(*mark, carrier, training, tensors.running_mean.defined())) {
    return global_batch_norm(input, tensors, {momentum, eps}, mark->group);
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kMarkKey);
  return at::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps,
                        cudnn_enabled);
}

}  // namespace

void convert_sync_batchnorm(torch::nn::Module& model, const comm::Group& group) {
  for_each_batch_norm(model, "", [&](torch::nn::Module& module, const std::string& name) {
    if (!carriers(module).empty()) return;
    throw UsageError(origin_of(group), "'", name,
                     "' has no tensor that could carry the mark of SyncBatchNorm: neither affine nor "
                     "track_running_stats. Switch one of them on in its options.");
  });
  if (group.world_size() == 1) return;
  check_same_module(model, group);
  std::vector<int> ranks(static_cast<size_t>(group.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  // Connections of their own: gradients' exchanges start when gradients arrive, which may be before a
  // BatchNorm's on one rank and after it on another.
  const auto own = c10::make_intrusive<SyncGroup>(*group.subgroup(ranks));
  for_each_batch_norm(model, "",
                      [&](torch::nn::Module& module, const std::string& name) { mark(module, name, own); });
}

struct UnevenBatchNorms::Impl {
  std::vector<c10::intrusive_ptr<SyncGroup>> groups;
  c10::Device device = c10::kCPU;
};

UnevenBatchNorms::UnevenBatchNorms(torch::nn::Module& model) : UnevenBatchNorms(std::vector{&model}) {}

UnevenBatchNorms::UnevenBatchNorms(const std::vector<torch::nn::Module*>& models)
    : impl_(std::make_unique<Impl>()) {
  const auto add_group = [this](torch::nn::Module& module, const std::string&) {
    const auto tensors = carriers(module);
    if (tensors.empty()) return;
    const auto mark = c10::dynamic_intrusive_pointer_cast<BatchNormMark>(mark_of(tensors.front()));
    auto& groups = impl_->groups;
    if (!mark || std::find(groups.begin(), groups.end(), mark->group) != groups.end()) return;
    groups.push_back(mark->group);
    impl_->device = tensors.front().device();
  };
  for (torch::nn::Module* model : models) for_each_batch_norm(*model, "", add_group);
  for (const auto& group : impl_->groups) group->set_uneven(true);
}

UnevenBatchNorms::~UnevenBatchNorms() {
  for (const auto& group : impl_->groups) group->set_uneven(false);
}

bool UnevenBatchNorms::empty() const noexcept {
  return impl_->groups.empty();
}

void UnevenBatchNorms::answer(const std::function<void()>& beside) const {
  std::once_flag once;
  std::exception_ptr first;
  // An answer that fails closes the connections of the others, which would wait for ever for its end.
  const auto guarded = [&](const std::function<void()>& task) {
    try {
      task();
    } catch (const std::exception& error) {
      std::call_once(once, [&] { first = std::current_exception(); });
      for (const auto& group : impl_->groups) group->group().fail(error.what());
    }
  };
  std::vector<std::thread> threads;
  for (const auto& group : impl_->groups) {
    guarded([&] { threads.emplace_back([&] { guarded([&] { group->answer(impl_->device); }); }); });
  }
  if (threads.size() == impl_->groups.size()) guarded(beside);  // the system may have no thread left
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, library) {
  library.impl("batch_norm", &batch_norm);
}

}  // namespace hasten::parallel
