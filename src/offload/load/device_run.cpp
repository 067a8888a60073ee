// See device_run.h.
#include "offload/load/device_run.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/offload/units/cast_weights.h"
#include "offload/units/peer_copies.h"

namespace hasten::offload::detail {
namespace {

using torch::autograd::variable_list;

// Operators that read no memory, or that read a weight where it rests.
constexpr std::array<std::string_view, 11> kNoReads{
    "aten::detach",       "aten::alias",          "aten::set_",
    "aten::set_data",     "aten::requires_grad_", "aten::retain_grad",
    "aten::is_same_size", "aten::_version",       "aten::_has_compatible_shallow_copy_type",
    "aten::data",         "aten::record_stream"};
// Copies: nothing is moved for them.
constexpr std::array<std::string_view, 6> kCopies{"aten::clone", "aten::to",         "aten::_to_copy",
                                                  "aten::copy_", "aten::pin_memory", "aten::_pin_memory"};

template <size_t n>
bool is_one_of(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <class Visit>
void visit_argument(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
    }
  }
}

template <class Change>
void change_argument(c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = change(value.toTensor());
  } else if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) {
      if (tensor.defined()) tensor = change(tensor);
    }
    value = std::move(tensors);
  } else if (value.isOptionalTensorList()) {
    auto list = value.toOptionalTensorList().copy();
    for (size_t i = 0; i < list.size(); ++i) {
      const std::optional<at::Tensor> tensor = list.get(i);
      if (tensor && tensor->defined()) list.set(i, change(*tensor));
    }
    value = std::move(list);
  }
}

// Kernels of all devices take numbers of the CPU.
bool is_number(const at::Tensor& tensor) {
  return tensor.dim() == 0 && tensor.is_cpu();
}

// Another tensor in a weight's place, as autograd sees it: a copy of the weight.
struct UseInPlaceOf : torch::autograd::Function<UseInPlaceOf> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& other) {
    context->saved_data["device"] = weight.device();
    return other.detach();
  }
  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& gradients) {
    return {gradients[0].to(context->saved_data["device"].toDevice()), at::Tensor()};
  }
};

at::Tensor in_place_of(const at::Tensor& weight, const at::Tensor& other) {
  const bool differentiates =
      at::GradMode::is_enabled() && weight.requires_grad() && !interception::is_below_autograd();
  return differentiates ? UseInPlaceOf::apply(weight, other) : other;
}

// Where this thread's last weight has computed.
struct Location {
  const DeviceRun* run = nullptr;
  c10::Device device = c10::Device(at::kCPU);
  bool in_scope = false;
};

Location& location() {
  thread_local Location here;
  return here;
}

}  // namespace

struct DeviceRun::Call {
  struct Argument {
    at::Tensor tensor;
    Weight* weight;
    const FormPlace* form;
    bool is_written;
    bool rests() const { return weight != nullptr && weight->feed >= 0; }
    c10::Device device() const { return rests() && !is_written ? weight->device : tensor.device(); }
  };
  std::vector<Argument> arguments = {};
  c10::Device device = c10::Device(at::kCPU);
  bool is_mixed = false, has_resting = false, has_weights = false, has_forms = false;
};

DeviceRun::Weight* DeviceRun::find(const at::Tensor& tensor) {
  const auto found = by_tensor_.find(tensor.unsafeGetTensorImpl());
  return found == by_tensor_.end() ? nullptr : &weights_[found->second];
}

bool DeviceRun::computes_elsewhere(const at::Tensor& tensor) const {
  const Weight* weight = find(tensor);
  return weight != nullptr && !weight->device.is_cpu();
}

bool DeviceRun::rests(const at::Tensor& tensor) const {
  const Weight* weight = find(tensor);
  return weight != nullptr && weight->feed >= 0;
}

const DeviceRun::FormPlace* DeviceRun::find_form(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return nullptr;
  const auto found = forms_.find(tensor.storage().unsafeGetStorageImpl());
  return found == forms_.end() ? nullptr : &found->second;
}

void DeviceRun::add_resident(const at::Tensor& weight, bool is_buffer, c10::Device device,
                             const std::vector<c10::Device>& others) {
  Weight added{.tensor = weight, .device = device, .is_buffer = is_buffer};
  for (const auto& other : others) added.copies.try_emplace(other);
  by_tensor_[weight.unsafeGetTensorImpl()] = weights_.size();
  weights_.push_back(std::move(added));
}

void DeviceRun::add_feed(std::unique_ptr<DeviceFeed> feed) {
  const int number = static_cast<int>(feeds_.size());
  for (size_t unit = 0; unit < feed->units().size(); ++unit) {
    const StreamUnit& of = feed->units()[unit];
    for (size_t i = 0; i < of.tensors.size(); ++i) {
      by_tensor_[of.tensors[i].unsafeGetTensorImpl()] = weights_.size();
      weights_.push_back({.tensor = of.tensors[i], .device = feed->device(), .feed = number, .unit = unit, .index = i});
      forms_[feed->form(unit, i).storage().unsafeGetStorageImpl()] = {number, unit, of.tensor_names[i]};
    }
  }
  feeds_.push_back(std::move(feed));
}

// Before those that cast the weight: a form on the device is cast in its place.
void DeviceRun::add_first(const at::Tensor& weight) {
  const auto others = interception::interceptors_of(weight, level());
  for (const auto& other : others) interception::remove_interceptor(weight, other.get());
  interception::add_interceptor(weight, shared_from_this());
  for (const auto& other : others) interception::add_interceptor(weight, other);
}

void DeviceRun::start() {
  std::set<std::string> devices;
  for (Weight& weight : weights_) {
    devices.insert(weight.device.str());
    for (auto& [device, copy] : weight.copies) {
      devices.insert(device.str());
      copy_at(weight, device);
    }
    add_first(weight.tensor);
    if (weight.feed >= 0) {
      const auto& feed = *feeds_[static_cast<size_t>(weight.feed)];
      interception::add_interceptor(feed.form(weight.unit, weight.index), shared_from_this());
    }
  }
  num_devices_ = devices.size();
}

void DeviceRun::stop() {
  if (stopped_.exchange(true)) return;
  for (const Weight& weight : weights_) interception::remove_interceptor(weight.tensor, this);
  by_tensor_.clear();
  weights_.clear();
  feeds_.clear();
}

StreamCounts DeviceRun::counts() const {
  StreamCounts sum;
  for (const auto& feed : feeds_) {
    const StreamCounts counts = feed->counts();
    sum.reads += counts.reads;
    sum.drops += counts.drops;
    sum.resident_bytes += counts.resident_bytes;
  }
  return sum;
}

DeviceRun::Call DeviceRun::examine(const c10::OperatorHandle& op, const interception::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const size_t base = stack.size() - arguments.size();
  Call call;
  std::optional<c10::Device> first;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_write = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    visit_argument(stack[base + i], [&](const at::Tensor& tensor) {
      Call::Argument argument{tensor, find(tensor), find_form(tensor), is_write};
      call.has_resting |= argument.rests();
      call.has_weights |= argument.weight != nullptr;
      call.has_forms |= argument.form != nullptr;
      if (argument.weight != nullptr || (!is_number(tensor) && !tensor.is_meta())) {
        if (!first) first = argument.device();
        call.is_mixed |= argument.device() != *first;
      }
      call.arguments.push_back(std::move(argument));
    });
  }
  call.device = first.value_or(c10::Device(at::kCPU));
  return call;
}

void DeviceRun::choose_device(Call& call) const {
  const auto& arguments = call.arguments;
  const auto written =
      std::find_if(arguments.begin(), arguments.end(), [](const auto& argument) { return argument.is_written; });
  if (written != arguments.end()) {
    call.device = written->device();
    return;
  }
  const auto weight = std::find_if(arguments.begin(), arguments.end(), [](const auto& argument) {
    return argument.weight != nullptr && !argument.weight->is_buffer;
  });
  if (weight != arguments.end()) {
    call.device = weight->weight->device;
    for (const auto& other : arguments) {
      if (other.weight == nullptr && weight->weight->copies.count(other.device()) > 0) call.device = other.device();
    }
    auto& here = location();
    here = {this, call.device, here.run == this && here.in_scope};
    return;
  }
  if (!call.is_mixed) return;
  if (location().run == this) {
    call.device = location().device;
    return;
  }
  const auto accelerated = std::find_if(arguments.begin(), arguments.end(),
                                        [](const auto& argument) { return !argument.device().is_cpu(); });
  if (accelerated != arguments.end()) call.device = accelerated->device();
}

void DeviceRun::read_units(const Call& call, bool with_weights) {
  std::vector<std::vector<size_t>> units(feeds_.size());
  const auto add = [&](int feed, size_t unit) {
    auto& of = units[static_cast<size_t>(feed)];
    if (std::find(of.begin(), of.end(), unit) == of.end()) of.push_back(unit);
  };
  for (const auto& argument : call.arguments) {
    if (argument.form != nullptr) add(argument.form->feed, argument.form->unit);
    if (!argument.rests()) continue;
    if (argument.is_written) {
      feeds_[static_cast<size_t>(argument.weight->feed)]->note_write(argument.weight->unit);
    } else if (with_weights) {
      add(argument.weight->feed, argument.weight->unit);
    }
  }
  for (size_t i = 0; i < feeds_.size(); ++i) {
    if (!units[i].empty()) feeds_[i]->read(units[i]);
  }
}

void DeviceRun::refuse_ended(const interception::Stack& stack, size_t base) const {
  for (size_t i = base; i < stack.size(); ++i) {
    visit_argument(stack[i], [&](const at::Tensor& tensor) {
      const auto* form = find_form(tensor);
      if (form == nullptr) return;
      throw UsageError(Origin{"offload"}, "the values of '", form->name, "' on ", tensor.device().str(),
                       " were streamed, and the dispatched model is gone. Keep its "
                       "handle until backward has ended.");
    });
  }
}

bool DeviceRun::intercept(const c10::OperatorHandle& op, interception::Stack& stack) {
  const std::string& name = op.schema().name();
  if (is_one_of(kNoReads, name)) return false;
  const size_t base = stack.size() - op.schema().arguments().size();
  if (stopped_) {
    refuse_ended(stack, base);
    return false;
  }
  Call call = examine(op, stack);
  if (!call.has_weights && !call.has_forms && !call.is_mixed) return false;
  const bool is_copy = is_one_of(kCopies, name);
  read_units(call, !is_copy);
  if (is_copy) return false;
  choose_device(call);
  if (!call.is_mixed && !call.has_resting) return false;
  for (size_t i = base; i < stack.size(); ++i) {
    const auto* alias = op.schema().arguments()[i - base].alias_info();
    if (alias != nullptr && alias->isWrite()) continue;
    change_argument(stack[i], [&](const at::Tensor& tensor) { return placed(tensor, call.device); });
  }
  return false;
}

at::Tensor DeviceRun::form_of(const Weight& weight) const {
  const at::Tensor& form = feeds_[static_cast<size_t>(weight.feed)]->form(weight.unit, weight.index);
  const at::Tensor value = in_place_of(weight.tensor, form);
  const at::ScalarType type = compute_type_of(weight.tensor);
  return type == value.scalar_type() ? value : value.to(type);
}

at::Tensor DeviceRun::copy_at(Weight& weight, c10::Device device) {
  const std::lock_guard lock(copies_mutex_);
  const at::NoGradGuard no_grad;
  Copy& copy = weight.copies.at(device);
  const auto& counter = weight.tensor.unsafeGetTensorImpl()->version_counter();
  const uint32_t version = counter.enabled() ? counter.current_version() : 0;
  if (!copy.tensor.defined()) {
    copy.tensor = peer_copies().moved(weight.tensor.detach(), device);
  } else if (copy.version != version) {
    copy.tensor.copy_(peer_copies().moved(weight.tensor.detach(), device));
  }
  copy.version = version;
  return copy.tensor;
}

at::Tensor DeviceRun::placed(const at::Tensor& tensor, c10::Device device) {
  Weight* weight = find(tensor);
  if (weight != nullptr && weight->feed >= 0) return peer_copies().moved(form_of(*weight), device);
  if (weight != nullptr && weight->copies.count(device) > 0) return in_place_of(tensor, copy_at(*weight, device));
  if (is_number(tensor) || tensor.is_meta() || tensor.device() == device) return tensor;
  follow(tensor);
  return peer_copies().moved(tensor, device);
}

// Past the handle nothing sees operators without weights. A value that has crossed carries this object, so that an
// operator that takes it on its old device (a residual sum) is seen.
void DeviceRun::follow(const at::Tensor& tensor) {
  const auto& here = location();
  if (num_devices_ < 2 || tensor.is_cpu() || (here.run == this && here.in_scope)) return;
  if (interception::find_interceptor<DeviceRun>(tensor) != nullptr) return;
  interception::add_interceptor(tensor, shared_from_this());
  if (!tensor.is_inference() && tensor.is_view())
    interception::add_interceptor(at::Tensor(tensor._base()), shared_from_this());
}

DeviceRun::Pass::Pass(std::shared_ptr<DeviceRun> run, c10::Device main) : run_(std::move(run)) {
  const bool needs_scope = run_->num_devices_ > 1;
  location() = {run_.get(), main, needs_scope};
  if (needs_scope) scope_ = std::make_unique<interception::EveryOperatorScope>(*run_);
}

DeviceRun::Pass::~Pass() {
  scope_.reset();
  location() = {};
  for (const auto& feed : run_->feeds_) feed->end_use();
}

}  // namespace hasten::offload::detail
