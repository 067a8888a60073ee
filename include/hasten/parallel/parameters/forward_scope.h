// ForwardScopes: objects that are opened round a prepared model's forward, such as autocast, a phase of the profiler,
// or units brought in.
//
// PreparedModel enters the list for `model(x)` and, through a proxy, for any method called by `model->…`, until the end
// of that full expression. Hooks are entered in their order and left in the opposite one, also by an exception. The
// user's module is not touched: `net(x)` past the handle enters nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace torch::nn {
class Module;
}

namespace hasten::parallel {

class ForwardHook {
 public:
  /// The opened scope; its destructor closes it.
  class Entered {
   public:
    virtual ~Entered() = default;
  };
  virtual ~ForwardHook() = default;
  /// Called before forward, in the calling thread. May return null if there is nothing to close.
  virtual std::unique_ptr<Entered> enter(torch::nn::Module& module) = 0;
};

/// The position of a hook: the first is entered first. kPhase is for those that record where a step stands.
enum class ForwardOrder { kPhase, kParallel, kRecompute, kAutocast };

/// The scopes of a model. Handles of the same model share it.
class ForwardScopes {
 public:
  /// All hooks entered, while it exists.
  class Scope {
   public:
    Scope() = default;
    Scope(Scope&&) noexcept = default;
    Scope& operator=(Scope&&) = delete;
    ~Scope();

   private:
    friend class ForwardScopes;
    std::vector<std::unique_ptr<ForwardHook::Entered>> entered_;
  };

  void add(ForwardOrder order, std::shared_ptr<ForwardHook> hook);
  /// Nothing if it is not there.
  void remove(const ForwardHook* hook);
  /// Collective: as the hooks are. Blocks: as they do. Throws: the exceptions of the hooks; scopes entered before are
  /// left.
  [[nodiscard]] Scope enter(torch::nn::Module& module) const;
  bool empty() const noexcept { return hooks_.empty(); }
  bool has(ForwardOrder order) const noexcept;

  /// Gives the first tensor among the inputs of `model(x)`, before dtypes are changed; called with an undefined one if
  /// no input is a tensor. Unset: it stays.
  std::function<at::Tensor(const at::Tensor&)> input = {};
  /// Floating-point inputs of `model(x)` are cast to this dtype. Unset: they stay.
  std::optional<c10::ScalarType> input_dtype = {};
  /// Gives each output of `model(x)`, before dtypes are changed. Unset: they stay.
  std::function<at::Tensor(const at::Tensor&)> output = {};
  /// Half-precision outputs of `model(x)` become float32.
  bool float32_outputs = false;
  /// Floating-point outputs of `model(x)` are cast to this dtype, whatever float32_outputs is. Unset: they are not.
  std::optional<c10::ScalarType> output_dtype = {};

 private:
  struct Entry {
    ForwardOrder order;
    std::shared_ptr<ForwardHook> hook;
  };
  std::vector<Entry> hooks_;
};

}  // namespace hasten::parallel
