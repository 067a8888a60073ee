// Finds the BatchNorms of a model, marks them, and takes their operator over; see sync_batch_norm.h.
#include "hasten/parallel/norm/sync_batch_norm.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DeviceGuard.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hasten/comm/nested/objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"
#include "parallel/parameters/parameter_sync.h"
#include "parallel/statistics/global_batch_norm.h"
#include "parallel/statistics/sync_group.h"

namespace hasten::parallel {
namespace {

// At each tensor of a BatchNorm that its operator gets. Copies of such a tensor (to, clone) carry it on.
class BatchNormInterceptor : public interception::Interceptor,
                             public std::enable_shared_from_this<BatchNormInterceptor> {
 public:
  std::vector<std::string_view> operators() const override {
    return {"aten::batch_norm", "aten::_to_copy", "aten::clone"};
  }
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override;

  c10::intrusive_ptr<SyncGroup> group;
  std::string name;
  /// Read only where the operator does not see whether the module trains: without running statistics. A clone
  /// carries its original's interceptor, but not on the same tensor.
  std::weak_ptr<torch::nn::Module> module;
  const c10::TensorImpl* carrier = nullptr;
  /// True once the module was reverted; its hooks stay and pass gradients on.
  std::shared_ptr<bool> reverted;
  /// True between a BatchCounter's call and the batch_norm that follows it.
  std::shared_ptr<bool> counted;

 private:
  bool trains(const at::Tensor& tensor, bool training, bool tracks) const;
};

// At num_batches_tracked, which a module that trains increases just before it looks at the size of its batch. It
// refuses a batch of one value a channel, although the batches of all ranks have more. So until batch_norm is called
// the module seems to evaluate.
class BatchCounter : public interception::Interceptor, public std::enable_shared_from_this<BatchCounter> {
 public:
  std::vector<std::string_view> operators() const override { return {"aten::add_", "aten::_to_copy"}; }
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override {
    op.callBoxed(stack);
    if (op.schema().name() == "aten::_to_copy") {
      interception::add_interceptor(stack.back().toTensor(), shared_from_this());
    } else if (const auto alive = module.lock(); alive && alive->is_training()) {
      alive->train(false);
      *counted = true;
    }
    return true;
  }

  std::weak_ptr<torch::nn::Module> module;
  std::shared_ptr<bool> counted;
};

Origin origin_of(const comm::Group& group) {
  return {"sync_batch_norm", group.rank(), group.world_size()};
}

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1dImpl>() != nullptr || module.as<torch::nn::BatchNorm2dImpl>() != nullptr ||
         module.as<torch::nn::BatchNorm3dImpl>() != nullptr;
}

// The module's own parameters and buffers that operators get: all of them carry it.
std::vector<at::Tensor> carriers(const torch::nn::Module& batch_norm) {
  std::vector<at::Tensor> tensors;
  for (const auto& tensor : batch_norm.parameters(/*recurse=*/false)) tensors.push_back(tensor);
  for (const auto& item : batch_norm.named_buffers(/*recurse=*/false)) {
    if (item.value().is_floating_point()) tensors.push_back(item.value());
  }
  return tensors;
}

// set_data takes the interceptor from a tensor but leaves its hooks.
void refuse_backward_without_interceptor(const at::Tensor& weight, const std::string& name, const Origin& origin,
                                         const std::shared_ptr<const bool>& reverted) {
  if (!weight.requires_grad()) return;
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(weight.getIntrusivePtr());
  weight.register_hook([weak, name, origin, reverted](const at::Tensor& gradient) {
    const auto strong = weak.lock();
    if (!strong || *reverted) return gradient;
    const at::Tensor tensor(strong);
    if (interception::find_interceptor<BatchNormInterceptor>(tensor)) return gradient;
    throw UsageError(origin, "'", name,
                     "' normalised this rank's batch alone: its tensors got other data (set_data) after "
                     "convert_sync_batchnorm. Convert the model again.");
  });
}

void forget(const at::Tensor& tensor) {
  while (const auto before = interception::find_interceptor<BatchNormInterceptor>(tensor)) {
    *before->reverted = true;
    interception::remove_interceptor(tensor, before.get());
  }
}

at::Tensor counter_of(const torch::nn::Module& batch_norm) {
  const auto buffers = batch_norm.named_buffers(/*recurse=*/false);
  const at::Tensor* found = buffers.find("num_batches_tracked");
  return found != nullptr ? *found : at::Tensor();
}

void intercept_counter(torch::nn::Module& batch_norm, const std::shared_ptr<bool>& counted) {
  const at::Tensor counter = counter_of(batch_norm);
  if (!counter.defined()) return;
  auto interceptor = std::make_shared<BatchCounter>();
  interceptor->module = batch_norm.weak_from_this();
  interceptor->counted = counted;
  interception::add_interceptor(counter, std::move(interceptor));
}

void forget_counter(const torch::nn::Module& batch_norm) {
  const at::Tensor counter = counter_of(batch_norm);
  if (!counter.defined()) return;
  while (const auto before = interception::find_interceptor<BatchCounter>(counter))
    interception::remove_interceptor(counter, before.get());
}

void intercept(torch::nn::Module& batch_norm, const std::string& name, const c10::intrusive_ptr<SyncGroup>& group) {
  const auto tensors = carriers(batch_norm);
  const auto reverted = std::make_shared<bool>(false), counted = std::make_shared<bool>(false);
  forget_counter(batch_norm);
  intercept_counter(batch_norm, counted);
  for (const at::Tensor& tensor : tensors) {
    // Converting a model again replaces what it had.
    forget(tensor);
    auto interceptor = std::make_shared<BatchNormInterceptor>();
    interceptor->group = group;
    interceptor->reverted = reverted;
    interceptor->counted = counted;
    interceptor->name = name;
    interceptor->module = batch_norm.weak_from_this();
    interceptor->carrier = tensor.unsafeGetTensorImpl();
    interception::add_interceptor(tensor, std::move(interceptor));
  }
  refuse_backward_without_interceptor(tensors.front(), name, origin_of(group->group()), reverted);
}

// Names as in named_modules(), which needs the root to be held by a shared_ptr.
template <class Visit>
void for_each_batch_norm(torch::nn::Module& module, const std::string& name, const Visit& visit) {
  if (is_batch_norm(module)) visit(module, name.empty() ? module.name() : name);
  for (const auto& child : module.named_children()) {
    for_each_batch_norm(*child.value(), name.empty() ? child.key() : name + '.' + child.key(), visit);
  }
}

// Returns true if the module trains. `training` is also true if there are no running statistics to evaluate with.
bool BatchNormInterceptor::trains(const at::Tensor& tensor, bool training, bool tracks) const {
  if (!training || tracks) return training;
  const auto alive = module.lock();
  if (alive && tensor.unsafeGetTensorImpl() == carrier) return alive->is_training();
  throw UsageError(origin_of(group->group()), "a clone of '", name,
                   "' runs, whose mode is not known because it has no running statistics "
                   "(track_running_stats(false)). Convert the clone with convert_sync_batchnorm.");
}

bool BatchNormInterceptor::intercept(const c10::OperatorHandle& op, interception::Stack& stack) {
  if (op.schema().name() != "aten::batch_norm") {
    op.callBoxed(stack);
    if (!interception::find_interceptor<BatchNormInterceptor>(stack.back().toTensor())) {
      interception::add_interceptor(stack.back().toTensor(), shared_from_this());
    }
    return true;
  }
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  const auto tensor = [&](size_t i) { return arguments[i].isNone() ? at::Tensor() : arguments[i].toTensor(); };
  const BatchNormTensors tensors = {tensor(1), tensor(2), tensor(3), tensor(4)};
  const at::Tensor& first = tensors.weight.defined() ? tensors.weight : tensors.running_mean;
  // A single tensor of the module represents all.
  const auto spokesman = interception::find_interceptor<BatchNormInterceptor>(first);
  if (spokesman.get() != this) return false;
  const bool was_counted = std::exchange(*counted, false);
  if (const auto alive = module.lock(); was_counted && alive) alive->train();
  if (!was_counted && !trains(first, arguments[5].toBool(), tensors.running_mean.defined())) return false;
  const at::Tensor result =
      global_batch_norm(tensor(0), tensors, {arguments[6].toDouble(), arguments[7].toDouble()}, group);
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(result);
  return true;
}

// Returns this rank's number among those of a stage, and its stage's among stages; -1 for what is not divided.
std::vector<int64_t> part_of_model(const torch::nn::Module& model) {
  std::vector<int64_t> found = {-1, -1};
  for (const at::Tensor& parameter : model.parameters()) {
    if (const auto* const cut = placed_by(parameter)) found[0] = cut->group().rank();
    if (const auto* const staged = staged_by(parameter)) found[1] = staged->group().rank();
  }
  return found;
}

// Ranks of one model have one batch, which would count as often as there are ranks. Those of another stage never come.
void require_other_batches(const comm::Group& group, const std::vector<int64_t>& part) {
  const comm::Purpose purpose("ranks of SyncBatchNorm");
  const auto parts = comm::gather_object(group.with_check(false), part);
  if (std::all_of(parts.begin(), parts.end(), [&](const auto& other) { return other == parts.front(); })) return;
  throw UsageError(
      origin_of(group),
      "the group of SyncBatchNorm has ranks that hold parts of one model, and have one batch together. Call "
      "convert_sync_batchnorm before prepare with the group of all ranks, or with one of ranks that have "
      "other batches (Layout::data()).");
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
  require_other_batches(group, part_of_model(model));
  check_same_module(model, group);
  // Connections of their own: gradients' exchanges start when gradients arrive, which may be before a
  // BatchNorm's on one rank and after it on another.
  const comm::Purpose purpose("convert_sync_batchnorm");
  const auto own = c10::make_intrusive<SyncGroup>(*group.split(0, group.rank()));
  for_each_batch_norm(model, "",
                      [&](torch::nn::Module& module, const std::string& name) { intercept(module, name, own); });
}

comm::Group create_syncbn_process_group(const comm::Group& group, int size) {
  if (size < 1 || group.world_size() % size != 0) {
    throw UsageError(Origin{"parallel", group.rank(), group.world_size()},
                     "create_syncbn_process_group with size = ", size, " in a world of ", group.world_size(),
                     "; expected a size that divides the world.");
  }
  const comm::Purpose purpose("create_syncbn_process_group");
  return *group.split(group.rank() / size);
}

void fit_sync_batchnorm(torch::nn::Module& model, const Layout& layout, const comm::Group& everyone) {
  struct Found {
    c10::intrusive_ptr<SyncGroup> before, now;
    std::vector<std::pair<torch::nn::Module*, std::string>> norms;
  };
  std::vector<Found> all;
  for_each_batch_norm(model, "", [&](torch::nn::Module& module, const std::string& name) {
    const auto tensors = carriers(module);
    if (tensors.empty()) return;
    const auto mark = interception::find_interceptor<BatchNormInterceptor>(tensors.front());
    if (!mark) return;
    const auto known =
        std::find_if(all.begin(), all.end(), [&](const Found& one) { return one.before == mark->group; });
    Found& found = known != all.end() ? *known : all.emplace_back(Found{mark->group, {}, {}});
    found.norms.emplace_back(&module, name);
  });
  for (Found& found : all) {
    const auto& group = found.before->group();
    if (group.world_size() != everyone.world_size()) {
      require_other_batches(group, {layout.model().rank()});
      continue;
    }
    const comm::Purpose purpose("convert_sync_batchnorm");
    const auto& data = layout.data();
    if (data.world_size() > 1) found.now = c10::make_intrusive<SyncGroup>(*data.split(0, data.rank()));
    for (const auto& [module, name] : found.norms) {
      if (found.now) {
        intercept(*module, name, found.now);
      } else {
        revert_sync_batchnorm(*module);
      }
    }
  }
}

void revert_sync_batchnorm(torch::nn::Module& model) {
  for_each_batch_norm(model, "", [](torch::nn::Module& module, const std::string&) {
    forget_counter(module);
    for (const at::Tensor& tensor : carriers(module)) forget(tensor);
  });
}

struct UnevenBatchNorms::Impl {
  std::vector<c10::intrusive_ptr<SyncGroup>> groups;
  c10::Device device = c10::kCPU;
};

UnevenBatchNorms::UnevenBatchNorms(torch::nn::Module& model) : UnevenBatchNorms(std::vector{&model}) {}

UnevenBatchNorms::UnevenBatchNorms(const std::vector<torch::nn::Module*>& models) : impl_(std::make_unique<Impl>()) {
  const auto add_group = [this](torch::nn::Module& module, const std::string&) {
    const auto tensors = carriers(module);
    if (tensors.empty()) return;
    const auto mark = interception::find_interceptor<BatchNormInterceptor>(tensors.front());
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
    guarded([&] {
      threads.emplace_back([&] {
        guarded([&] {
          const c10::DeviceGuard on_device(impl_->device);
          group->answer(impl_->device);
        });
      });
    });
  }
  if (threads.size() == impl_->groups.size()) guarded(beside);  // the system may have no thread left
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace hasten::parallel
