// RemoteModule: a torch::nn module at another worker, with the module's own verbs.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/rpc/agent.h"

namespace hasten::rpc {

namespace detail {

/// The module at its owner. A single class for all modules limits the number of served functions.
template <class M>
class ModuleHost {
 public:
  ModuleHost(std::shared_ptr<M> made, c10::Device device) : module(std::move(made)), device_(device) {
    module->to(device_);
  }
  /// The output comes back on the CPU unless the caller has a place for it.
  at::Tensor forward_tensor(const at::Tensor& input) {
    const at::Tensor output = module->forward(input.to(device_));
    return output.is_cpu() || call().can_carry(output.device()) ? output : output.cpu();
  }
  void train(bool on) { module->train(on); }
  void zero_grad() { module->zero_grad(); }
  void to(const std::string& device) { module->to(device_ = c10::Device(device)); }
  /// Values by name, parameters first.
  std::vector<std::pair<std::string, at::Tensor>> state_dict() {
    std::vector<std::pair<std::string, at::Tensor>> all;
    for (const auto& one : module->named_parameters()) all.emplace_back(one.key(), one.value().detach());
    for (const auto& one : module->named_buffers()) all.emplace_back(one.key(), one.value());
    return all;
  }
  void load_state_dict(const std::vector<std::pair<std::string, at::Tensor>>& values) {
    const at::NoGradGuard no_grad;
    for (const auto& [name, value] : values) {
      auto parameters = module->named_parameters();
      auto buffers = module->named_buffers();
      at::Tensor* place = parameters.find(name) != nullptr ? parameters.find(name) : buffers.find(name);
      if (place == nullptr) throw UsageError({"rpc"}, "load_state_dict: the module has no '", name, "'.");
      if (place->sizes() != value.sizes())
        throw UsageError({"rpc"}, "load_state_dict: '", name, "' has sizes ", place->sizes(), ", the value ",
                         value.sizes(), ".");
      place->copy_(value);
    }
  }
  std::vector<RRef<at::Tensor>> parameters(bool recurse) {
    std::vector<RRef<at::Tensor>> all;
    const CallInfo here = call();
    for (const at::Tensor& one : module->parameters(recurse)) all.push_back(here.rref(one));
    return all;
  }

  std::shared_ptr<M> module;

 private:
  c10::Device device_;
};

template <class M, class... A>
std::shared_ptr<ModuleHost<M>> host_module(const std::string& device, A... arguments) {
  return std::make_shared<ModuleHost<M>>(std::make_shared<M>(std::move(arguments)...), c10::Device(device));
}

/// "ps/cpu", "rank:1/cuda:0", "ps": worker and device.
std::pair<To, std::string> parse_remote_device(const std::string& place);

}  // namespace detail

/// A module of class M at a worker. A copyable handle; may be an argument of calls. M is a subclass of
/// torch::nn::Module with `Tensor forward(Tensor)`. CPU inputs are moved to the module's device.
template <class M>
class RemoteModule {
 public:
  using Host = detail::ModuleHost<M>;
  explicit RemoteModule(RRef<Host> module) : module_(std::move(module)) {}
  /// Constructs an M there. `place` is worker and device: "ps/cpu", "rank:1/cuda:0"; the device is cpu by default.
  /// Blocks: no; the first use carries the constructor's error. Throws: UsageError (unknown worker, not
  /// served there: add_module).
  template <class... A>
  RemoteModule(const Agent& agent, const std::string& place, A&&... arguments)
      : module_(make(agent, place, std::forward<A>(arguments)...)) {}

  at::Tensor forward(const at::Tensor& input) const { return forward_async(input).wait(); }
  Future<at::Tensor> forward_async(const at::Tensor& input) const {
    return module_.template async<&Host::forward_tensor>(input);
  }
  /// References to the parameters, for a DistributedOptimizer.
  std::vector<RRef<at::Tensor>> remote_parameters(bool recurse = true) const {
    return module_.template sync<&Host::parameters>(recurse);
  }
  const RRef<Host>& module_rref() const noexcept { return module_; }
  void train(bool on = true) const { module_.template sync<&Host::train>(on); }
  void eval() const { train(false); }
  void zero_grad() const { module_.template sync<&Host::zero_grad>(); }
  void to(c10::Device device) const { module_.template sync<&Host::to>(device.str()); }
  std::vector<std::pair<std::string, at::Tensor>> state_dict() const {
    return module_.template sync<&Host::state_dict>();
  }
  void load_state_dict(const std::vector<std::pair<std::string, at::Tensor>>& values) const {
    module_.template sync<&Host::load_state_dict>(values);
  }

 private:
  template <class... A>
  static RRef<Host> make(const Agent& agent, const std::string& place, A&&... arguments) {
    const auto [worker, device] = detail::parse_remote_device(place);
    return agent.remote<Host>(worker, device, std::forward<A>(arguments)...);
  }
  RRef<Host> module_;
};

template <class M>
struct Codec<RemoteModule<M>> {
  static void write(Writer& to, const RemoteModule<M>& value) { detail::write(to, value.module_rref()); }
  static RemoteModule<M> read(Reader& from) { return RemoteModule<M>(detail::read<RRef<detail::ModuleHost<M>>>(from)); }
  static std::string describe() { return "module<" + detail::type_name<M>() + ">"; }
};

/// Serves RemoteModule<M> with a constructor of these arguments.
template <class M, class... Arguments>
Functions& add_module(Functions& functions) {
  using Host = detail::ModuleHost<M>;
  auto thunk = [](const std::shared_ptr<detail::ServedCall>& call) {
    Reader reader(call->packed(), call->core());
    auto arguments = detail::read_arguments<true>(reader, static_cast<std::tuple<std::string, Arguments...>*>(nullptr));
    call->store(detail::make_object(
        std::apply([](auto&&... one) { return detail::host_module<M>(std::move(one)...); }, std::move(arguments))));
  };
  functions.add_thunk(
      detail::constructor_name<Host>(),
      detail::describe_call<void>(static_cast<std::tuple<std::string, detail::Wide<Arguments>...>*>(nullptr)), thunk);
  return functions.template add<&Host::forward_tensor>()
      .template add<&Host::train>()
      .template add<&Host::zero_grad>()
      .template add<&Host::to>()
      .template add<&Host::state_dict>()
      .template add<&Host::load_state_dict>()
      .template add<&Host::parameters>();
}

}  // namespace hasten::rpc
