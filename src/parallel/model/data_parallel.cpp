// Replicas, scattering, threads and gathering; see hasten/parallel/model/data_parallel.h.
#include "hasten/parallel/model/data_parallel.h"

#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "hasten/core/error.h"
#include "hasten/process/thread_streams.h"

namespace hasten::parallel {
namespace {

constexpr Origin kDataParallel{"data_parallel"};

// Cloning initialises the clone's parameters before it copies; the program's random numbers shall not notice.
class KeptGenerator {
 public:
  explicit KeptGenerator(c10::Device device)
      : generator_(at::globalContext().defaultGenerator(device)), state_(read()) {}
  ~KeptGenerator() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeptGenerator(const KeptGenerator&) = delete;
  KeptGenerator& operator=(const KeptGenerator&) = delete;

 private:
  at::Tensor read() {
    const std::lock_guard lock(generator_.mutex());
    return generator_.get_state();
  }

  at::Generator generator_;
  at::Tensor state_;
};

std::shared_ptr<torch::nn::Module> cloned(const torch::nn::Module& module, c10::Device device) {
  const KeptGenerator on_cpu(at::kCPU), on_device(device);
  try {
    return module.clone(device);
  } catch (const c10::Error& error) {
    throw UsageError(kDataParallel, '\'', module.name(), "' cannot be replicated: ", error.what_without_backtrace(),
                     " Derive it, and the modules in it, from torch::nn::Cloneable.");
  }
}

// From here on `copy` is, to autograd, the original on another device: what flows back into it goes there.
void link(const at::Tensor& copy, const at::Tensor& original) {
  const at::Tensor there = original.device() == copy.device() ? original.alias() : original.to(copy.device());
  copy.set_data(there.detach());
  const bool flows = there.requires_grad();
  torch::autograd::impl::set_gradient_edge(
      copy, flows ? torch::autograd::impl::gradient_edge(there) : torch::autograd::Edge());
}

// Parents first, since train() sets the children too.
void copy_modes(torch::nn::Module& to, const torch::nn::Module& from) {
  if (to.is_training() != from.is_training()) to.train(from.is_training());
  const auto copies = to.children(), originals = from.children();
  for (size_t i = 0; i < copies.size(); ++i) copy_modes(*copies[i], *originals[i]);
}

}  // namespace

namespace detail {

Replicas::Replicas(std::shared_ptr<torch::nn::Module> module, std::vector<c10::Device> devices)
    : devices_(std::move(devices)), modules_{std::move(module)} {
  if (devices_.empty()) {
    throw UsageError(kDataParallel, "the list of devices is empty; name at least one.");
  }
  for (const auto& item : modules_[0]->named_parameters()) {
    if (item.value().device() == devices_[0]) continue;
    throw UsageError(kDataParallel, "the parameter '", item.key(), "' is on ", item.value().device(),
                     ", the first device is ", devices_[0], ". Move the model there: model->to(device).");
  }
  for (size_t i = 1; i < devices_.size(); ++i) {
    modules_.push_back(cloned(*modules_[0], devices_[i]));
    // Gradients flow on to the originals if the copies require them.
    for (const auto& parameter : modules_[i]->parameters()) parameter.set_requires_grad(false);
  }
}

void Replicas::refresh(size_t count) const {
  const auto parameters = modules_[0]->parameters(), buffers = modules_[0]->buffers();
  for (size_t i = 1; i < count; ++i) {
    const auto copies = modules_[i]->parameters(), buffer_copies = modules_[i]->buffers();
    if (copies.size() != parameters.size() || buffer_copies.size() != buffers.size()) {
      throw UsageError(kDataParallel, "the model now has ", parameters.size(), " parameters and ", buffers.size(),
                       " buffers, its replicas have ", copies.size(), " and ", buffer_copies.size(),
                       ". Call data_parallel again after changing a model.");
    }
    for (size_t k = 0; k < copies.size(); ++k) link(copies[k], parameters[k]);
    for (size_t k = 0; k < buffers.size(); ++k) {
      const at::Tensor buffer = buffers[k].detach();
      buffer_copies[k].set_data(buffer.to(devices_[i], buffer.scalar_type(), false, /*copy=*/true));
    }
    copy_modes(*modules_[i], *modules_[0]);
  }
}

std::vector<Part> plan_parts(const std::vector<at::Tensor>& inputs, size_t num_devices) {
  std::optional<int64_t> rows;
  for (const at::Tensor& input : inputs) {
    if (input.dim() == 0) continue;
    if (rows && *rows != input.size(0)) {
      throw UsageError(kDataParallel, "inputs have ", *rows, " and ", input.size(0),
                       " rows along dim 0; expected the same batch size in all.");
    }
    rows = input.size(0);
  }
  if (!rows || *rows == 0) return {{0, 0}};
  const auto devices = static_cast<int64_t>(num_devices);
  const int64_t length = (*rows + devices - 1) / devices;
  std::vector<Part> parts;
  for (int64_t start = 0; start < *rows; start += length) {
    parts.push_back({start, std::min(length, *rows - start)});
  }
  return parts;
}

at::Tensor part_of(const at::Tensor& tensor, const Part& part, c10::Device device) {
  return (tensor.dim() == 0 ? tensor : tensor.narrow(0, part.start, part.length)).to(device);
}

at::Tensor gathered(const std::vector<at::Tensor>& parts, c10::Device device) {
  std::vector<at::Tensor> here;
  for (const at::Tensor& part : parts) here.push_back(part.to(device));
  return parts.front().dim() == 0 ? at::stack(here) : at::cat(here);
}

void run_in_threads(size_t count, const std::function<void(size_t)>& fn) {
  const at::ThreadLocalState modes;
  const auto set_streams = count > 1 ? process::streams_for_threads() : std::function<void()>();
  std::vector<std::exception_ptr> errors(count);
  const auto run = [&](size_t i) {
    try {
      if (i > 0) set_streams();
      fn(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;  // waited for, also where the system has none left for all
    for (size_t i = 1; i < count; ++i) {
      threads.emplace_back([&, i] {
        const at::ThreadLocalStateGuard as_there(modes);
        run(i);
      });
    }
    run(0);
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace detail

std::vector<c10::Device> all_devices() {
  std::vector<c10::Device> devices;
  const c10::DeviceType type = at::hasCUDA() ? c10::kCUDA : c10::kCPU;
  if (type == c10::kCPU) return {c10::Device(type)};
  const auto count = c10::impl::VirtualGuardImpl(type).deviceCount();
  for (c10::DeviceIndex index = 0; index < count; ++index) devices.emplace_back(type, index);
  return devices;
}

}  // namespace hasten::parallel
