// See reducer.h.
#include "parallel/ddp/reducer.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "hasten/core/error.h"
#include "parallel/ddp/sparse_gradient.h"
#include "parallel/ddp/wire_dtype.h"
#include "parallel/parameters/parameter_sync.h"

namespace hasten::parallel {
namespace {

// Contents of the trailer, as means over the ranks.
enum TailEntry { kWeight, kWeighted, kValuesChanged, kChangedInside };

constexpr size_t kNoBucket = std::numeric_limits<size_t>::max();

// Numbers of tokens must come through unharmed.
bool can_carry_tail(c10::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble;
}

}  // namespace

Reducer::Reducer(ParameterSet parameters, std::vector<at::Tensor> buffers, comm::Group group, const DdpOptions& options,
                 AccumulationWindow& window, const ExchangeSettings& settings, std::function<void(bool)> check)
    : parameters_(std::move(parameters)),
      buffers_(std::move(buffers)),
      // The ranks agreed on the buckets when the module was compared. Another agreement in every step would only cost.
      group_(group.with_check(false)),
      options_(options),
      window_(window),
      settings_(settings),
      check_(std::move(check)),
      logger_("ddp", {group.rank(), group.world_size()}),
      warned_(parameters_.names.size()),
      travels_low_(in_communication_dtype(parameters_, options_)) {
  std::set<size_t> in_unit;
  for (const auto& unit : options_.exchange ? options_.exchange->units() : BucketPlan{}) {
    in_unit.insert(unit.begin(), unit.end());
  }
  std::vector<size_t> order;
  for (size_t i = parameters_.names.size(); i-- > 0;) {
    if (!parameters_.sparse[i] && !in_unit.contains(i)) order.push_back(i);
  }
  build(order);
}

// `order`: the parameters that are in buckets, those whose gradients come first in front.
void Reducer::build(const std::vector<size_t>& order) {
  std::vector<ParameterInfo> infos;
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    const at::Tensor& parameter = parameters_.tensors[*i];
    infos.push_back({parameters_.names[*i], parameter.numel(), static_cast<int64_t>(parameter.nbytes()),
                     parameter.scalar_type(), parameter.device()});
  }
  BucketPlan plan = plan_buckets(infos, options_.buckets);
  for (auto& members : plan) {
    for (size_t& member : members) member = order[order.size() - 1 - member];
  }
  plan = split_by_wire(plan, travels_low_);
  if (plan == plan_ && !buckets_.empty()) return;
  // Gradients move out before the old memory goes and the new one is taken, so that both fit where one did.
  for (size_t i = 0; i < places_.size(); ++i) {
    at::Tensor& gradient = parameters_.tensors[i].mutable_grad();
    if (places_[i] && gradient.defined() && !gradient.requires_grad()) gradient = gradient.clone();
  }
  plan_.clear();
  buckets_.clear();
  gradient_allocator_ = GradientAllocator::make(options_.in_place_bytes);
  places_.assign(parameters_.names.size(), std::nullopt);
  tail_bucket_ = kNoBucket;
  const auto units = options_.exchange ? options_.exchange->units() : BucketPlan{};
  for (const auto& unit : units) add_bucket(unit, true);
  for (auto& members : plan) add_bucket(std::move(members), false);
  if (tail_bucket_ == kNoBucket) {
    tail_bucket_ = buckets_.size();
    buckets_.push_back(std::make_unique<Bucket>(std::vector<at::Tensor>{}, group_, BucketSettings{.has_tail = true}));
  }
}

void Reducer::add_bucket(std::vector<size_t> members, bool is_unit) {
  const size_t bucket = plan_.size();
  std::vector<at::Tensor> tensors;
  for (size_t index = 0; index < members.size(); ++index) {
    tensors.push_back(parameters_.tensors[members[index]]);
    places_[members[index]] = {bucket, index};
  }
  const auto dtype = tensors.front().scalar_type();
  std::vector<bool> in_wire;
  for (const size_t member : members) in_wire.push_back(travels_low_[member]);
  const bool any_low = std::find(in_wire.begin(), in_wire.end(), true) != in_wire.end();
  const auto wire = any_low ? *options_.communication_dtype : dtype;
  const bool has_tail = tail_bucket_ == kNoBucket && (is_unit || (can_carry_tail(wire) && can_carry_tail(dtype)));
  if (has_tail) tail_bucket_ = bucket;
  const bool on_cpu = tensors.front().is_cpu();
  const bool averages = wire == dtype && (dtype == at::kFloat || dtype == at::kDouble) &&
                        !options_.comm_hook && !options_.gradient_predivide_factor;
  plan_.push_back(std::move(members));
  if (is_unit) {
    const auto wire_dtype = wire == dtype ? std::nullopt : std::optional(wire);
    buckets_.push_back(options_.exchange->make_bucket(
        bucket, {.has_tail = has_tail, .wire_dtype = wire_dtype, .in_wire = std::move(in_wire), .averages = averages}));
    return;
  }
  const BucketSettings settings{has_tail, wire, averages, on_cpu ? gradient_allocator_ : nullptr};
  buckets_.push_back(std::make_unique<Bucket>(std::move(tensors), group_, settings));
}

void Reducer::on_gradient(size_t parameter, const at::Tensor& arrived) {
  if (window_.holds_back()) return;
  const std::string& name = parameters_.names[parameter];
  if (started_) {
    throw InternalError(Origin{"ddp", group_.rank(), group_.world_size()}, "a gradient of '", name,
                        "' came after this rank had joined the exchange without one.");
  }
  // Another number means that the last backward was left by an exception before its end: begin anew.
  if (backward_ != torch::autograd::get_current_graph_task_id()) {
    backward_ = torch::autograd::get_current_graph_task_id();
    context_.open(parameters_.tensors);
    begin();
    if (gradient_allocator_ && !context_.is_open()) gradient_allocator_->open();
    torch::autograd::Engine::get_default_engine().queue_callback([this] {
      if (gradient_allocator_) gradient_allocator_->close();
      launch_rest();
      if (!settings_.finishes_later) finish();
    });
  }
  // Another part of a context's pass may bring the gradient later.
  if (context_.is_open() && !context_.fetch(parameters_.tensors[parameter])) return;
  if (num_steps_ == 0) arrived_.push_back(parameter);
  const auto place = places_[parameter];
  const at::Tensor& gradient = parameters_.tensors[parameter].grad();
  if (gradient.defined() && gradient.is_sparse() != parameters_.sparse[parameter]) {
    throw UsageError(Origin{"ddp", group_.rank(), group_.world_size()}, "the gradient of '", name, "' is ",
                     gradient.is_sparse() ? "sparse, but its module is no Embedding with sparse(true)."
                                          : "dense, but its module says that it is sparse.",
                     " Every rank must know beforehand.");
  }
  if (!place && !parameters_.sparse[parameter]) {
    throw UsageError(Origin{"ddp", group_.rank(), group_.world_size()}, "'", name, "' has a gradient in step ",
                     num_steps_ + 1, ", but had none on any rank in the first one. Turn DdpOptions::static_graph off.");
  }
  gradient_check_.take(name, gradient);
  if (!place) return;
  buckets_[place->bucket]->take(place->index, in_factor(), context_.is_open() ? at::Tensor() : arrived);
  if (!options_.delay_allreduce) launch_ready();
}

void Reducer::begin() {
  gradient_check_.begin();
  next_bucket_ = 0;
  if (next_order_) build(*std::exchange(next_order_, std::nullopt));
  for (const auto& bucket : buckets_) bucket->begin_step();
  if (options_.exchange) options_.exchange->begin(window_.ends());
  if (num_steps_ == 0) arrived_.clear();  // of a backward that was left by an exception
  end_abandoned(buffers_work_);
  if (buffers_.empty()) return;
  packed_buffers_ = pack_bytes(buffers_);
  buffers_work_ = broadcast_packed(packed_buffers_, group_, settings_.buffers_from);
}

Trailer Reducer::offered_tail() const {
  const auto& weight = window_.weight();
  const auto values = window_.values();
  return {weight.value_or(0), weight ? 1.0 : 0.0, values != AccumulationWindow::Values::kAgreed ? 1.0 : 0.0,
          values == AccumulationWindow::Values::kChangedInside ? 1.0 : 0.0};
}

void Reducer::launch_ready() {
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_]->complete(); ++next_bucket_)
    buckets_[next_bucket_]->launch_as(next_bucket_, options_.comm_hook, offered_tail());
}

void Reducer::launch_rest() {
  for (const auto& bucket : buckets_) bucket->take_rest(in_factor());
  launch_ready();
}

void Reducer::start() {
  started_ = true;
  begin();
  launch_rest();
}

void Reducer::finish() {
  started_ = false;
  backward_.reset();
  ++num_steps_;
  const auto factor = out_factor();
  std::vector<size_t> unused;
  size_t num_in_buckets = 0;
  for (size_t bucket = 0; bucket < plan_.size(); ++bucket) {
    buckets_[bucket]->wait();
    num_in_buckets += plan_[bucket].size();
    for (const size_t index : buckets_[bucket]->settle(factor.value_or(1))) unused.push_back(plan_[bucket][index]);
    if (!factor) buckets_[bucket]->drop_gradients();
  }
  if (options_.exchange) options_.exchange->finish();
  had_gradients_ = unused.size() < num_in_buckets;
  for (size_t i = 0; i < parameters_.names.size(); ++i) {
    if (!parameters_.sparse[i]) continue;
    const bool had = exchange_sparse_gradient(parameters_.tensors[i], group_, factor.value_or(1) * in_factor());
    had_gradients_ = had_gradients_ || had;
    if (!had) unused.push_back(i);
    if (!factor) parameters_.tensors[i].mutable_grad() = at::Tensor();
  }
  if (buffers_work_) {
    std::exchange(buffers_work_, std::nullopt)->wait();
    if (group_.rank() != settings_.buffers_from) unpack_bytes(packed_buffers_, buffers_);
  }
  if (factor) warn_unused(unused);
  // The owners of slices stay those of the first plan.
  if (num_steps_ == 1 && !options_.exchange) learn_order(unused);
  using Values = AccumulationWindow::Values;
  const bool is_due = window_.values() != Values::kAgreed || options_.compares_after(num_steps_);
  if (is_due && settings_.comparable) check_(window_.values() == Values::kChangedInside);
  window_.set_values(Values::kAgreed);
  context_.close();
}

// Returns the factor of the sums; nothing if all weights together are zero. Ends the window's weights.
std::optional<double> Reducer::out_factor() {
  const double mean = options_.predivide(group_.world_size()) / group_.world_size();
  const double factor = options_.average || window_.weight() ? mean : mean * group_.world_size();
  ReducerBucket& carrier = *buckets_[tail_bucket_];
  carrier.wait();
  // On a GPU reading waits for the device.
  using Values = AccumulationWindow::Values;
  if (!window_.weight() && !carrier.is_cpu()) {
    window_.set_values(Values::kAgreed);
    return factor;
  }
  const Trailer tail = carrier.tail();
  window_.set_values(tail[kChangedInside] > 0   ? Values::kChangedInside
                     : tail[kValuesChanged] > 0 ? Values::kChanged
                                                : Values::kAgreed);
  if (std::abs(tail[kWeighted] - (window_.weight() ? 1 : 0)) > 1e-3) {
    throw UsageError(Origin{"ddp", group_.rank(), group_.world_size()}, "in step ", num_steps_,
                     " some ranks gave backward a weight and others none. Give one on every rank.");
  }
  if (!window_.weight()) return factor;
  const auto divisor = window_.settle(tail[kWeight]);
  if (divisor && *divisor == 0) return std::nullopt;
  return divisor ? factor / *divisor : factor;
}

void Reducer::warn_unused(const std::vector<size_t>& unused) {
  std::vector<std::string> names;
  for (const size_t i : unused) {
    if (!warned_[i] || !options_.allow_unused) names.push_back(parameters_.names[i]);
    warned_[i] = true;
  }
  if (names.empty()) return;
  constexpr size_t kShown = 20;
  const size_t others = names.size() - std::min(names.size(), kShown);
  names.resize(names.size() - others);
  if (!options_.allow_unused) {
    throw UsageError(
        Origin{"ddp", group_.rank(), group_.world_size()}, '\'', join(names, "', '"), '\'',
        others > 0 ? text(" and ", others, " more") : "", " got no gradient in step ", num_steps_,
        " on any rank, and DdpOptions::allow_unused is false. Use them, or freeze them (requires_grad_(false)).");
  }
  logger_.warning(text('\'', join(names, "', '"), '\'', others > 0 ? text(" and ", others, " more") : "",
                       " got no gradient in step ", num_steps_, " on any rank; they keep their values."));
}

}  // namespace hasten::parallel
