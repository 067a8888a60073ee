// See pipeline.h.
#include "hasten/parallel/pipeline/pipeline.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/parallel/clip/clip.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/pipeline/stage_plan.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "hasten/plan/order_check.h"
#include "hasten/process/default_generators.h"
#include "parallel/parameters/parameter_sync.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/order_choice.h"
#include "parallel/pipeline/tied.h"
#include "parallel/tensor/exchange.h"

namespace hasten::parallel {
namespace {

using pipeline::best_in_place;
using pipeline::Program;
using pipeline::StageAxis;

std::shared_ptr<tensor::CutAxis> cut_of(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) {
    for (const auto& interceptor : interception::interceptors_of(parameter, interception::Level::kEveryOperator)) {
      if (auto axis = std::dynamic_pointer_cast<tensor::CutAxis>(interceptor)) return axis;
    }
  }
  return nullptr;
}

c10::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device();
}

plan::PipelineOrder order_without_backwards(plan::PipelineOrder order) {
  for (auto& actions : order.ranks) {
    std::erase_if(actions, [](const plan::Action& action) { return action.kind != plan::ActionKind::kForward; });
  }
  return order;
}

// A record runs the program once more: random numbers and buffers stay as they were.
class Unchanged {
 public:
  explicit Unchanged(const torch::nn::Module& module)
      : generators_(device_of(module)), states_(generators_.states()), buffers_(module.buffers()) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& buffer : buffers_) values_.push_back(buffer.clone());
  }
  ~Unchanged() {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(values_[i]);
    generators_.set_states(states_);
  }
  Unchanged(const Unchanged&) = delete;
  Unchanged& operator=(const Unchanged&) = delete;

 private:
  process::DefaultGenerators generators_;
  std::vector<at::Tensor> states_, buffers_, values_ = {};
};

// A whole forward of a program's own, without gradients, in which the stages tell each other everything.
class OpenForward : public ForwardHook::Entered {
 public:
  explicit OpenForward(StageAxis& axis)
      : axis_(axis), pass_(axis, program_, {.records = true, .is_open = true}), scope_(pass_) {}
  ~OpenForward() override {
    try {
      axis_.messages().finish();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the next message to that rank says it
    }
  }

 private:
  StageAxis& axis_;
  Program program_;
  pipeline::ForwardPass pass_;
  pipeline::ForwardPass::Scope scope_;
};

class StageHook : public ForwardHook {
 public:
  explicit StageHook(std::shared_ptr<StageAxis> axis) : axis_(std::move(axis)) {}
  std::unique_ptr<Entered> enter(torch::nn::Module&) override {
    if (pipeline::ForwardPass::current() != nullptr) return nullptr;
    if (!at::GradMode::is_enabled()) return std::make_unique<OpenForward>(*axis_);
    throw UsageError(
        axis_->origin(),
        "a forward with gradients of a model that is divided into stages. Compute the loss in the function "
        "that forward_backward is given; for outputs open a torch::NoGradGuard.");
  }

 private:
  std::shared_ptr<StageAxis> axis_;
};

}  // namespace

struct Pipeline::Impl {
  torch::nn::Module& module;
  comm::Group group;
  PipelineOptions options;
  /// Null in a group of one.
  std::shared_ptr<StageAxis> axis = {};
  std::map<std::string, int> stages = {};
  /// By numbers of microbatches.
  std::map<int, plan::PipelineOrder> orders = {};
  std::map<std::string, Program> programs = {};
  /// kAuto: what was measured.
  std::vector<plan::StageCost> costs = {};

  Origin origin() const { return {"pipeline", group.rank(), group.world_size()}; }
  plan::OrderSizes sizes(int microbatches) const { return {group.world_size(), options.chunks, microbatches}; }
  bool is_held() const { return options.chunks > 1; }
  int microbatches() const { return options.microbatches > 0 ? options.microbatches : group.world_size(); }

  void read_order();
  bool has_to_measure() const {
    return axis && options.order == plan::OrderKind::kAuto && options.order_csv.empty() && costs.empty();
  }
  void choose_order(pipeline::ActionTimes& times, const Program& program, int microbatches);
  const plan::PipelineOrder& order(int microbatches);
  double capacity() const;
  std::vector<int> rank_of_stage();
  void divide();
  Program& program(const std::string& key, const std::function<at::Tensor()>& forward);
  at::Tensor share(const at::Tensor& mine, int stage, c10::ScalarType dtype) const;
};

// Checks what the options say of the order, before anything is divided.
void Pipeline::Impl::read_order() {
  if (options.chunks < 1 || options.microbatches < 0) {
    throw UsageError(origin(), "chunks = ", options.chunks, ", microbatches = ", options.microbatches,
                     "; expected at least 1 and 0.");
  }
  if (options.activation_mib < 0) {
    throw UsageError(origin(), "activation_mib = ", options.activation_mib, "; expected 0, no limit, or more.");
  }
  if (options.order_csv.empty()) {
    order(microbatches());
    return;
  }
  auto own = plan::parse_order_csv(options.order_csv, "order_csv");
  const int stages = group.world_size() * options.chunks;
  if (static_cast<int>(own.ranks.size()) != group.world_size() || own.num_stages != stages) {
    throw UsageError(origin(), "order_csv has ", own.ranks.size(), " rows and ", own.num_stages, " stages; expected ",
                     group.world_size(), " rows, one a rank, and ", stages, " stages (chunks = ", options.chunks, ").");
  }
  plan::check_order(own);
  options.microbatches = own.num_microbatches;
  orders.emplace(own.num_microbatches, std::move(own));
}

const plan::PipelineOrder& Pipeline::Impl::order(int microbatches) {
  const auto found = orders.find(microbatches);
  if (found != orders.end()) return found->second;
  if (!options.order_csv.empty()) {
    throw UsageError(origin(), "a batch of ", microbatches, " samples for the ", options.microbatches,
                     " microbatches of order_csv. Leave short batches out (drop_last).");
  }
  auto kind = options.order;
  if (kind == plan::OrderKind::kAuto) {
    kind = costs.empty() ? plan::OrderKind::kDefault : best_in_place(sizes(microbatches), costs, capacity()).kind;
  }
  return orders.emplace(microbatches, plan::make_order(kind, sizes(microbatches))).first->second;
}

double Pipeline::Impl::capacity() const {
  return options.activation_mib > 0 ? options.activation_mib * 1048576.0 : std::numeric_limits<double>::infinity();
}

void Pipeline::Impl::choose_order(pipeline::ActionTimes& times, const Program& program, int microbatches) {
  costs = times.agree(program, options.order_groups);
  orders.clear();
  order(microbatches);
  const auto is_first = [](const comm::Group& one) { return one.rank() == 0; };
  if (!is_first(group) || !is_first(axis->cut_group()) ||
      !std::all_of(options.order_groups.begin(), options.order_groups.end(), is_first)) {
    return;
  }
  Logger("pipeline", {group.rank(), group.world_size()})
      .info(pipeline::describe(pipeline::orders_in_place(sizes(microbatches), costs, capacity()), costs));
}

std::vector<int> Pipeline::Impl::rank_of_stage() {
  if (!options.order_csv.empty()) return plan::stage_ranks(orders.begin()->second);
  std::vector<int> ranks;
  for (int stage = 0; stage < group.world_size() * options.chunks; ++stage) {
    ranks.push_back(plan::rank_of_stage(options.order, sizes(microbatches()), stage));
  }
  return ranks;
}

void Pipeline::Impl::divide() {
  check_same_module(module, group);
  const auto modules = stage_modules(module);
  const auto stage_of = plan_stages(modules, group.world_size() * options.chunks, options.stages);
  {
    std::vector<at::Tensor> values = module.parameters();
    const auto buffers = module.buffers();
    values.insert(values.end(), buffers.begin(), buffers.end());
    const interception::PassScope pass;
    broadcast_tensors(values, group);
  }
  const auto made = std::make_shared<StageAxis>(pipeline::Messages(group, options.place), rank_of_stage(),
                                                device_of(module), cut_of(module));
  // Its parameters keep it beyond the last handle.
  axis = std::shared_ptr<StageAxis>(made.get(), [made](StageAxis*) { made->forget_tensors(); });
  std::map<const c10::TensorImpl*, std::set<int>> held_on;
  const auto all = module.named_parameters();
  const auto stage_of_name = [&](const std::string& name) {
    // The innermost module that holds it; without parameters of its own it goes with what stands before it.
    int stage = 0;
    size_t longest = 0;
    for (size_t i = 0; i < modules.size(); ++i) {
      const std::string& prefix = modules[i].name;
      const bool holds = prefix.empty() || name.starts_with(prefix + ".");
      if (holds && prefix.size() >= longest) stage = stage_of[i], longest = prefix.size();
    }
    return stage;
  };
  for (const auto& item : all) held_on[item.value().unsafeGetTensorImpl()].insert(stage_of_name(item.key()));
  const interception::PassScope pass;
  for (const auto& item : all) {
    const auto& on = held_on.at(item.value().unsafeGetTensorImpl());
    stages[item.key()] = *on.begin();
    if (axis->find(item.value()) == nullptr) axis->add(item.key(), item.value(), on);
  }
  for (const auto& item : module.named_buffers()) axis->add_buffer(item.value(), stage_of_name(item.key()));
}

Program& Pipeline::Impl::program(const std::string& key, const std::function<at::Tensor()>& forward) {
  const auto found = programs.find(key);
  if (found != programs.end()) return found->second;
  Program made;
  {
    const Unchanged scope(module);
    record_program(*axis, made, is_held(), forward);
  }
  return programs.emplace(key, std::move(made)).first->second;
}

// Gives every rank the value that the rank of a stage has.
at::Tensor Pipeline::Impl::share(const at::Tensor& mine, int stage, c10::ScalarType dtype) const {
  const interception::PassScope pass;
  const at::NoGradGuard no_grad;
  const int root = axis->rank_of(stage);
  const auto broadcast = [&](const at::Tensor& value) {
    at_place(options.place, [&] { axis->group().broadcast_(value, root); });
  };
  const at::Tensor sizes = at::zeros({16}, at::kLong);
  if (axis->has(stage)) {
    sizes[0] = mine.dim();
    for (int64_t i = 0; i < mine.dim(); ++i) sizes[i + 1] = mine.size(i);
  }
  broadcast(sizes);
  const auto* const row = sizes.const_data_ptr<int64_t>();
  const at::IntArrayRef shape(row + 1, static_cast<size_t>(row[0]));
  const at::Tensor value =
      axis->has(stage) ? mine.cpu().contiguous() : at::empty(shape, at::TensorOptions(dtype).device(at::kCPU));
  broadcast(value);
  return value.to(axis->device());
}

Pipeline::Pipeline(torch::nn::Module& module, const comm::Group& group, const PipelineOptions& options)
    : impl_(std::make_shared<Impl>(Impl{module, group, options})) {
  impl_->read_order();
  if (group.world_size() > 1) impl_->divide();
}

std::vector<std::vector<at::Tensor>> Pipeline::split_tensors(const std::vector<at::Tensor>& batch) const {
  const auto dim_of = [&](size_t i) { return i < impl_->options.chunk_dims.size() ? impl_->options.chunk_dims[i] : 0; };
  int64_t samples = -1;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (dim_of(i) < 0) continue;
    const int64_t own = dim_of(i) < batch[i].dim() ? batch[i].size(dim_of(i)) : 0;
    if (samples < 0) samples = own;
    if (own == samples && own > 0) continue;
    throw UsageError(impl_->origin(), "tensor ", i, " of the batch, of shape [", join(batch[i].sizes()), "], has ", own,
                     " samples along dimension ", dim_of(i), ", and an earlier one ", samples,
                     ". Name the dimensions of samples in chunk_dims, -1 for a tensor that all parts share.");
  }
  if (samples < 0) {
    throw UsageError(impl_->origin(), "a batch without a tensor that could be split into microbatches.");
  }
  const int64_t num_parts = std::min<int64_t>(samples, impl_->microbatches());
  std::vector<std::vector<at::Tensor>> parts(static_cast<size_t>(num_parts));
  for (size_t i = 0; i < batch.size(); ++i) {
    if (dim_of(i) < 0) {
      for (auto& part : parts) part.push_back(batch[i]);
      continue;
    }
    const auto pieces = batch[i].tensor_split(num_parts, dim_of(i));
    for (size_t part = 0; part < parts.size(); ++part) parts[part].push_back(pieces[part]);
  }
  return parts;
}

double Pipeline::num_samples(const std::vector<at::Tensor>& part) const {
  const auto& dims = impl_->options.chunk_dims;
  for (size_t i = 0; i < part.size(); ++i) {
    const int64_t dim = i < dims.size() ? dims[i] : 0;
    if (dim >= 0) return static_cast<double>(part[i].size(dim));
  }
  return 1;
}

std::string Pipeline::key_of(const std::vector<at::Tensor>& part) const {
  std::string key = text(impl_->module.is_training() ? "train" : "eval", at::GradMode::is_enabled() ? "" : " no_grad",
                         at::autocast::is_autocast_enabled(at::kCPU) ? " autocast" : "",
                         at::autocast::is_autocast_enabled(at::kCUDA) ? " device autocast" : "");
  for (const at::Tensor& tensor : part)
    key += text(" ", c10::toString(tensor.scalar_type()), "[", join(tensor.sizes()), "]");
  return key;
}

at::Tensor Pipeline::train(const Calls& calls, const std::vector<std::string>& keys, std::vector<double> weights,
                           double scale) const {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!std::isfinite(total) ||
      !std::all_of(weights.begin(), weights.end(), [](double weight) { return weight >= 0; })) {
    throw UsageError(impl_->origin(), "weights of microbatches ", join(weights),
                     "; expected numbers of samples or tokens, 0 or more.");
  }
  // Another data parallel rank may have tokens where this one has none.
  for (double& weight : weights) weight /= total > 0 ? total : 1;
  if (!impl_->axis) {
    at::Tensor sum;
    for (size_t i = 0; i < calls.size(); ++i) {
      const at::Tensor loss = calls[i]();
      const bool counts = weights[i] != 0;  // else it is a mean over nothing, which may be no number
      if (counts) (loss * (weights[i] * scale)).backward();
      const at::Tensor counted = counts ? loss.detach() * weights[i] : at::zeros_like(loss.detach());
      sum = sum.defined() ? sum + counted : counted;
    }
    return sum;
  }
  auto& axis = *impl_->axis;
  pipeline::StepInput input{.forwards = calls, .order = &impl_->order(static_cast<int>(calls.size()))};
  std::optional<pipeline::ActionTimes> times;
  plan::PipelineOrder measured;
  if (impl_->has_to_measure()) {
    measured = pipeline::with_split_backwards(*input.order);
    input.order = &measured;
    input.times = &times.emplace(axis);
  }
  for (const double weight : weights) input.weights.push_back(weight * scale);
  for (size_t i = 0; i < calls.size(); ++i) input.programs.push_back(&impl_->program(keys[i], calls[i]));
  pipeline::TiedGradients tied(axis);
  std::vector<at::Tensor> losses;
  {
    pipeline::Executor executor(axis, input);
    losses = executor.run();
  }
  tied.sum();
  axis.note_step();
  if (times) impl_->choose_order(*times, *input.programs[0], static_cast<int>(calls.size()));
  const at::NoGradGuard no_grad;
  double sum = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (losses[i].defined() && weights[i] != 0) sum += weights[i] * losses[i].item<double>();
  }
  const at::Tensor mean = at::tensor({sum}, at::kDouble);
  const comm::Purpose purpose("pipeline: mean loss");
  at_place(impl_->options.place, [&] { axis.group().all_reduce_(mean); });
  return mean.squeeze(0).to(at::kFloat);
}

at::Tensor Pipeline::infer(const Calls& calls, const std::vector<std::string>& keys, bool gather) const {
  const at::NoGradGuard no_grad;
  const auto joined = [](const std::vector<at::Tensor>& parts) {
    return parts.front().dim() == 0 ? at::stack(parts) : at::cat(parts, 0);
  };
  if (!impl_->axis) {
    std::vector<at::Tensor> outputs;
    for (const auto& call : calls) outputs.push_back(call());
    return joined(outputs);
  }
  auto& axis = *impl_->axis;
  const auto order = order_without_backwards(impl_->order(static_cast<int>(calls.size())));
  pipeline::StepInput input{.forwards = calls, .order = &order};
  for (size_t i = 0; i < calls.size(); ++i) {
    input.programs.push_back(&impl_->program(keys[i] + " output", calls[i]));
    if (input.programs[i]->result_stage == input.programs[0]->result_stage) continue;
    throw UsageError(impl_->origin(), "outputs of microbatches on stages ", input.programs[0]->result_stage, " and ",
                     input.programs[i]->result_stage, "; expected one stage.");
  }
  std::vector<at::Tensor> outputs;
  {
    pipeline::Executor executor(axis, input);
    outputs = executor.run();
  }
  const int stage = input.programs[0]->result_stage;
  const at::Tensor mine = axis.has(stage) ? joined(outputs) : at::Tensor();
  if (!gather) return mine;
  return impl_->share(mine, stage, input.programs[0]->result_dtype);
}

double Pipeline::clip_grad_norm_(double max_norm, double norm_type) const {
  std::vector<at::Tensor> parameters = impl_->module.parameters();
  GradientNormOptions options{.norm_type = norm_type};
  if (impl_->axis) {
    // The first holder counts of a parameter without a record on this rank, which is a tied one on its later stages.
    options.owned = [](const at::Tensor& parameter) -> std::optional<at::Tensor> {
      return counts_on_this_stage(parameter) ? parameter.grad() : at::Tensor();
    };
    options.group = impl_->axis->group();
  }
  const auto norm = gradient_norm(parameters, options);
  if (norm.finite) scale_gradients_(parameters, clip_factor(norm.norm, max_norm));
  return norm.norm;
}

std::map<std::string, at::Tensor> Pipeline::state_dict() const {
  std::map<std::string, at::Tensor> whole;
  for (const auto& item : impl_->module.named_parameters()) {
    whole[item.key()] = gather_parameter(item.value());
  }
  for (const auto& item : impl_->module.named_buffers()) {
    whole[item.key()] = impl_->axis ? impl_->axis->from_holder(item.value(), item.value()) : item.value().detach();
  }
  return whole;
}

std::shared_ptr<ForwardHook> Pipeline::forward_hook() const {
  return impl_->axis ? std::make_shared<StageHook>(impl_->axis) : nullptr;
}

const std::map<std::string, int>& Pipeline::stages() const noexcept {
  return impl_->stages;
}

const comm::Group& Pipeline::group() const noexcept {
  return impl_->group;
}

const plan::PipelineOrder& Pipeline::order(int microbatches) const {
  return impl_->order(microbatches);
}

const std::vector<plan::StageCost>& Pipeline::costs() const noexcept {
  return impl_->costs;
}

ParallelCounts Pipeline::counts() const {
  ParallelCounts counts;
  if (!impl_->axis) return counts;
  const auto sent = impl_->axis->messages().sent();
  counts.exchanges = sent.calls;
  if (sent.calls > 0) counts.kinds["message"] = sent;
  return counts;
}

at::Tensor value_everywhere(const at::Tensor& value) {
  const auto* const staged = pipeline::StagedTensor::of(value);
  const auto* const pass_under_way = pipeline::ForwardPass::current();
  // Inside a step its order says what goes where.
  if (staged == nullptr || (pass_under_way != nullptr && !pass_under_way->is_open())) return value;
  const at::NoGradGuard no_grad;
  auto& axis = staged->axis();
  const int root = axis.rank_of(staged->stage());
  const at::Tensor local = axis.has(staged->stage()) ? tensor::whole_of(staged->local()) : at::Tensor();
  const interception::PassScope pass;
  const at::Tensor on_host = local.defined()
                                 ? local.detach().cpu().contiguous()
                                 : at::empty(staged->facts().sizes, at::TensorOptions(staged->facts().dtype));
  axis.group().broadcast_(on_host, root);
  return staged->facts().is_on_cpu ? on_host : on_host.to(axis.device());
}

std::string describe_value(const at::Tensor& value) {
  if (!value.defined()) return "undefined";
  std::string words = text("[", join(value.sizes(), ", "), "] ", c10::toString(value.scalar_type()));
  const auto* const staged = pipeline::StagedTensor::of(value);
  if (staged != nullptr) {
    const auto& axis = staged->axis();
    words += text(", on stage ", staged->stage(), " of ", axis.num_stages(), " (rank ", axis.rank_of(staged->stage()),
                  " of pp)");
  }
  const at::Tensor local = staged != nullptr ? staged->local() : value;
  if (const auto* const global = tensor::GlobalTensor::of(local)) {
    const auto& axis = global->axis();
    words += text(", cut over ", axis.options().name, " (", describe(global->cut()), "), part ", axis.part(), " of ",
                  axis.num_parts(), " is [", join(local_value(local).sizes(), ", "), "]");
  }
  return words;
}

bool is_staged_value(const at::Tensor& value) noexcept {
  return pipeline::StagedTensor::of(value) != nullptr;
}

}  // namespace hasten::parallel
