// Interceptor: an object that is called before libtorch's operators touch a certain tensor.
//
// A module of libtorch has no hooks, but every operator passes libtorch's dispatcher. A tensor with an interceptor has
// a spare dispatch key in its key set, above autograd and autocast. It carries the list of its interceptors. This room
// owns the two spare keys and every kernel registered at them. libtorch takes one kernel an operator and one fallback a
// key in a process. There are two levels. kOperators costs nothing for operators that no interceptor names;
// kEveryOperator covers them all.
//
// The key stays with copies of the handle, views, detach() and data(). It is lost with copies of the values (clone, to
// another dtype), and if set_data puts in another tensor. The list is found at the tensor, at the base of a view, or by
// the storage.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <string_view>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace hasten::interception {

enum class Level {
  /// Called for the operators that operators() names: key TESTING_ONLY_GenericWrapper.
  kOperators,
  /// Called for every operator, before those of kOperators: key TESTING_ONLY_GenericMode.
  kEveryOperator,
};

using Stack = std::vector<c10::IValue>;

class Interceptor {
 public:
  virtual ~Interceptor() = default;

  virtual Level level() const { return Level::kOperators; }
  /// Full names ("aten::linear"), all of this room's table (operator_table.h); for kOperators.
  virtual std::vector<std::string_view> operators() const { return {}; }

  /// Called with the operator's arguments at the end of the stack. Returns true if it has replaced them by the results.
  /// It may instead change arguments and return false: the next interceptor, and the operator, get these. Operators
  /// that it calls are not intercepted at its own level, and autograd records them.
  virtual bool intercept(const c10::OperatorHandle& op, Stack& stack) = 0;
};

/// Appends to the tensor's interceptors; those of one tensor are called in this order. Value and identity of the tensor
/// stay. Throws: UsageError if it names an operator that is not in the table.
void add_interceptor(const at::Tensor& tensor, std::shared_ptr<Interceptor> interceptor);

/// Takes it off the tensor. Views that were made before lose it as well. Without effect if it is not there.
void remove_interceptor(const at::Tensor& tensor, const Interceptor* interceptor);

/// Returns the tensor's interceptors of one level, in their order.
std::vector<std::shared_ptr<Interceptor>> interceptors_of(const at::Tensor& tensor, Level level);

/// Returns the interceptors of one level that a call of the operator asks, each once, in the order of its arguments.
/// These are at the end of the stack. Of kOperators it returns those that name the operator, without those before
/// scopes.
std::vector<std::shared_ptr<Interceptor>> interceptors_of(const c10::OperatorHandle& op, const Stack& stack,
                                                          Level level);

/// Returns the first of the tensor's interceptors that is a T; null if none is.
template <class T>
std::shared_ptr<T> find_interceptor(const at::Tensor& tensor) {
  for (const Level level : {Level::kOperators, Level::kEveryOperator}) {
    for (const auto& interceptor : interceptors_of(tensor, level)) {
      if (auto found = std::dynamic_pointer_cast<T>(interceptor)) return found;
    }
  }
  return nullptr;
}

/// Returns true if an operator is called from inside another one's kernel, below autograd: whatever is computed in its
/// place there gets no gradient.
bool is_below_autograd();

/// While it exists, the interceptor is called for every operator of this thread, whatever tensors it takes, and for
/// factories (a recorder, construction without memory). Scopes nest; the innermost is called first.
class EveryOperatorScope {
 public:
  explicit EveryOperatorScope(Interceptor& interceptor);
  ~EveryOperatorScope();
  EveryOperatorScope(const EveryOperatorScope&) = delete;
  EveryOperatorScope& operator=(const EveryOperatorScope&) = delete;

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

/// Calls the operator from inside intercept() of an EveryOperatorScope's interceptor. The interceptors that come after
/// this one are asked. The scope stays in force for the operators of which a composite one is made. The caller then
/// sees the results on the stack, and returns true. Blocks: as the operator does. Throws: the
/// exceptions of the operator and of interceptors.
void call_after(const c10::OperatorHandle& op, Stack& stack);

/// While it exists, this thread's operators pass both keys by.
class PassScope {
 public:
  PassScope();
  ~PassScope();
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

}  // namespace hasten::interception
