// See empty.h.
#include "hasten/offload/load/empty.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"
#include "hasten/offload/map/tree_of.h"
#include "hasten/offload/units/set_tensor.h"
#include "offload/load/construction_tape.h"

namespace hasten::offload {
namespace {

using detail::ConstructionTape;

// Data of an empty parameter: its name for errors, and the tape for its values.
class EmptyTensor : public interception::Interceptor {
 public:
  EmptyTensor(std::string name, std::shared_ptr<const ConstructionTape> tape)
      : name_(std::move(name)), tape_(std::move(tape)) {}

  interception::Level level() const override { return interception::Level::kEveryOperator; }

  // Operators among empty tensors go on (a cast of the whole module). A mixture with values has no result.
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override {
    for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
      if (!stack[i].isTensor()) continue;
      const at::Tensor& tensor = stack[i].toTensor();
      if (!tensor.defined() || tensor.is_meta()) continue;
      throw UsageError(Origin{"offload"}, "the parameter '", name_, "' is empty, and ", op.schema().name(),
                       " needs its values. Load a checkpoint, or call offload::materialize(module).");
    }
    return false;
  }

  const std::shared_ptr<const ConstructionTape>& tape() const { return tape_; }

 private:
  std::string name_;
  std::shared_ptr<const ConstructionTape> tape_;
};

bool is_selected(const std::string& name, const std::vector<std::string>& only) {
  if (only.empty()) return true;
  return std::any_of(only.begin(), only.end(), [&](const std::string& requested) {
    return name == requested || requested.empty() || (name.starts_with(requested) && name[requested.size()] == '.');
  });
}

}  // namespace

EmptyOptions EmptyOptions::from(const Environment& environment) {
  return {environment.flag("ACCELERATE_INIT_INCLUDE_BUFFERS").value_or(false)};
}

namespace detail {

// Sets the device of factories, and records nothing.
class DeviceSetter : public interception::Interceptor {
 public:
  explicit DeviceSetter(at::Device device) : device_(device) {}
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override {
    const auto& arguments = op.schema().arguments();
    const size_t base = stack.size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() == "device") stack[base + i] = device_;
    }
    return false;
  }

 private:
  at::Device device_;
};

struct RecordingScope::Impl {
  std::shared_ptr<ConstructionTape> tape;
  std::unique_ptr<DeviceSetter> setter;
  std::unique_ptr<interception::EveryOperatorScope> scope;
};

RecordingScope::RecordingScope(at::Device device) : impl_(std::make_unique<Impl>()) {
  if (device.is_meta()) {
    impl_->tape = std::make_shared<ConstructionTape>();
    impl_->scope = std::make_unique<interception::EveryOperatorScope>(*impl_->tape);
  } else {
    impl_->setter = std::make_unique<DeviceSetter>(device);
    impl_->scope = std::make_unique<interception::EveryOperatorScope>(*impl_->setter);
  }
}

RecordingScope::~RecordingScope() = default;

void RecordingScope::finish(torch::nn::Module& module, const EmptyOptions& options) {
  impl_->scope.reset();
  if (!impl_->tape) return;
  std::unordered_set<const c10::TensorImpl*> left_empty;
  std::vector<NamedTensorRef> empty;
  for (const auto& item : named_tensors(module)) {
    if (!item.tensor.is_meta() || (item.is_buffer && !options.include_buffers)) continue;
    if (left_empty.insert(item.tensor.unsafeGetTensorImpl()).second) empty.push_back(item);
  }
  std::vector<at::Tensor> requested;
  for (const at::Tensor& tensor : impl_->tape->living()) {
    if (left_empty.count(tensor.unsafeGetTensorImpl()) == 0) requested.push_back(tensor);
  }
  const auto values = impl_->tape->replay(requested);
  for (const at::Tensor& tensor : requested) set_tensor(tensor, values.at(tensor.unsafeGetTensorImpl()));
  for (const auto& item : empty) {
    interception::add_interceptor(item.tensor, std::make_shared<EmptyTensor>(item.name, impl_->tape));
  }
  impl_->tape->release(left_empty);
}

void RecordingScope::explain(const std::exception& error) {
  const std::string_view words = error.what();
  const bool is_pointer_access = words.find("data is not allocated yet") != std::string_view::npos ||
                                 words.find("Cannot access data pointer") != std::string_view::npos;
  if (!is_pointer_access) throw;
  throw UsageError(
      Origin{"offload"},
      "a constructor reads a tensor's memory by pointer (accessor, data_ptr), which an empty module has not. "
      "Put that part in offload::real([&] { … }), which runs it as usual.");
}

void run_real(const std::function<void()>& fn) {
  const interception::PassScope pass;
  fn();
}

}  // namespace detail

void fill_empty(const at::Tensor& tensor, const at::Tensor& value) {
  if (const auto empty = interception::find_interceptor<EmptyTensor>(tensor)) {
    interception::remove_interceptor(tensor, empty.get());
  }
  set_tensor(tensor, value);
}

std::vector<std::string> empty_tensors(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : named_tensors(module)) {
    if (item.tensor.is_meta()) names.push_back(item.name);
  }
  return names;
}

std::vector<std::string> unknown_tensors(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : named_tensors(module)) {
    const bool is_known = !item.tensor.is_meta() || interception::find_interceptor<EmptyTensor>(item.tensor) != nullptr;
    if (!is_known) names.push_back(item.name);
  }
  return names;
}

std::vector<std::string> materialize(torch::nn::Module& module, const MaterializeOptions& options) {
  // By tape, so that what was constructed together is replayed together, in its order.
  std::unordered_map<std::shared_ptr<const ConstructionTape>, std::vector<at::Tensor>> requested;
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<std::string> names;
  for (const auto& item : named_tensors(module)) {
    if (!item.tensor.is_meta() || !is_selected(item.name, options.only)) continue;
    names.push_back(item.name);
    if (!seen.insert(item.tensor.unsafeGetTensorImpl()).second) continue;
    const auto empty = interception::find_interceptor<EmptyTensor>(item.tensor);
    if (!empty) {
      throw UsageError(Origin{"offload"}, "'", item.name,
                       "' is on the meta device, but offload::empty_weights has not put it "
                       "there, so its initial values are not known. Load it from a checkpoint.");
    }
    requested[empty->tape()].push_back(item.tensor);
  }
  for (const auto& [tape, tensors] : requested) {
    const auto values = tape->replay(tensors);
    for (const at::Tensor& tensor : tensors) fill_empty(tensor, values.at(tensor.unsafeGetTensorImpl()));
  }
  return names;
}

}  // namespace hasten::offload
