// See stage_axis.h.
#include "parallel/pipeline/stage_axis.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "hasten/core/count_text.h"
#include "hasten/core/log.h"

namespace hasten::parallel::pipeline {

StageAxis::StageAxis(Messages messages, std::vector<int> rank_of_stage, c10::Device device,
                     std::shared_ptr<tensor::CutAxis> cut)
    : messages_(std::move(messages)),
      rank_of_stage_(std::move(rank_of_stage)),
      device_(device),
      cut_(std::move(cut)),
      list_(*this) {
  const uint64_t seed = at::globalContext().defaultGenerator(at::kCPU).current_seed();
  own_random_ =
      at::make_generator<at::CPUGeneratorImpl>(seed * 1000003 + 104729 * static_cast<uint64_t>(rank() + 1)).get_state();
}

StageAxis::~StageAxis() = default;

const comm::Group& StageAxis::cut_group() const noexcept {
  static const comm::Group kAlone;
  return cut_ ? cut_->group() : kAlone;
}

int StageAxis::stage_of_rank_from(int rank, int stage) const {
  for (int own = std::max(stage, 0); own < num_stages(); ++own) {
    if (rank_of(own) == rank) return own;
  }
  return -1;
}

c10::Device StageAxis::device() const {
  for (const auto* const impl : in_order_) {
    if (const auto parameter = parameters_.at(impl).tensor.lock()) return parameter->device();
  }
  return device_;
}

StagedParameter* StageAxis::find(const at::Tensor& parameter) noexcept {
  if (!parameter.defined()) return nullptr;
  auto* const impl = parameter.unsafeGetTensorImpl();
  // An address may come again; a recorded parameter has a list of interceptors.
  if (impl->get_backend_meta() == nullptr) return nullptr;
  const auto found = parameters_.find(impl);
  return found == parameters_.end() ? nullptr : &found->second;
}

int StageAxis::first_holder(const at::Tensor& tensor) const noexcept {
  if (const auto* const record = const_cast<StageAxis*>(this)->find(tensor)) return rank_of(record->first_stage());
  return is_buffer(tensor) ? rank_of(stage_of_buffer(tensor)) : -1;
}

bool StageAxis::holds(const at::Tensor& parameter) const noexcept {
  const auto* const record = const_cast<StageAxis*>(this)->find(parameter);
  if (record == nullptr) return true;
  return std::any_of(record->stages.begin(), record->stages.end(), [this](int stage) { return has(stage); });
}

std::vector<int64_t> StageAxis::whole_sizes(const at::Tensor& parameter) const {
  const auto* const record = const_cast<StageAxis*>(this)->find(parameter);
  return record == nullptr ? parameter.sizes().vec() : record->sizes;
}

at::Tensor StageAxis::from_holder(const at::Tensor& parameter, const at::Tensor& mine) const {
  const interception::PassScope pass;
  const at::NoGradGuard no_grad;
  const auto* const record = const_cast<StageAxis*>(this)->find(parameter);
  if (record == nullptr && !is_buffer(parameter)) return mine.detach();
  const int stage = record != nullptr ? record->first_stage() : stage_of_buffer(parameter);
  const auto& sizes = record != nullptr ? record->sizes : parameter.sizes().vec();
  const at::Tensor on_host = has(stage) ? mine.detach().cpu().contiguous()
                                        : at::empty(sizes, parameter.options().device(at::kCPU).requires_grad(false));
  group().broadcast_(on_host, rank_of(stage));
  return has(stage) ? mine.detach() : on_host.to(parameter.device());
}

void StageAxis::add(const std::string& name, const at::Tensor& parameter, const std::set<int>& stages) {
  StagedParameter record{.name = name,
                         .sizes = parameter.sizes().vec(),
                         .part_sizes = parameter.sizes().vec(),
                         .stages = stages,
                         .requires_grad = parameter.requires_grad(),
                         .tensor = c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr())};
  if (cut_) {
    if (const auto* const place = cut_->placement(parameter)) record.sizes = place->sizes;
  }
  bool is_here = false;
  for (const int stage : stages) is_here = is_here || has(stage);
  if (!is_here) let_go(parameter, record);
  const auto* const impl = parameter.unsafeGetTensorImpl();
  parameters_.insert_or_assign(impl, std::move(record));
  in_order_.push_back(impl);
  interception::add_interceptor(parameter, shared_from_this());
}

void StageAxis::forget_tensors() noexcept {
  for (auto& [impl, record] : parameters_) record.tensor.reset();
}

void StageAxis::let_go(const at::Tensor& parameter, const StagedParameter& record) {
  const interception::PassScope pass;
  const at::NoGradGuard no_grad;
  auto sizes = record.part_sizes;
  if (sizes.empty()) sizes.push_back(0);
  sizes[0] = 0;
  parameter.mutable_grad() = at::Tensor();
  parameter.set_data(at::empty(sizes, parameter.options().requires_grad(false)));
  parameter.set_requires_grad(false);
}

void StageAxis::add_buffer(const at::Tensor& buffer, int stage) {
  buffers_.emplace(buffer.unsafeGetTensorImpl(), stage);
}

void StageAxis::add_holder(const at::Tensor& parameter, int stage) {
  auto& record = *find(parameter);
  if (has_stepped_) {
    throw UsageError(origin(), "'", record.name, "' of stage ", record.first_stage(), " is used on stage ", stage,
                     ", for the first time after steps have been taken or a state was loaded, so that stage ", stage,
                     " has no optimizer state for it. Put it on that stage (stages), or give the first batch, before "
                     "load_state, the shape with which it is used.");
  }
  const interception::PassScope pass;
  const at::NoGradGuard no_grad;
  const int from = rank_of(record.first_stage()), to = rank_of(stage);
  bool is_there = false;
  for (const int other : record.stages) is_there = is_there || rank_of(other) == to;
  if (!is_there && rank() == from) messages_.send(parameter, to, kHolderTag);
  if (!is_there && rank() == to) {
    const bool is_cut = cut_ && cut_->placement(parameter) != nullptr;
    parameter.set_data(
        messages_.receive(record.part_sizes, parameter.options().requires_grad(false), from, kHolderTag));
    parameter.set_requires_grad(record.requires_grad);
    // Interceptors go with the values that were replaced.
    if (is_cut) interception::add_interceptor(parameter, cut_);
    interception::add_interceptor(parameter, shared_from_this());
  }
  record.stages.insert(stage);
  if (is_there || rank() != 0) return;
  int64_t bytes = parameter.element_size();
  for (const int64_t size : record.part_sizes) bytes *= size;
  Logger("pipeline", {rank(), messages_.num_ranks()})
      .info(text("'", record.name, "' of stage ", record.first_stage(), " is used on stage ", stage,
                 " as well, which holds its ", count_text(bytes, "byte"), ", too."));
}

std::vector<std::pair<at::Tensor, std::set<int>>> StageAxis::tied() const {
  std::vector<std::pair<at::Tensor, std::set<int>>> found;
  for (const auto* const impl : in_order_) {
    const auto& record = parameters_.at(impl);
    if (record.stages.size() < 2) continue;
    if (auto tensor = record.tensor.lock()) found.emplace_back(at::Tensor(std::move(tensor)), record.stages);
  }
  return found;
}

at::Tensor StageAxis::wrap(StagedValue value) {
  if (!value.facts.is_defined) return {};
  const at::Tensor tensor(c10::make_intrusive<StagedTensor>(shared_from_this(), device(), std::move(value)));
  list_.mark(tensor);
  return tensor;
}

at::Tensor StageAxis::memory_of(const at::Tensor& local) const {
  const auto* const global = tensor::GlobalTensor::of(local);
  if (global == nullptr) return local;
  if (&global->axis() == cut_.get() && tensor::GlobalTensor::of(global->local()) == nullptr) return global->local();
  throw UsageError(origin(),
                   "a value that is cut over cp or sp goes from stage to stage. Pipelines go with tp alone: set cp and "
                   "sp to 1.");
}

ValueFacts StageAxis::facts_of(const at::Tensor& local) const {
  if (!local.defined()) return {};
  const at::Tensor memory = memory_of(local);
  ValueFacts facts{.is_defined = true,
                   .sizes = local.sizes().vec(),
                   .dtype = local.scalar_type(),
                   .is_on_cpu = memory.is_cpu(),
                   .requires_grad = memory.requires_grad(),
                   .is_view = memory.is_view()};
  if (const auto* const global = tensor::GlobalTensor::of(local)) facts.cut = global->cut();
  return facts;
}

std::vector<int64_t> StageAxis::part_sizes(const ValueFacts& facts) const {
  auto sizes = facts.sizes;
  if (!facts.cut.is_cut()) return sizes;
  auto& own = sizes.at(static_cast<size_t>(facts.cut.dim));
  own = part_size(own, facts.cut.blocks, cut_->num_parts(), cut_->part());
  return sizes;
}

at::Tensor StageAxis::from_memory(at::Tensor part, const ValueFacts& facts) const {
  if (!facts.cut.is_cut()) return part;
  return cut_->wrap(std::move(part), facts.cut, facts.sizes.at(static_cast<size_t>(facts.cut.dim)));
}

// A device's generator gets its seed from the stages' generator, which is the CPU's. So the state of that one alone is
// what a saved run needs.
StageAxis::OwnRandom::OwnRandom(StageAxis& axis)
    : axis_(axis), generator_(at::globalContext().defaultGenerator(axis.device())) {
  const auto draw = [&axis] {
    at::Generator own = at::detail::createCPUGenerator();
    own.set_state(axis.own_random_);
    const uint64_t drawn = at::check_generator<at::CPUGeneratorImpl>(own)->random64();
    axis.own_random_ = own.get_state();
    return drawn;
  };
  const std::lock_guard lock(generator_.mutex());
  shared_ = generator_.get_state();
  if (axis.device().is_cpu()) {
    generator_.set_state(axis.own_random_);
  } else {
    generator_.set_current_seed(draw());
  }
}

StageAxis::OwnRandom::~OwnRandom() {
  const std::lock_guard lock(generator_.mutex());
  if (axis_.device().is_cpu()) axis_.own_random_ = generator_.get_state();
  generator_.set_state(shared_);
}

}  // namespace hasten::parallel::pipeline
