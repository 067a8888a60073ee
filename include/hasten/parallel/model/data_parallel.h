// DataParallel: one process, several devices: replicates a model, scatters a batch, runs the parts in
// parallel threads and gathers their outputs (torch.nn.DataParallel).
//
// Replicas are clones whose parameters are, to autograd, copies of the model's own: backward adds their
// gradients up onto those. Across processes, and wherever there is a choice, Ddp (ddp.h) is faster: nothing
// is replicated in each step, and no thread waits for another.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/comm/nested/nested.h"
#include "hasten/parallel/model/prepared_model.h"

namespace hasten::parallel {

namespace detail {

/// A model and its clones on further devices.
class Replicas {
 public:
  Replicas(std::shared_ptr<torch::nn::Module> module, std::vector<c10::Device> devices);
  size_t size() const noexcept { return devices_.size(); }
  c10::Device device(size_t i) const { return devices_[i]; }
  /// The model itself for 0.
  torch::nn::Module& operator[](size_t i) const { return *modules_[i]; }
  /// Gives the first `count` the model's parameters, buffers and modes as they are now.
  void refresh(size_t count) const;

 private:
  std::vector<c10::Device> devices_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
};

/// Rows [start, start + length) of a batch.
struct Part {
  int64_t start;
  int64_t length;
};
/// Returns the parts of these inputs for `num_devices`, as torch::chunk cuts: all of one size but the last, so that
/// there may be fewer. If no tensor has a dimension, there is a single part. Throws: UsageError if first sizes differ.
std::vector<Part> plan_parts(const std::vector<at::Tensor>& inputs, size_t num_devices);
/// Returns the rows of a part, on its device; scalars whole.
at::Tensor part_of(const at::Tensor& tensor, const Part& part, c10::Device device);
/// Concatenates parts on `device`; scalars become the elements of a vector.
at::Tensor gathered(const std::vector<at::Tensor>& parts, c10::Device device);
/// Runs fn(0) in this thread and fn(1) … fn(count - 1) in their own, with this thread's modes (gradients, autocast).
/// Throws: the exception of the first that threw, when all have ended.
void run_in_threads(size_t count, const std::function<void(size_t)>& fn);

}  // namespace detail

/// Returns the devices that data_parallel takes by itself: all CUDA devices, else the CPU.
std::vector<c10::Device> all_devices();

/// A handle that is called like the model. Copies share the replicas.
template <class M>
class DataParallel {
  using Module = std::remove_reference_t<decltype(module_of(std::declval<M&>()))>;

 public:
  DataParallel(M model, std::vector<c10::Device> devices)
      : model_(std::move(model)), replicas_(std::make_shared<detail::Replicas>(shared(model_), std::move(devices))) {}

  /// Runs the model's forward on a batch. Tensors in `arguments`, however nested (comm/nested/nested.h), are cut along
  /// dim 0 and moved to the devices. All other arguments go to each device. Each forward runs with its device as the
  /// current one. The outputs come back as from the model itself, on the first device, scalars as a vector with an
  /// element a part. Not from two threads at once.
  /// Blocks: until all parts are there. Throws: UsageError for tensors of different first sizes; the
  /// exceptions of forward.
  template <class... Arguments>
  auto operator()(const Arguments&... arguments) const {
    const auto inputs = comm::tensors_of(std::tuple<Arguments...>(arguments...));
    const auto parts = detail::plan_parts(inputs, replicas_->size());
    replicas_->refresh(parts.size());
    const auto forward = [&](size_t i) {
      // Tensors that forward makes without an index, as {at::kCUDA}, are on its part's device.
      const c10::DeviceGuard on_device(replicas_->device(i));
      const auto mine = [&](const at::Tensor& tensor) {
        return detail::part_of(tensor, parts[i], replicas_->device(i));
      };
      return static_cast<Module&>((*replicas_)[i]).forward(comm::map_tensors(arguments, mine)...);
    };
    using Output = std::decay_t<decltype(forward(0))>;
    std::vector<std::optional<Output>> outputs(parts.size());
    detail::run_in_threads(parts.size(), [&](size_t i) { outputs[i].emplace(forward(i)); });
    if (parts.size() == 1) return std::move(*outputs.front());
    std::vector<std::vector<at::Tensor>> tensors;
    for (const auto& output : outputs) tensors.push_back(comm::tensors_of(*output));
    size_t next = 0;
    return comm::map_tensors(*outputs.front(), [&](const at::Tensor&) {
      std::vector<at::Tensor> pieces;
      for (const auto& of_part : tensors) pieces.push_back(of_part.at(next));
      ++next;
      return detail::gathered(pieces, replicas_->device(0));
    });
  }

  auto* operator->() { return &module_of(model_); }
  /// Returns the model that was passed in. Its parameters are the ones to optimise and to save.
  const M& unwrap() const noexcept { return model_; }

 private:
  static std::shared_ptr<torch::nn::Module> shared(const M& model) {
    if constexpr (std::is_base_of_v<torch::detail::ModuleHolderIndicator, M>) {
      return model.ptr();
    } else {
      return model;
    }
  }

  M model_;
  std::shared_ptr<detail::Replicas> replicas_;
};

/// Puts `model` (a TORCH_MODULE holder or a std::shared_ptr) on several devices. {cpu, cpu} works as two devices do.
/// The model is on the first and stays as it is. Its own parameters get the gradients of all parts. Its buffers
/// (running statistics) get those of the first part, as in torch. Modules need libtorch's clone(). Random numbers
/// (dropout) are drawn by the parts from one generator a device, in no fixed order.
/// Throws: UsageError for no device, a model that is elsewhere (naming the parameter) or
/// that cannot be cloned.
template <class M>
  requires detail::is_module_pointer<M>::value
DataParallel<M> data_parallel(const M& model, std::vector<c10::Device> devices = all_devices()) {
  return DataParallel<M>(model, std::move(devices));
}

}  // namespace hasten::parallel
