// See cut_axis.h.
#include "parallel/tensor/cut_axis.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <stdexcept>
#include <typeinfo>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/log.h"

namespace hasten::parallel::tensor {
namespace {

uint64_t next_bit() {
  static std::atomic<uint64_t> next = 0;
  return uint64_t{1} << (next++ % 64);
}

}  // namespace

CutAxis::CutAxis(comm::Group group, AxisOptions options)
    // The rules run alike on all ranks; a call that differs is found by the group's own header checks.
    : group_(group.with_check(false)), options_(std::move(options)), bit_(next_bit()), list_(*this) {
  pointer_words_ = text("A value that is cut over ", options_.name,
                        " has no memory of its own. Use parallel::local_value(x) for this rank's part, or "
                        "parallel::whole_value(x) on all ranks.");
}

CutAxis::~CutAxis() = default;

const Placement* CutAxis::placement(const at::Tensor& parameter) const noexcept {
  if (!parameter.defined()) return nullptr;
  auto* const impl = parameter.unsafeGetTensorImpl();
  // An address may come again; a recorded parameter has a list of interceptors.
  if (impl->get_backend_meta() == nullptr) return nullptr;
  const auto found = parameters_.find(impl);
  return found == parameters_.end() ? nullptr : &found->second;
}

void CutAxis::add(const std::string& name, const at::Tensor& parameter, Placement placement) {
  names_.insert_or_assign(parameter.unsafeGetTensorImpl(), name);
  parameters_.insert_or_assign(parameter.unsafeGetTensorImpl(), std::move(placement));
  interception::add_interceptor(parameter, shared_from_this());
}

std::string CutAxis::name_of(const at::Tensor& parameter) const {
  const auto found = names_.find(parameter.unsafeGetTensorImpl());
  return found == names_.end() ? std::string() : found->second;
}

at::Tensor CutAxis::cut_whole(const at::Tensor& whole, const Cut& cut, int part) const {
  if (!options_.zigzag) return cut_tensor(whole, cut, num_parts(), part);
  const int64_t block = whole.size(cut.dim) / cut.blocks;
  std::vector<at::Tensor> pieces;
  for (int64_t i = 0; i < cut.blocks; ++i) {
    const auto own = parallel::part_of(block, num_parts(), part_in_block(i, part));
    pieces.push_back(whole.narrow(cut.dim, i * block + own.begin, own.size()));
  }
  return at::cat(pieces, cut.dim);
}

at::Tensor CutAxis::join(const std::vector<at::Tensor>& parts, const Cut& cut) const {
  if (!options_.zigzag) return join_parts(parts, cut);
  std::vector<at::Tensor> pieces;
  for (int64_t i = 0; i < cut.blocks; ++i) {
    for (int rank = 0; rank < num_parts(); ++rank) {
      const at::Tensor& part = parts[static_cast<size_t>(part_in_block(i, rank))];
      const int64_t own = part.size(cut.dim) / cut.blocks;
      pieces.push_back(part.narrow(cut.dim, i * own, own));
    }
  }
  return at::cat(pieces, cut.dim);
}

at::Tensor CutAxis::wrap(at::Tensor local, const Cut& cut, int64_t size) {
  if (!cut.is_cut() || !local.defined()) return local;
  c10::SmallVector<int64_t, 6> sizes(local.sizes().begin(), local.sizes().end());
  if (cut.dim >= local.dim()) throw std::out_of_range("a cut of a dimension that the part lacks");
  auto& own = sizes[static_cast<size_t>(cut.dim)];
  if (own != part_size(size, cut.blocks, num_parts(), part())) {
    throw InternalError(Origin{"tensor", part(), num_parts()}, "a part of ", own, " of ", size, " (", describe(cut),
                        ") on ", num_parts(), " ranks.");
  }
  own = size;
  const at::Tensor value(c10::make_intrusive<GlobalTensor>(*this, std::move(local), cut, sizes));
  list_.mark(value);
  return value;
}

Argument CutAxis::look(const at::Tensor& tensor) const {
  Argument found{.tensor = tensor, .local = tensor, .cut = {}, .sizes = {}};
  if (!tensor.defined()) return found;
  if (const auto* const global = GlobalTensor::of(tensor); global != nullptr && &global->axis() == this) {
    found.local = global->local();
    found.cut = global->cut();
  } else if (const Placement* const place = placement(tensor)) {
    found.cut = place->cut;
    found.sizes = place->sizes;
    return found;
  }
  found.sizes = tensor.sizes().vec();
  return found;
}

bool CutAxis::is_cut(const at::Tensor& tensor) const noexcept {
  const auto* const global = GlobalTensor::of(tensor);
  if (global != nullptr && &global->axis() == this) return global->cut().is_cut();
  const Placement* const place = placement(tensor);
  return place != nullptr && place->cut.is_cut();
}

const at::Tensor& CutAxis::local_of(const at::Tensor& tensor) const noexcept {
  const auto* const global = GlobalTensor::of(tensor);
  return global != nullptr && &global->axis() == this ? global->local() : tensor;
}

void CutAxis::note_gathered(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  const auto used = names_.find(last_used_.load());
  const std::string place = used == names_.end() ? "" : text(", behind an operator on '", used->second, "'");
  if (options_.strict) {
    throw UsageError(Origin{"tensor", part(), num_parts()}, "'", name, "' has no rule for values that are cut over ",
                     options_.name, place,
                     ", and strict is set. Compute it on parallel::whole_value(x), or leave strict out.");
  }
  const std::lock_guard lock(mutex_);
  if (gathered_[name]++ > 0) return;
  Logger("tensor", {part(), num_parts()})
      .warning(text("'", name, "' has no rule for values that are cut over ", options_.name, place,
                    "; it runs on whole values, on every rank."));
}

void CutAxis::count_exchange(const char* kind, const at::Tensor& value) {
  const std::lock_guard lock(mutex_);
  auto& count = exchanges_[kind];
  ++count.calls;
  count.bytes += static_cast<int64_t>(value.nbytes());
}

void CutAxis::reduce_(const at::Tensor& value, comm::ReduceOp op) {
  count_exchange("sum", value);
  at_place(options_.place, [&] { group_.all_reduce_(value, op); });
}

ParallelCounts CutAxis::counts() const {
  const std::lock_guard lock(mutex_);
  int64_t exchanges = 0;
  for (const auto& [kind, count] : exchanges_) exchanges += count.calls;
  return {num_operators_, exchanges, gathered_, exchanges_};
}

// The default generators are alike on all ranks of a model, and all of them draw. So they alone are what a saved state
// needs. The seed for a device's generator is the CPU's number, too: to read one of the device the host would wait.
CutAxis::OwnRandom::OwnRandom(const CutAxis& axis, c10::Device device)
    : generator_(at::globalContext().defaultGenerator(device)) {
  const auto draw = [] {
    at::Generator of_cpu = at::globalContext().defaultGenerator(c10::Device(at::kCPU));
    const std::lock_guard lock(of_cpu.mutex());
    return at::check_generator<at::CPUGeneratorImpl>(of_cpu)->random64();
  };
  const uint64_t drawn = draw();
  const std::lock_guard lock(generator_.mutex());
  shared_ = generator_.get_state();
  generator_.set_current_seed(drawn ^ (0x9E3779B97F4A7C15U * static_cast<uint64_t>(axis.part() + 1)));
}

CutAxis::OwnRandom::~OwnRandom() {
  const std::lock_guard lock(generator_.mutex());
  generator_.set_state(shared_);
}

GlobalTensor::GlobalTensor(CutAxis& axis, at::Tensor local, const Cut& cut, at::IntArrayRef sizes)
    : c10::TensorImpl(c10::DispatchKeySet(), local.dtype(), local.device()),
      axis_(axis.shared_from_this()),
      local_(std::move(local)),
      cut_(cut) {
  set_sizes_contiguous(sizes);
  extra_meta_ = std::make_unique<c10::ExtraMeta>();
  extra_meta_->custom_data_ptr_error_msg_ = axis.pointer_words();
}

const GlobalTensor* GlobalTensor::of(const at::Tensor& tensor) noexcept {
  if (!tensor.defined()) return nullptr;
  auto* const impl = tensor.unsafeGetTensorImpl();
  // All of them have a list of interceptors; few other tensors do.
  const bool is_global = impl->get_backend_meta() != nullptr && typeid(*impl) == typeid(GlobalTensor);
  return is_global ? static_cast<const GlobalTensor*>(impl) : nullptr;
}

}  // namespace hasten::parallel::tensor
