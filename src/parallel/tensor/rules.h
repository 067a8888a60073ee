// Rules: how operators are carried out on cut values, a function an operator (rules_*.cpp), in one table by name.
//
// A rule reads its arguments by their parts, and leaves global tensors. An operator without a rule is decomposed if it
// is a composite one. A pointwise one has the rule of all pointwise ones. Any other runs on whole values.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>
#include <unordered_map>
#include <vector>

#include "hasten/interception/stack_tensors.h"
#include "parallel/tensor/cut_axis.h"
#include "parallel/tensor/exchange.h"

namespace hasten::parallel::tensor {

/// Replaces the arguments at the end of the stack by the results.
/// Collective: as the rule is. Blocks: as that. Throws: the exceptions of operators; UsageError if strict.
void apply_rule(CutAxis& axis, const c10::OperatorHandle& op, interception::Stack& stack);

/// The axes of this thread whose rules are running, a bit each (CutAxis::bit). A rule's own operators on cut parameters
/// are left alone.
uint64_t& running_axes();

/// Returns true where an index of a cut dimension is none of 0 … size - 1. No rank has such an element, so that a sum
/// of all ranks' would be zeros without a word. On the CPU it is refused as libtorch refuses it; callers on devices
/// give no numbers. `counted`: where an index counts; undefined: everywhere. Throws: c10::IndexError with `words`.
at::Tensor strange_indices(const at::Tensor& index, int64_t size, const at::Tensor& counted, const char* words);

/// One operator on its way through a rule.
class RuleCall {
 public:
  RuleCall(CutAxis& axis, const c10::OperatorHandle& op, interception::Stack& stack)
      : axis(axis), op(op), stack_(stack), begin_(stack.size() - op.schema().arguments().size()) {}

  CutAxis& axis;
  const c10::OperatorHandle& op;

  size_t size() const noexcept { return stack_.size() - begin_; }
  c10::IValue& operator[](size_t i) const { return stack_[begin_ + i]; }
  bool has_tensor(size_t i) const { return i < size() && (*this)[i].isTensor() && (*this)[i].toTensor().defined(); }
  /// Returns a tensor argument; an undefined one for none.
  Argument argument(size_t i) const { return axis.look(has_tensor(i) ? (*this)[i].toTensor() : at::Tensor()); }
  /// Returns an integer argument, or `otherwise` for none.
  int64_t integer(size_t i, int64_t otherwise = 0) const;
  /// Returns a dimension argument, counted from the front.
  int64_t dim(size_t i, int64_t dims) const;

  /// Calls `fn` with each tensor, also those of lists.
  template <class Fn>
  void visit(const Fn& fn) const {
    for (size_t i = 0; i < size(); ++i) interception::visit_tensors((*this)[i], fn);
  }
  /// Calls `fn` with each tensor, also those of lists, and puts its result in the place.
  template <class Fn>
  void replace(const Fn& fn) const {
    for (size_t i = 0; i < size(); ++i) replace_at((*this)[i], fn);
  }
  /// Puts the results in the place of the arguments.
  void give(at::Tensor result);
  void give(const std::vector<at::Tensor>& results);
  void give_value(c10::IValue result);
  /// Calls the operator with the arguments as they are; returns its first result.
  at::Tensor call();
  /// Calls the operator with this rank's parts. Each result is cut as `cut`, of a dimension of `size`.
  void call_on_parts(const Cut& cut, int64_t size);
  /// Calls the operator with whole values.
  void call_on_whole();
  /// Gives copies of what one process has as views, or pieces of whole values: writes to them would be lost, and are
  /// refused.
  void give_lost(at::Tensor view);
  void give_lost(const std::vector<at::Tensor>& views);

  /// Returns a whole value; gradients of code that is the same on all ranks, or that differs by rank.
  at::Tensor whole(const Argument& x) const;
  at::Tensor whole_for_parts(const Argument& x) const;
  /// Returns this rank's part of a value as `cut`.
  at::Tensor part(const Argument& x, const Cut& cut) const;
  /// Returns a whole value that is used on parts.
  at::Tensor entered(const Argument& x) const;
  /// Returns the sum of all ranks' values.
  at::Tensor sum(const at::Tensor& x) const;
  at::Tensor wrap(at::Tensor local, const Cut& cut, int64_t size) const {
    return axis.wrap(std::move(local), cut, size);
  }

 private:
  void refuse_writes_to_results() const;
  template <class Fn>
  static void replace_at(c10::IValue& value, const Fn& fn) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) value = fn(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(tensor.defined() ? fn(tensor) : tensor);
      value = std::move(list);
    } else if (value.isList() && value.toListRef().size() > 0) {
      replace_optional(value, fn);
    }
  }
  template <class Fn>
  static void replace_optional(c10::IValue& value, const Fn& fn) {
    bool any = false;
    for (const c10::IValue& item : value.toListRef()) any = any || item.isTensor();
    if (!any) return;
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : value.toListRef()) {
      list.push_back(item.isTensor() && item.toTensor().defined() ? std::optional(fn(item.toTensor())) : std::nullopt);
    }
    value = std::move(list);
  }

  interception::Stack& stack_;
  size_t begin_;
};

using Rule = void (*)(RuleCall&);
using Rules = std::unordered_map<std::string_view, Rule>;

// The rules of a file, added to the table.
void add_shape_rules(Rules& rules);
void add_product_rules(Rules& rules);
void add_attention_rules(Rules& rules);
void add_reduce_rules(Rules& rules);
void add_loss_rules(Rules& rules);
void add_unary_rules(Rules& rules);
/// The rule of all pointwise operators.
void pointwise_rule(RuleCall& call);

}  // namespace hasten::parallel::tensor
