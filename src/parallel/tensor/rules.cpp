// The table of rules, and what they share. See rules.h.
#include "parallel/tensor/rules.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::parallel::tensor {
namespace {

const Rules& rules() {
  static const Rules table = [] {
    Rules all;
    add_shape_rules(all);
    add_product_rules(all);
    add_attention_rules(all);
    add_reduce_rules(all);
    add_loss_rules(all);
    add_unary_rules(all);
    return all;
  }();
  return table;
}

// While it exists, operators on cut parameters are taken although a rule is running. A composite operator is carried
// out by the operators of which it is made.
class Decomposed {
 public:
  explicit Decomposed(const CutAxis& axis) : before_(running_axes()) { running_axes() &= ~axis.bit(); }
  ~Decomposed() { running_axes() = before_; }
  Decomposed(const Decomposed&) = delete;
  Decomposed& operator=(const Decomposed&) = delete;

 private:
  uint64_t before_;
};

bool has_out(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (argument.is_out()) return true;
  }
  return false;
}

// A whole copy that stands for a view of a cut value, since no rank's part has such a view. A write to it, or to a view
// of it, would not reach the value, and is refused.
class LostView final : public interception::Interceptor, public interception::BeforeScopes {
 public:
  explicit LostView(const CutAxis& axis)
      : origin_{"tensor", axis.part(), axis.num_parts()}, axis_(axis.options().name) {}

  interception::Level level() const override { return interception::Level::kEveryOperator; }
  int order() const noexcept override { return std::numeric_limits<int>::max(); }
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override {
    const auto& arguments = op.schema().arguments();
    const size_t begin = stack.size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].alias_info() == nullptr || !arguments[i].alias_info()->isWrite()) continue;
      interception::visit_tensors(stack[begin + i], [&](const at::Tensor& written) { refuse(op, written); });
    }
    return false;
  }

 private:
  void refuse(const c10::OperatorHandle& op, const at::Tensor& written) const {
    const auto all = interception::interceptors_of(written, level());
    if (std::none_of(all.begin(), all.end(), [this](const auto& one) { return one.get() == this; })) return;
    throw UsageError(origin_, "'", op.schema().name(), "' writes to a view of a value that is cut over ", axis_,
                     ", at places which no rank's part has by itself, so that the write would be lost. Write to a "
                     "clone() of the view, and put the value together by cat, where or index_put.");
  }

  Origin origin_;
  std::string axis_;
};

bool gives_views(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return !schema.is_mutable() && !returns.empty() && returns[0].alias_info() != nullptr;
}

}  // namespace

uint64_t& running_axes() {
  thread_local uint64_t axes = 0;
  return axes;
}

at::Tensor strange_indices(const at::Tensor& index, int64_t size, const at::Tensor& counted, const char* words) {
  at::Tensor strange = index.lt(0).logical_or(index.ge(size));
  if (counted.defined()) strange = strange.logical_and(counted);
  if (index.is_cpu() && GlobalTensor::of(index) == nullptr) {
    const interception::PassScope pass;
    TORCH_CHECK_INDEX(!strange.any().item<bool>(), words);
  }
  return strange;
}

void apply_rule(CutAxis& axis, const c10::OperatorHandle& op, interception::Stack& stack) {
  RuleCall call(axis, op, stack);
  bool any_cut = false;
  call.visit([&](const at::Tensor& tensor) { any_cut = any_cut || axis.is_cut(tensor); });
  if (!any_cut) return op.callBoxed(stack);
  if (has_out(op.schema())) {
    throw UsageError(Origin{"tensor", axis.part(), axis.num_parts()}, "'", op.schema().name(),
                     "' with an out= tensor on a value that is cut over ", axis.options().name,
                     ". Use the form that returns its result.");
  }
  const auto found = rules().find(op.schema().name());
  if (found != rules().end()) return found->second(call);
  if (op.hasTag(at::Tag::pointwise)) return pointwise_rule(call);
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    const Decomposed scope(axis);
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  }
  call.call_on_whole();
}

int64_t RuleCall::integer(size_t i, int64_t otherwise) const {
  return i < size() && (*this)[i].isInt() ? (*this)[i].toInt() : otherwise;
}

int64_t RuleCall::dim(size_t i, int64_t dims) const {
  const int64_t given = integer(i);
  return given < 0 ? given + dims : given;
}

void RuleCall::give(at::Tensor result) {
  give_value(std::move(result));
}

void RuleCall::give_value(c10::IValue result) {
  stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(begin_), stack_.end());
  stack_.push_back(std::move(result));
}

void RuleCall::give(const std::vector<at::Tensor>& results) {
  stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(begin_), stack_.end());
  stack_.emplace_back(c10::List<at::Tensor>(results));
}

at::Tensor RuleCall::call() {
  op.callBoxed(stack_);
  return stack_.at(begin_).isTensor() ? stack_.at(begin_).toTensor() : at::Tensor();
}

void RuleCall::call_on_parts(const Cut& cut, int64_t size) {
  replace([&](const at::Tensor& tensor) { return axis.local_of(tensor); });
  op.callBoxed(stack_);
  for (size_t i = begin_; i < stack_.size(); ++i) {
    replace_at(stack_[i], [&](const at::Tensor& tensor) { return axis.wrap(tensor, cut, size); });
  }
}

void RuleCall::call_on_whole() {
  axis.note_gathered(op);
  const bool writes = op.schema().is_mutable();
  const at::Tensor self = writes && has_tensor(0) ? (*this)[0].toTensor() : at::Tensor();
  const Argument before = axis.look(self);
  const bool loses_views = gives_views(op.schema()) && has_tensor(0) && axis.is_cut((*this)[0].toTensor());
  replace([&](const at::Tensor& tensor) { return whole(axis.look(tensor)); });
  op.callBoxed(stack_);
  if (loses_views) refuse_writes_to_results();
  if (!writes || !before.is_cut()) return;
  // The write goes to this rank's part.
  const at::Tensor written = part(axis.look(stack_.at(begin_).toTensor()), before.cut);
  before.local.copy_(written);
  stack_.at(begin_) = self;
}

void RuleCall::refuse_writes_to_results() const {
  const auto lost = std::make_shared<LostView>(axis);
  for (size_t i = begin_; i < stack_.size(); ++i) {
    interception::visit_tensors(stack_[i], [&](const at::Tensor& view) { interception::add_interceptor(view, lost); });
  }
}

void RuleCall::give_lost(at::Tensor view) {
  give(std::move(view));
  refuse_writes_to_results();
}

void RuleCall::give_lost(const std::vector<at::Tensor>& views) {
  give(views);
  refuse_writes_to_results();
}

at::Tensor RuleCall::whole(const Argument& x) const {
  if (!x.is_cut()) return x.local;
  return exchange(axis, x.local, {ExchangeKind::kGather, x.cut, x.cut_size()});
}

at::Tensor RuleCall::whole_for_parts(const Argument& x) const {
  if (!x.is_cut()) return entered(x);
  return exchange(axis, x.local, {ExchangeKind::kGatherForParts, x.cut, x.cut_size()});
}

at::Tensor RuleCall::part(const Argument& x, const Cut& cut) const {
  if (x.cut == cut) return x.local;
  return exchange(axis, whole(x), {ExchangeKind::kSlice, cut, x.size(cut.dim)});
}

at::Tensor RuleCall::entered(const Argument& x) const {
  if (!x.local.defined()) return x.local;
  return exchange(axis, x.local, {ExchangeKind::kEnter});
}

at::Tensor RuleCall::sum(const at::Tensor& x) const {
  return exchange(axis, x, {ExchangeKind::kSum});
}

}  // namespace hasten::parallel::tensor
