// See forward_pass.h.
#include "parallel/pipeline/forward_pass.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <optional>
#include <string>

#include "hasten/core/error.h"
#include "parallel/pipeline/operator_values.h"

namespace hasten::parallel::pipeline {
namespace {

ForwardPass*& pass_of_thread() {
  thread_local ForwardPass* pass = nullptr;
  return pass;
}

bool& inside_of_thread() {
  thread_local bool is_inside = false;
  return is_inside;
}

struct Inside {
  Inside() { inside_of_thread() = true; }
  ~Inside() { inside_of_thread() = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

bool is_equal_of_itself(const c10::OperatorHandle& op, const interception::Stack& stack, size_t begin) {
  if (op.schema().name() != "aten::equal") return false;
  return stack[begin].toTensor().is_same(stack[begin + 1].toTensor());
}

CallRecord::Slot slot_of(const c10::IValue& result) {
  if (result.isTensor() || result.isNone()) return {CallRecord::Kind::kTensor, 1};
  if (result.isTensorList()) return {CallRecord::Kind::kTensors, static_cast<int64_t>(result.toListRef().size())};
  return {CallRecord::Kind::kNumber, 1};
}

}  // namespace

// One operator on its way through the pass.
struct ForwardPass::Call {
  const c10::OperatorHandle& op;
  interception::Stack& stack;
  size_t begin;
  int stage;
  size_t number = 0;
  /// Arguments that it writes to, as the program has them.
  std::vector<at::Tensor> written = {};
  std::shared_ptr<const Recipe> recipe = {};

  const std::string& name() const { return op.schema().name(); }
  size_t num_arguments() const { return op.schema().arguments().size(); }
  bool writes(size_t argument) const {
    const auto* const alias = op.schema().arguments()[argument].alias_info();
    return alias != nullptr && alias->isWrite();
  }
  bool result_is_written(size_t result) const {
    const auto* const alias = op.schema().returns()[result].alias_info();
    return alias != nullptr && alias->isWrite();
  }
};

ForwardPass::Scope::Scope(ForwardPass& pass) : before_(std::exchange(pass_of_thread(), &pass)) {}

ForwardPass::Scope::~Scope() {
  pass_of_thread() = before_;
}

ForwardPass* ForwardPass::current() noexcept {
  return pass_of_thread();
}

bool ForwardPass::is_inside() noexcept {
  return inside_of_thread();
}

void ForwardPass::carry_out(const c10::OperatorHandle& op, interception::Stack& stack, int stage) {
  Call call{op, stack, stack.size() - op.schema().arguments().size(), stage};
  if (is_equal_of_itself(op, stack, call.begin)) {
    stack.resize(call.begin);
    stack.emplace_back(true);
    return;
  }
  for (size_t i = 0; i < call.num_arguments(); ++i) {
    if (!call.writes(i)) continue;
    interception::visit_tensors(stack[call.begin + i], [&](const at::Tensor& tensor) {
      const auto* const value = StagedTensor::of(tensor);
      const bool is_known = value != nullptr || axis_.find(tensor) != nullptr || axis_.is_buffer(tensor);
      if (!is_known || (value != nullptr && value->stage() != stage && value->facts().is_view)) {
        throw UsageError(axis_.origin(), "'", call.name(), "' writes a value of stage ", stage, " into ",
                         is_known ? "a view of a value of an earlier stage" : "a tensor that every rank has",
                         ", where the other ranks would miss it. Make a new tensor of the value (cat, where, "
                         "new_zeros), or put both on one stage.");
      }
      call.written.push_back(tensor);
    });
  }
  take_turn(stage);
  for (size_t i = call.begin; i < stack.size(); ++i) {
    interception::visit_tensors(stack[i], [&](const at::Tensor& tensor) {
      if (auto* const value = StagedTensor::of(tensor)) return bring(*value, stage);
      hold(tensor, stage);
    });
  }
  call.recipe = recipe_of(call);
  call.number = next_call_++;
  if (!options_.records) require_recorded(call);
  axis_.has(stage) ? compute(call) : stand_in(call);
  if (stage < front_ && !options_.records) send_what_was_made();
  front_ = std::max(front_, stage);
}

void ForwardPass::end() {
  if (options_.records) return;
  send_what_was_made();
  if (next_call_ == program_.calls.size()) return;
  throw UsageError(axis_.origin(), "a forward of microbatch ", options_.microbatch, " ended after ", next_call_,
                   " operators, recorded were ", program_.calls.size(),
                   ". Microbatches of one shape take one way through the program: make what they differ in part of the "
                   "batch, or compute it outside of the function.");
}

void ForwardPass::take_turn(int stage) {
  if (options_.records) return;
  if (stage > front_) send_what_was_made();
  while (options_.is_held && stage > running_) wait_for_turn();
}

void ForwardPass::require_recorded(const Call& call) const {
  const bool is_there = call.number < program_.calls.size();
  if (is_there && program_.calls[call.number].stage == call.stage && program_.calls[call.number].name == call.name())
    return;
  throw UsageError(axis_.origin(), "call ", call.number, " of microbatch ", options_.microbatch, ": ", call.name(),
                   " on stage ", call.stage, ", recorded was ",
                   is_there ? text(program_.calls[call.number].name, " on stage ", program_.calls[call.number].stage)
                            : std::string("the end"),
                   ". Microbatches of one shape take one way through the program: make what they differ in part of the "
                   "batch, or compute it outside of the function.");
}

// ---- Values between stages.

void ForwardPass::hold(const at::Tensor& parameter, int stage) {
  const auto* const record = axis_.find(parameter);
  if (record != nullptr && !record->stages.contains(stage)) axis_.add_holder(parameter, stage);
}

std::shared_ptr<const Recipe> ForwardPass::recipe_of(const Call& call) const {
  bool is_of_parameters = call.written.empty() && !call.op.hasTag(at::Tag::nondeterministic_seeded);
  for (size_t i = call.begin; i < call.stack.size(); ++i) {
    interception::visit_tensors(call.stack[i], [&](const at::Tensor& tensor) {
      const auto* const value = StagedTensor::of(tensor);
      const bool is_known = value != nullptr ? value->recipe() != nullptr : axis_.find(tensor) != nullptr;
      is_of_parameters = is_of_parameters && is_known;
    });
  }
  if (!is_of_parameters) return nullptr;
  const auto begin = call.stack.begin() + static_cast<std::ptrdiff_t>(call.begin);
  return std::make_shared<Recipe>(Recipe{call.op, {begin, call.stack.end()}});
}

// A tied weight's t() is no activation: the later stage holds the weight, too.
at::Tensor ForwardPass::remake(const StagedTensor& value, int stage) {
  interception::Stack stack = value.recipe()->arguments;
  for (const c10::IValue& argument : stack) {
    interception::visit_tensors(argument, [&](const at::Tensor& tensor) {
      if (auto* const other = StagedTensor::of(tensor)) return bring(*other, stage);
      hold(tensor, stage);
    });
  }
  if (!axis_.has(stage)) return {};
  put_locals(stack, 0, stage);
  const Inside inside;
  value.recipe()->op.callBoxed(stack);
  std::vector<at::Tensor> results;
  for (const c10::IValue& result : stack) {
    if (result.isTensor()) results.push_back(result.toTensor());
    if (!result.isTensorList()) continue;
    for (const at::Tensor& tensor : result.toTensorVector()) results.push_back(tensor);
  }
  return results.at(static_cast<size_t>(value.id().result));
}

void ForwardPass::bring(StagedTensor& value, int stage) {
  if (value.stage() == stage || value.copies().contains(stage)) return;
  if (value.recipe() != nullptr) {
    const at::Tensor made = remake(value, stage);
    value.copies()[stage] = made;
    return;
  }
  const Transfer& transfer = transfer_of(value, stage);
  const int from = axis_.rank_of(value.stage()), to = axis_.rank_of(stage);
  at::Tensor copy;
  if (from == to) {
    if (axis_.has(stage)) copy = pass_on_here(value, transfer);
  } else if (axis_.rank() == to) {
    copy = receive(value.facts(), transfer);
  } else if (axis_.rank() == from && options_.records) {
    send(value.local(), transfer);
  }
  value.copies()[stage] = copy;
}

const Transfer& ForwardPass::transfer_of(const StagedTensor& value, int stage) {
  const auto key = std::pair(value.id(), stage);
  const auto found = program_.transfers.find(key);
  if (found != program_.transfers.end()) return found->second;
  if (!options_.records) {
    throw UsageError(axis_.origin(), "stage ", stage, " takes the result of call ", value.id().call, " (",
                     program_.calls[value.id().call].name,
                     "), which it did not when the forward was recorded. Microbatches of one shape take one way.");
  }
  require_in_order(value, stage);
  const Transfer made{static_cast<int>(program_.transfers.size()), value.id(), value.stage(), stage,
                      value.facts().requires_grad};
  return program_.transfers.emplace(key, made).first->second;
}

void ForwardPass::require_in_order(const StagedTensor& value, int stage) const {
  const int from = axis_.rank_of(value.stage());
  if (!options_.is_held || value.front() <= value.stage() || from == axis_.rank_of(stage)) return;
  // With several stages a rank comes to this operator only in the forward of its next stage.
  const int computed = axis_.stage_of_rank_from(from, value.front());
  if (computed >= 0 && computed < stage) return;
  throw UsageError(axis_.origin(), "the result of '", program_.calls[value.id().call].name, "' on stage ",
                   value.stage(), " is made behind operators of stage ", value.front(), ", and stage ", stage,
                   " takes it. With several stages a rank (chunks) that would wait for ever. Put these modules on one "
                   "stage (stages), or set chunks to 1.");
}

void ForwardPass::send(const at::Tensor& local, const Transfer& transfer) {
  const at::Tensor memory = axis_.memory_of(local);
  axis_.messages().send(memory, axis_.rank_of(transfer.to), options_.records ? kRecordedTag : tag(transfer, false));
  if (transfer.has_gradient && !options_.records) sent_[transfer.from].push_back({memory, transfer});
}

at::Tensor ForwardPass::receive(const ValueFacts& facts, const Transfer& transfer) {
  const auto options = at::TensorOptions(facts.dtype).device(facts.is_on_cpu ? c10::Device(at::kCPU) : axis_.device());
  at::Tensor leaf = axis_.messages().receive(axis_.part_sizes(facts), options, axis_.rank_of(transfer.from),
                                             options_.records ? kRecordedTag : tag(transfer, false));
  if (transfer.has_gradient) {
    leaf.set_requires_grad(true);
    if (!options_.records) received_[transfer.to].push_back({leaf, transfer});
  }
  return axis_.from_memory(std::move(leaf), facts);
}

// Between two stages of this rank: the later one's graph begins anew, or its backward would run into the earlier one.
at::Tensor ForwardPass::pass_on_here(const StagedTensor& value, const Transfer& transfer) {
  if (options_.records || !transfer.has_gradient) return value.local();
  const at::Tensor memory = axis_.memory_of(value.local());
  at::Tensor leaf;
  {
    const interception::PassScope pass;
    leaf = memory.detach();
  }
  leaf.set_requires_grad(true);
  sent_[transfer.from].push_back({memory, transfer});
  received_[transfer.to].push_back({leaf, transfer});
  return axis_.from_memory(std::move(leaf), value.facts());
}

void ForwardPass::send_what_was_made() {
  for (const auto& [id, made] : std::exchange(to_send_, {})) {
    for (auto next = program_.transfers.lower_bound({id, 0}); next != program_.transfers.end(); ++next) {
      if (next->first.first != id) break;
      if (!axis_.has(next->second.to)) send(made.second, next->second);
    }
  }
}

// ---- Operators.

void ForwardPass::compute(Call& call) {
  // A message may still read what is about to be written.
  if (!call.written.empty() && !options_.records && !sent_.empty()) axis_.messages().finish();
  const auto linear = linear_of(call);
  // A value of an earlier stage that is written to becomes one of this stage.
  for (size_t i = 0; i < call.num_arguments(); ++i) {
    if (!call.writes(i)) continue;
    interception::visit_tensors(call.stack[call.begin + i], [&](const at::Tensor& tensor) {
      auto* const value = StagedTensor::of(tensor);
      if (value == nullptr || value->stage() == call.stage) return;
      at::Tensor& copy = value->copies().at(call.stage);
      copy = copy.clone();
    });
  }
  put_locals(call.stack, call.begin, call.stage);
  try {
    run_locally(call, linear);
  } catch (const std::exception& error) {
    if (options_.records) {
      axis_.messages().tell_failure(text(call.name(), ": ", error.what()), told_tag());
      failure_was_told_ = true;
    }
    throw;
  }
  CallRecord record{.name = call.name(), .stage = call.stage};
  std::vector<at::Tensor> locals;
  for (size_t i = call.begin; i < call.stack.size(); ++i) {
    record.slots.push_back(slot_of(call.stack[i]));
    if (call.stack[i].isTensor() || call.stack[i].isNone()) {
      locals.push_back(call.stack[i].isNone() ? at::Tensor() : call.stack[i].toTensor());
    } else if (call.stack[i].isTensorList()) {
      for (const at::Tensor& tensor : call.stack[i].toTensorVector()) locals.push_back(tensor);
    }
  }
  for (const at::Tensor& local : locals) record.values.push_back(axis_.facts_of(local));
  if (options_.records) {
    axis_.messages().tell(record.encode(), told_tag());
    program_.calls.push_back(record);
  }
  const CallRecord& known = program_.calls[call.number];
  for (size_t i = 0; i < std::max(known.values.size(), record.values.size()); ++i) {
    if (known.values.size() == record.values.size() && known.values[i].sizes == record.values[i].sizes) continue;
    throw UsageError(axis_.origin(), "call ", call.number, " of microbatch ", options_.microbatch, ": ", call.name(),
                     " gives sizes other than those recorded. Sizes that depend on values are not known to the other "
                     "stages: make them part of the batch, or compute them outside of the function.");
  }
  tell_numbers(call);
  give_results(call, known, locals);
}

void ForwardPass::put_locals(interception::Stack& stack, size_t begin, int stage) const {
  for (size_t i = begin; i < stack.size(); ++i) {
    replace_tensors_of(stack[i], [&](const at::Tensor& tensor) {
      auto* const value = StagedTensor::of(tensor);
      if (value == nullptr) return tensor;
      return value->stage() == stage ? value->local() : value->copies().at(stage);
    });
  }
}

// x @ weight.t(), as libtorch's Linear computes it: the parameters.
std::optional<LinearParameters> ForwardPass::linear_of(const Call& call) const {
  const bool has_bias = call.name() == "aten::addmm";
  if (!options_.defers_weights || (!has_bias && call.name() != "aten::matmul")) return std::nullopt;
  const size_t x = call.begin + (has_bias ? 1 : 0);
  const auto* const transposed = StagedTensor::of(call.stack[x + 1].toTensor());
  if (transposed == nullptr || transposed->recipe() == nullptr) return std::nullopt;
  const auto& recipe = *transposed->recipe();
  if (recipe.op.schema().name() != "aten::t" || axis_.find(recipe.arguments[0].toTensor()) == nullptr)
    return std::nullopt;
  const bool is_plain = !has_bias || (axis_.find(call.stack[call.begin].toTensor()) != nullptr &&
                                      call.stack[x + 2].toScalar().equal(1) && call.stack[x + 3].toScalar().equal(1));
  if (!is_plain) return std::nullopt;
  return LinearParameters{.x = x - call.begin,
                          .weight = recipe.arguments[0].toTensor(),
                          .bias = has_bias ? call.stack[call.begin].toTensor() : at::Tensor()};
}

void ForwardPass::run_locally(Call& call, const std::optional<LinearParameters>& linear) {
  const Inside inside;
  std::optional<StageAxis::OwnRandom> random;
  if (call.op.hasTag(at::Tag::nondeterministic_seeded)) random.emplace(axis_);
  auto& first = call.stack[call.begin];
  // The program's contiguous() did not arrive: a staged value says that it is contiguous.
  if (call.name() == "aten::view" && call.stack[call.begin + 1].isIntList() &&
      !axis_.memory_of(first.toTensor()).is_contiguous()) {
    const at::Tensor result = first.toTensor().reshape(call.stack[call.begin + 1].toIntVector());
    call.stack.resize(call.begin);
    call.stack.emplace_back(result);
    return;
  }
  if (linear) {
    const at::Tensor x = call.stack[call.begin + linear->x].toTensor();
    if (can_be_deferred(x, *linear)) {
      call.stack.resize(call.begin);
      call.stack.emplace_back(deferred_linear(x, *linear));
      return;
    }
  }
  call.op.callBoxed(call.stack);
}

void ForwardPass::stand_in(Call& call) {
  const int from = axis_.rank_of(call.stage);
  if (options_.records) {
    CallRecord record{.name = call.name(), .stage = call.stage};
    failure_was_told_ = true;
    record.decode(axis_.messages().received(from, told_tag()));
    failure_was_told_ = false;
    program_.calls.push_back(std::move(record));
  }
  const CallRecord& record = program_.calls[call.number];
  call.stack.resize(call.begin);
  for (const auto& slot : record.slots) {
    call.stack.push_back(slot.kind == CallRecord::Kind::kNumber ? told_number(from) : c10::IValue());
  }
  give_results(call, record, std::vector<at::Tensor>(record.values.size()));
}

void ForwardPass::tell_numbers(const Call& call) {
  for (size_t i = call.begin; i < call.stack.size(); ++i) {
    const c10::IValue& result = call.stack[i];
    if (slot_of(result).kind != CallRecord::Kind::kNumber) continue;
    std::vector<int64_t> words;
    if (result.isBool()) words = {0, result.toBool() ? 1 : 0};
    if (result.isInt()) words = {1, result.toInt()};
    if (result.isDouble()) words = {2, std::bit_cast<int64_t>(result.toDouble())};
    if (words.empty()) {
      const std::string reason =
          text(call.name(), " gives a ", result.tagKind(), ", which stages cannot tell each other");
      if (options_.records) axis_.messages().tell_failure(reason, told_tag());
      throw UsageError(axis_.origin(), reason, ". Compute it outside of the function.");
    }
    axis_.messages().tell(words, told_tag());
  }
}

c10::IValue ForwardPass::told_number(int from) const {
  const auto words = axis_.messages().received(from, told_tag());
  if (words.at(0) == 0) return words.at(1) != 0;
  if (words.at(0) == 1) return words.at(1);
  return std::bit_cast<double>(words.at(1));
}

void ForwardPass::give_results(Call& call, const CallRecord& record, const std::vector<at::Tensor>& locals) {
  size_t next_value = 0, next_written = 0;
  const auto give = [&](size_t slot) {
    const size_t i = next_value++;
    const ValueFacts& facts = record.values[i];
    const ValueId id{call.number, static_cast<int>(i)};
    const bool is_sent =
        locals[i].defined() && !options_.records &&
        program_.transfers.lower_bound({id, 0}) != program_.transfers.lower_bound({{id.call, id.result + 1}, 0});
    if (is_sent) to_send_[id] = {call.stage, locals[i]};
    if (call.result_is_written(slot) && next_written < call.written.size()) {
      const at::Tensor self = call.written[next_written++];
      if (auto* const value = StagedTensor::of(self))
        value->become({facts, call.stage, id, front_, locals[i], nullptr});
      return self;
    }
    return axis_.wrap({facts, call.stage, id, front_, locals[i], call.recipe});
  };
  for (size_t slot = 0; slot < record.slots.size(); ++slot) {
    c10::IValue& result = call.stack[call.begin + slot];
    if (record.slots[slot].kind == CallRecord::Kind::kTensor) {
      result = give(slot);
    } else if (record.slots[slot].kind == CallRecord::Kind::kTensors) {
      c10::List<at::Tensor> list;
      for (int64_t i = 0; i < record.slots[slot].count; ++i) list.push_back(give(slot));
      result = std::move(list);
    }
  }
}

}  // namespace hasten::parallel::pipeline
