// See recorder.h.
#include "parallel/recompute/recorder.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>
#include <utility>

namespace hasten::parallel {
namespace {

std::atomic<int64_t> num_dropped = 0, num_kept = 0;

RecomputeRecorder*& current_recorder() {
  thread_local RecomputeRecorder* recorder = nullptr;
  return recorder;
}

const c10::StorageImpl* storage_impl(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

// Tensors that a strided view of a storage describes.
bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_conj() &&
         !tensor.is_neg() && !tensor.is_quantized() && !tensor.is_inference() && !tensor.is_meta();
}

template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  replace_tensors(value, [&](const at::Tensor& tensor) {
    visit(tensor);
    return tensor;
  });
}

// What stands for a tensor in the arguments of a recorded call.
const at::Tensor& place() {
  static const at::Tensor& tensor = *new at::Tensor(at::empty({0}));
  return tensor;
}

// Operators that change their running statistics without a word in their schema; in training the results do not
// depend on these.
bool is_batch_norm(std::string_view name) {
  constexpr std::array kNames =
      std::to_array<std::string_view>({"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"});
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}
constexpr size_t kRunningMean = 3, kRunningVar = 4, kTraining = 5;

// The argument that the operator writes to, if it is exactly one, which is also its result; nothing if none is written.
// Returns false for operators that write in another way.
bool find_written(const c10::FunctionSchema& schema, std::optional<size_t>& written) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    if (written || schema.arguments()[i].is_out()) return false;
    written = i;
  }
  return !written || schema.returns().size() == 1;
}

// Operators whose results hold no values of other tensors: at::empty, zeros_like, new_full. Programs fill these through
// pointers, which nothing sees.
bool is_factory(const c10::OperatorHandle& op, const interception::Stack& arguments) {
  if (op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  const std::string_view name = op.schema().name();
  if (name.starts_with("aten::new_") || name.ends_with("_like")) return true;
  bool has_tensor = false;
  for (const auto& argument : arguments) each_tensor(argument, [&](const at::Tensor&) { has_tensor = true; });
  return !has_tensor;
}

// Visits the tensors that the operator changes.
template <class Visit>
void for_each_written(const c10::OperatorHandle& op, const interception::Stack& stack, size_t begin,
                      const Visit& visit) {
  if (!op.schema().is_mutable()) return;
  for (size_t i = begin; i < stack.size(); ++i) {
    const auto* alias = op.schema().arguments()[i - begin].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (is_plain(tensor)) visit(tensor);
    });
  }
}

}  // namespace

// One operator as it runs: what it was given, and after it the record of it.
class RecomputeRecorder::Call {
 public:
  Call(RecomputeRecorder& recorder, const c10::OperatorHandle& op, const interception::Stack& stack, size_t begin)
      : recorder_(recorder), op_(op) {
    const auto& schema = op.schema();
    const bool own = schema.name().starts_with("aten::") && find_written(schema, written_argument_);
    // A composite operator is recorded by the operators of which it is made.
    is_recorded_ = own && !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    arguments_.assign(stack.begin() + static_cast<std::ptrdiff_t>(begin), stack.end());
    has_interceptors_ = !interceptors_of(op, stack, interception::Level::kOperators).empty();
    makes_input_ = !recorder.inside_libtorch_ && is_factory(op, arguments_);
    is_recorded_ = is_recorded_ && !makes_input_;
    for (const auto& argument : arguments_) {
      if (argument.isGenerator()) is_recorded_ = false;
    }
    if (is_batch_norm(schema.name()) && arguments_[kTraining].isBool() && arguments_[kTraining].toBool())
      arguments_[kRunningMean] = arguments_[kRunningVar] = at::Tensor();
    if (is_recorded_ && op.hasTag(at::Tag::nondeterministic_seeded)) keep_generator();
    for (size_t i = 0; i < arguments_.size() && is_recorded_; ++i) keep_tensors(i);
    for_each_written(op, stack, begin, [&](const at::Tensor& tensor) {
      const auto made = recorder.made_.find(storage_impl(tensor));
      if (made == recorder.made_.end()) return;
      // From the write on, and until finish(), nothing is known of the storage; before it the operator may copy it.
      made->second.version = std::min(made->second.version, tensor._version());
      written_storages_.push_back(storage_impl(tensor));
    });
  }

  void finish(const interception::Stack& stack) {
    for (const auto* storage : written_storages_) recorder_.made_.erase(storage);
    const size_t num_results = op_.schema().returns().size(), begin = stack.size() - num_results;
    if (makes_input_) {
      // Operators inside the factory may have been recorded.
      for (size_t i = begin; i < stack.size(); ++i) {
        each_tensor(stack[i], [&](const at::Tensor& tensor) {
          if (is_plain(tensor)) recorder_.made_.erase(storage_impl(tensor));
        });
      }
    }
    if (is_recorded_ && !has_interceptors_) {
      std::shared_ptr<ReplayedCall> call;
      for (size_t i = 0; i < num_results; ++i) {
        const auto& value = stack[begin + i];
        if (!value.isTensor() || !is_plain(value.toTensor())) continue;
        const at::Tensor& result = value.toTensor();
        const bool is_written = written_ && i == 0;
        if (!is_written && (is_an_argument(result) || recorder_.ticket_of(result))) continue;
        if (!call) {
          keep_forgotten();
          call = std::make_shared<ReplayedCall>(recorded(), recorder_.mutex_);
        }
        recorder_.made_.insert_or_assign(storage_impl(result),
                                         Made{result.storage().getWeakStorageImpl(), call, i, result._version(),
                                              result.scalar_type(), recorder_.is_chosen(op_)});
      }
    }
    recorder_.settle();
  }

 private:
  void keep_generator() {
    at::Device device = at::kCPU;
    for (const auto& argument : arguments_) {
      each_tensor(argument, [&](const at::Tensor& tensor) {
        if (!tensor.is_cpu()) device = tensor.device();
      });
    }
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator_ = GeneratorState{generator, generator.get_state()};
  }

  void keep_tensors(size_t argument) {
    const bool is_written = written_argument_ == argument;
    arguments_[argument] = replace_tensors(arguments_[argument], [&](const at::Tensor& tensor) {
      if (is_plain(tensor)) storages_.push_back(storage_impl(tensor));
      const bool may_go = recorder_.away_ != nullptr && !is_written;
      ReplayArgument kept;
      kept.ticket = recorder_.ticket_of(tensor);
      if (is_written) {
        // Only what the region has made can be made again as it was.
        if (!kept.ticket) is_recorded_ = false;
        written_ = tensors_.size();
      }
      if (!kept.ticket) kept.kept.emplace(tensor, may_go ? recorder_.away_->send(tensor) : nullptr);
      if (kept.ticket && recorder_.chosen_ && !is_written) originals_.emplace_back(tensors_.size(), tensor);
      tensors_.push_back(std::move(kept));
      return place();
    });
  }

  // Arguments that autograd has kept while the operator ran are taken from there.
  void keep_forgotten() {
    for (const auto& [index, tensor] : originals_) {
      if (recorder_.find_made(tensor) != nullptr) continue;
      tensors_[index].ticket.reset();
      tensors_[index].kept.emplace(tensor);
    }
  }

  bool is_an_argument(const at::Tensor& result) const {
    return std::find(storages_.begin(), storages_.end(), storage_impl(result)) != storages_.end();
  }

  ReplayedCall::Recorded recorded() {
    return {op_, std::move(arguments_), std::move(tensors_), std::move(generator_), written_};
  }

  RecomputeRecorder& recorder_;
  const c10::OperatorHandle& op_;
  interception::Stack arguments_;
  std::vector<ReplayArgument> tensors_;
  // Arguments that have a ticket, by their index of `tensors_`.
  std::vector<std::pair<size_t, at::Tensor>> originals_;
  std::vector<const c10::StorageImpl*> storages_, written_storages_;
  std::optional<GeneratorState> generator_;
  std::optional<size_t> written_argument_, written_;
  bool is_recorded_ = false;
  // The program may fill the result through a pointer: it is kept, as inputs are.
  bool makes_input_ = false;
  // An interceptor that is asked for the operator may have put its own computation in place of the operator's.
  bool has_interceptors_ = false;
};

// The saved tensors of one operator under way; those that it leaves are looked at again by the operator around it.
class RecomputeRecorder::OperatorScope {
 public:
  OperatorScope(RecomputeRecorder& recorder, const c10::OperatorHandle& op)
      : recorder_(recorder),
        outer_(std::exchange(recorder.pending_, {})),
        outer_is_libtorchs_(std::exchange(recorder.inside_libtorch_, op.schema().name().starts_with("aten::"))),
        outer_is_chosen_(std::exchange(recorder.inside_chosen_, recorder.is_chosen(op))) {
    ++recorder_.depth_;
  }
  ~OperatorScope() {
    recorder_.inside_libtorch_ = outer_is_libtorchs_;
    recorder_.inside_chosen_ = outer_is_chosen_;
    if (--recorder_.depth_ == 0) recorder_.pending_.clear();
    recorder_.pending_.insert(recorder_.pending_.end(), outer_.begin(), outer_.end());
  }
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;

 private:
  RecomputeRecorder& recorder_;
  std::vector<std::shared_ptr<SavedSlot>> outer_;
  bool outer_is_libtorchs_, outer_is_chosen_;
};

RecomputeRecorder::RecomputeRecorder(std::optional<Regions> regions, std::shared_ptr<AwayTensors> away,
                                     std::shared_ptr<const Names> chosen)
    : regions_(std::move(regions)),
      away_(std::move(away)),
      chosen_(std::move(chosen)),
      region_(regions_ ? kNoRegion : 0),
      mutex_(std::make_shared<std::recursive_mutex>()) {}

RecomputeRecorder* RecomputeRecorder::current() {
  return is_replaying() ? nullptr : current_recorder();
}

bool RecomputeRecorder::intercept(const c10::OperatorHandle& op, interception::Stack& stack) {
  if (current() != this || interception::is_below_autograd()) return false;
  const size_t begin = stack.size() - op.schema().arguments().size();
  if (!at::GradMode::is_enabled()) {
    for_each_written(op, stack, begin, [&](const at::Tensor& tensor) { made_.erase(storage_impl(tensor)); });
    return false;
  }
  if (regions_) enter_region_of(stack, begin);
  if (!in_region()) return false;
  Call call(*this, op, stack, begin);
  const OperatorScope scope(*this, op);
  met_chosen_ = met_chosen_ || inside_chosen_;
  interception::call_after(op, stack);
  call.finish(stack);
  return true;
}

bool RecomputeRecorder::is_chosen(const c10::OperatorHandle& op) const {
  if (!chosen_) return false;
  std::string_view name = op.schema().name();
  name.remove_prefix(std::min(name.find("::") + 2, name.size()));
  return inside_chosen_ || chosen_->contains(std::string(name));
}

void RecomputeRecorder::note_made(const at::Tensor& result, const at::Tensor& of, ReplayedCall::Function function) {
  if (!in_region() || !at::GradMode::is_enabled() || !is_plain(result) || !is_plain(of)) return;
  if (result.storage().is_alias_of(of.storage())) return;
  ReplayArgument argument;
  argument.ticket = ticket_of(of);
  if (!argument.ticket) argument.kept.emplace(of, away_ ? away_->send(of) : nullptr);
  ReplayedCall::Recorded recorded;
  recorded.function = std::move(function);
  recorded.tensors.push_back(std::move(argument));
  auto call = std::make_shared<ReplayedCall>(std::move(recorded), mutex_);
  made_.insert_or_assign(storage_impl(result), Made{result.storage().getWeakStorageImpl(), std::move(call), 0,
                                                    result._version(), result.scalar_type(), inside_chosen_});
}

void RecomputeRecorder::enter_region_of(const interception::Stack& stack, size_t begin) {
  int region = region_;
  for (size_t i = begin; i < stack.size(); ++i) {
    each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (const auto found = regions_->find(tensor.unsafeGetTensorImpl()); found != regions_->end())
        region = found->second;
    });
  }
  if (region == region_) return;
  region_ = region;
  made_.clear();
}

std::optional<Ticket> RecomputeRecorder::ticket_of(const at::Tensor& tensor) const {
  const Made* const made = find_made(tensor);
  return made == nullptr ? std::nullopt : std::optional(Ticket{made->call, made->result, StridedView(tensor)});
}

const RecomputeRecorder::Made* RecomputeRecorder::find_made(const at::Tensor& tensor) const {
  if (!is_plain(tensor)) return nullptr;
  const auto found = made_.find(storage_impl(tensor));
  if (found == made_.end()) return nullptr;
  const Made& made = found->second;
  // Parts of a split may count versions of their own, from zero; a count beyond the record's is a write that was not
  // seen.
  const bool is_known =
      !made.storage.expired() && tensor._version() <= made.version && made.dtype == tensor.scalar_type();
  return is_known ? &made : nullptr;
}

std::optional<Ticket> RecomputeRecorder::droppable(const at::Tensor& tensor) {
  const Made* const made = find_made(tensor);
  if (made == nullptr) return std::nullopt;
  if (!chosen_ || made->is_chosen) return Ticket{made->call, made->result, StridedView(tensor)};
  made_.erase(storage_impl(tensor));
  return std::nullopt;
}

std::shared_ptr<SavedSlot> RecomputeRecorder::save(const at::Tensor& tensor) {
  auto slot = std::make_shared<SavedSlot>();
  slot->ticket = droppable(tensor);
  if (slot->ticket) {
    ++num_dropped;
  } else {
    slot->kept.emplace(tensor, away_ ? away_->find(tensor) : nullptr);
    if (depth_ > 0) pending_.push_back(slot);
    ++num_kept;
  }
  return slot;
}

// Saved results of the operator that has just been recorded.
void RecomputeRecorder::settle() {
  std::erase_if(pending_, [&](const std::shared_ptr<SavedSlot>& slot) {
    if (slot.use_count() == 1) return true;
    slot->ticket = droppable(slot->kept->now());
    if (!slot->ticket) return false;
    slot->kept.reset();
    ++num_dropped;
    --num_kept;
    return true;
  });
}

RecorderScope::RecorderScope(std::shared_ptr<RecomputeRecorder> recorder)
    : recorder_(std::move(recorder)), before_(std::exchange(current_recorder(), recorder_.get())), scope_(*recorder_) {}

RecorderScope::~RecorderScope() {
  current_recorder() = before_;
}

int64_t dropped_tensors() noexcept {
  return num_dropped;
}

int64_t kept_tensors() noexcept {
  return num_kept;
}

}  // namespace hasten::parallel
