// See replay.h.
#include "parallel/recompute/replay.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include <atomic>
#include <utility>

namespace hasten::parallel {
namespace {

std::atomic<int64_t> num_replayed = 0;

bool& replaying() {
  thread_local bool inside = false;
  return inside;
}

class ReplayingScope {
 public:
  ReplayingScope() : before_(std::exchange(replaying(), true)) {}
  ~ReplayingScope() { replaying() = before_; }
  ReplayingScope(const ReplayingScope&) = delete;
  ReplayingScope& operator=(const ReplayingScope&) = delete;

 private:
  bool before_;
};

// Sets a generator for one call.
class GeneratorScope {
 public:
  explicit GeneratorScope(const std::optional<GeneratorState>& requested) {
    if (!requested) return;
    generator_ = requested->generator;
    const std::lock_guard lock(generator_.mutex());
    before_ = generator_.get_state();
    generator_.set_state(requested->state);
  }
  ~GeneratorScope() {
    if (!before_.defined()) return;
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(before_);
  }
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  at::Generator generator_;
  at::Tensor before_;
};

// A copy of the whole storage behind a tensor, as the same view of it.
at::Tensor copy_with_storage(const at::Tensor& tensor) {
  const int64_t numel = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
  return StridedView(tensor).of(tensor.as_strided({numel}, {1}, 0).clone());
}

int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

StridedView::StridedView(const at::Tensor& tensor)
    : sizes(tensor.sizes().vec()), strides(tensor.strides().vec()), offset(tensor.storage_offset()) {}

at::Tensor StridedView::of(const at::Tensor& base) const {
  return base.as_strided(sizes, strides, offset);
}

at::Tensor Ticket::tensor() const {
  return view.of(call->result(result));
}

// A number that libtorch has wrapped into a tensor stays as it is: it takes part in type promotion as a number does.
KeptTensor::KeptTensor(const at::Tensor& tensor, std::shared_ptr<AwayTensor> away)
    : away_(std::move(away)),
      dtype_(tensor.scalar_type()),
      counter_(tensor.is_inference() ? c10::VariableVersion() : tensor.unsafeGetTensorImpl()->version_counter()),
      version_(version_of(tensor)) {
  if (away_) {
    view_.emplace(tensor);
  } else {
    tensor_ = tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor : tensor.detach();
  }
}

at::Tensor KeptTensor::tensor() const {
  const int64_t now = counter_.enabled() ? counter_.current_version() : version_;
  TORCH_CHECK(
      now == version_,
      "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor "
      "of shape ",
      view_ ? c10::IntArrayRef(view_->sizes) : tensor_.sizes(), " that a recomputed region reads is at version ", now,
      "; expected version ", version_, ". Change it after backward, or out of place.");
  return away_ ? view_->of(away_->flat(dtype_)) : tensor_;
}

ReplayedCall::ReplayedCall(Recorded recorded, std::shared_ptr<std::recursive_mutex> mutex)
    : recorded_(std::move(recorded)), mutex_(std::move(mutex)) {}

at::Tensor ReplayedCall::result(size_t index) {
  const std::lock_guard lock(*mutex_);
  if (results_.empty()) run();
  return results_[index];
}

void ReplayedCall::run() {
  const ReplayingScope scope;
  // As in forward, since some kernels keep more with gradients (mkldnn_rnn_layer); the arguments want none.
  const at::AutoGradMode gradients(true);
  // Arguments have the dtypes that autocast gave them.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  std::vector<at::Tensor> tensors;
  tensors.reserve(recorded_.tensors.size());
  for (const auto& argument : recorded_.tensors) tensors.push_back(argument.tensor());
  if (recorded_.written) tensors[*recorded_.written] = copy_with_storage(tensors[*recorded_.written]);

  interception::Stack stack;
  size_t next = 0;
  for (const auto& argument : recorded_.arguments) {
    stack.push_back(replace_tensors(argument, [&](const at::Tensor&) { return tensors[next++]; }));
  }
  if (recorded_.op) {
    const GeneratorScope generator(recorded_.generator);
    recorded_.op->callBoxed(&stack);
  } else {
    const at::NoGradGuard no_grad;
    stack.emplace_back(recorded_.function(tensors.front()));
  }
  ++num_replayed;
  for (const auto& value : stack)
    results_.push_back(value.isTensor() && value.toTensor().defined() ? value.toTensor().detach() : at::Tensor());
  // The arguments go: the results are kept now.
  recorded_.tensors.clear();
  recorded_.arguments.clear();
  recorded_.generator.reset();
  recorded_.function = {};
}

int64_t replayed_calls() noexcept {
  return num_replayed;
}

bool is_replaying() noexcept {
  return replaying();
}

}  // namespace hasten::parallel
