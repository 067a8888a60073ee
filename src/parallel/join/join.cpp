// See join.h.
#include "hasten/parallel/join/join.h"

#include <c10/util/ScopeExit.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "hasten/comm/nested/objects.h"
#include "hasten/core/error.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/no_sync.h"
#include "hasten/parallel/local_sgd/local_sgd.h"
#include "hasten/parallel/norm/sync_batch_norm.h"

namespace hasten::parallel {
namespace {

using nlohmann::json;

constexpr const char *kMeet = "all ranks", *kRefused = "refused";

bool is_call(const json& call, const char* key) {
  return call.is_object() && call.contains(key);
}

void check_that_none_is_refused(const std::vector<json>& calls, const Origin& origin) {
  for (const json& call : calls) {
    if (!is_call(call, kRefused)) continue;
    throw UsageError(origin, call.at(kRefused).get<std::string>(),
                     " inside join_uneven_inputs, where ranks that have run out of data could not take part. "
                     "Do it before or after the loop.");
  }
}

void check_that_all_meet(const ActiveRanks& active, const Origin& origin) {
  if (!is_call(active.call, kMeet) || active.all_of(origin.world_size)) return;
  throw UsageError(origin, active.call.at(kMeet).get<std::string>(),
                   " inside join_uneven_inputs needs all ranks, but only rank ", join(active.ranks),
                   " has not run out of data. Use one join_uneven_inputs for each loop over a loader, and do "
                   "what is for all ranks before or after it.");
}

// A rank's last batch ends its window (sync_with_dataloader), but others may go on with theirs: of two such
// backwards the one that does not end it; null if they are none.
json open_window(const json& one, const json& other) {
  if (!is_call(one, kBackward) || !is_call(other, kBackward)) return {};
  if (one.at(kBackward) == other.at(kBackward) || one.at("apart") != other.at("apart")) return {};
  return one.at(kBackward).get<bool>() ? other : one;
}

// Everybody's calls; null is a rank without data.
ActiveRanks hold_round(const comm::Group& group, const json& mine) {
  const Origin origin{"join", group.rank(), group.world_size()};
  ActiveRanks active;
  const auto calls = comm::gather_object(group.with_check(false), mine);
  check_that_none_is_refused(calls, origin);
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (calls[rank].is_null()) continue;
    active.ranks.push_back(static_cast<int>(rank));
    if (active.call.is_null()) active.call = calls[rank];
    if (calls[rank] == active.call) continue;
    if (json open = open_window(active.call, calls[rank]); !open.is_null()) {
      active.call = std::move(open);
      continue;
    }
    throw UsageError(origin, "rank ", active.first(), " is about to do ", active.call.dump(), ", rank ", rank,
                     ' ', calls[rank].dump(), ". Ranks with data must do the same things in the same order.");
  }
  check_that_all_meet(active, origin);
  return active;
}

double neutral_of(comm::ReduceOp op, at::ScalarType dtype) {
  const bool is_float = c10::isFloatingType(dtype);
  constexpr double kMost = std::numeric_limits<double>::infinity();
  switch (op) {
    case comm::ReduceOp::kProduct:
      return 1.0;
    case comm::ReduceOp::kMin:
      return is_float ? kMost : 1.0;
    case comm::ReduceOp::kMax:
      return is_float ? -kMost : 0.0;
    default:
      return 0.0;
  }
}

// The largest or smallest integer has no exact double, so integers are filled apart.
at::Tensor neutral_like(at::IntArrayRef sizes, const at::TensorOptions& options, comm::ReduceOp op) {
  const auto dtype = options.dtype().toScalarType();
  const at::Tensor tensor = at::full(sizes, neutral_of(op, dtype), options);
  const bool is_min = op == comm::ReduceOp::kMin, is_max = op == comm::ReduceOp::kMax;
  if ((is_min || is_max) && c10::isIntegralType(dtype, false)) {
    AT_DISPATCH_INTEGRAL_TYPES(dtype, "neutral_like", [&] {
      using Limits = std::numeric_limits<scalar_t>;
      tensor.fill_(static_cast<int64_t>(is_min ? Limits::max() : Limits::lowest()));
    });
  }
  return tensor;
}

void answer_backward(const json& call, const ActiveRanks& active, const JoinedLoop& loop) {
  BackwardContext context{.models = loop.models.all(),
                          .group = loop.group,
                          .optimizer_calls = loop.gradients.num_optimizer_calls()};
  for (const auto& model : context.models)
    model->set_active(active.first(), active.all_of(loop.group.world_size()));
  const auto held = read_description(call, context);
  loop.gradients.set_sync_gradients(context.ends_window);
  loop.gradients.set_weighted();
  const NoSync scope(held);
  backward(at::zeros({}), {.weight = 0.0}, context);
  // Local SGD divides a window's weights out on each rank that has one.
  const std::vector<bool> apart = call.at("apart");
  for (size_t i = 0; i < apart.size(); ++i) {
    if (apart[i] && context.ends_window) context.models.at(i)->drop_weight();
  }
}

// Of its parameters: a state that was written on root's device would else stay there.
std::optional<c10::Device> device_of(torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params().front().device();
  }
  return {};
}

void answer_average(const json& call, const JoinedLoop& loop) {
  const auto model = loop.models.all().at(call.at(kAverage).get<size_t>());
  average_parameters(*model, loop.group.with_check(false), model->local_sgd().num_steps > 0);
}

void answer_call(const json& call, const ActiveRanks& active, const JoinedLoop& loop) {
  if (is_call(call, kBackward)) return answer_backward(call, active, loop);
  if (is_call(call, kAverage)) return answer_average(call, loop);
  loop.answer(call, active);
}

// From here on everything that the loop trains with announces its collectives.
void enter(Join& join, const DistributedModels::Models& models, const JoinOptions& options,
           training::GradientState& gradients) {
  for (const auto& model : models) model->refresh_if_changed();  // while every rank is there
  for (size_t i = 0; i < models.size(); ++i) models[i]->set_join(&join, i);
  gradients.set_even_batches(options.even_batches);
  gradients.set_meet([&join](const std::string& call) { join.meet(call); });
}

void leave(const DistributedModels::Models& models, training::GradientState& gradients) noexcept {
  gradients.set_even_batches({});
  gradients.set_meet(nullptr);
  for (const auto& model : models) {
    model->set_active(0, true);
    model->set_join(nullptr, 0);
  }
}

}  // namespace

ActiveRanks Join::announce(const json& call) {
  return last_ = hold_round(group_, call);
}

void Join::meet(const std::string& call) {
  announce(json::object({{kMeet, call}}));
}

void Join::refuse(const std::string& call) {
  announce(json::object({{kRefused, call}}));
  throw InternalError(Origin{"join", group_.rank(), group_.world_size()}, call, " was refused and goes on.");
}

std::optional<ActiveRanks> Join::answer(const std::function<void(const json&, const ActiveRanks&)>& answer) {
  while (true) {
    const ActiveRanks active = hold_round(group_, json());
    if (active.ranks.empty()) break;
    last_ = active;
    answer(active.call, active);
  }
  const bool even = last_.ranks.empty() || last_.all_of(group_.world_size());
  return even ? std::nullopt : std::optional(last_);
}

json describe(const JointCall& call, const std::vector<at::Tensor>& tensors) {
  const bool keeps_rows = call.kind == JointCall::Kind::kReduce;
  json list = json::array();
  for (const at::Tensor& tensor : tensors) {
    auto sizes = tensor.sizes().vec();
    const int64_t dim = call.kind != JointCall::Kind::kPad ? 0
                        : call.pad.dim < 0                 ? call.pad.dim + tensor.dim()
                                                           : call.pad.dim;
    if (!keeps_rows && sizes.empty() && call.kind == JointCall::Kind::kGather) sizes = {0};
    if (!keeps_rows && dim >= 0 && dim < static_cast<int64_t>(sizes.size())) sizes[dim] = 0;
    list.push_back({{"dtype", static_cast<int>(tensor.scalar_type())}, {"sizes", sizes}});
  }
  return {{"kind", static_cast<int>(call.kind)},
          {"op", static_cast<int>(call.reduce.op)},
          {"scale", call.reduce.scale},
          {"dim", call.pad.dim},
          {"pad_first", call.pad.pad_first},
          {"pad_index", call.pad.pad_index.toDouble()},
          {"tensors", list}};
}

std::vector<at::Tensor> neutral_tensors(const json& description, c10::Device device) {
  std::vector<at::Tensor> tensors;
  for (const json& one : description.at("tensors")) {
    const auto options =
        at::TensorOptions(device).dtype(static_cast<at::ScalarType>(one.at("dtype").get<int>()));
    tensors.push_back(neutral_like(one.at("sizes").get<std::vector<int64_t>>(), options,
                                   static_cast<comm::ReduceOp>(description.at("op").get<int>())));
  }
  return tensors;
}

std::vector<at::Tensor> carry_out(const json& description, const std::vector<at::Tensor>& tensors,
                                  const ActiveRanks& active, const comm::Group& group) {
  const comm::Group unchecked = group.with_check(false);
  const auto site = comm::Group::Site::current();
  switch (static_cast<JointCall::Kind>(description.at("kind").get<int>())) {
    case JointCall::Kind::kGather:
      return comm::detail::gather(unchecked, tensors, site);
    case JointCall::Kind::kPad:
      return comm::detail::pad(unchecked, tensors,
                               {.dim = description.at("dim"),
                                .pad_index = description.at("pad_index").get<double>(),
                                .pad_first = description.at("pad_first")},
                               site);
    case JointCall::Kind::kReduce:
      break;
  }
  comm::ReduceOptions options{.op = static_cast<comm::ReduceOp>(description.at("op").get<int>()),
                              .scale = description.at("scale")};
  if (options.op == comm::ReduceOp::kMean) {
    options.op = comm::ReduceOp::kSum;
    options.scale /= static_cast<double>(active.ranks.size());
  }
  return comm::detail::reduce(unchecked, tensors, options, site);
}

void broadcast_states(const training::StateRegistry& registry, const comm::Group& group, int root) {
  for (const auto& [name, optimizer] : registry.optimizers()) {
    std::stringstream mine;
    if (group.rank() == root) {
      torch::serialize::OutputArchive archive;
      optimizer->save(archive);
      archive.save_to(mine);
    }
    const std::string written = mine.str();
    const json bytes = json::binary({written.begin(), written.end()});
    const json::binary_t told = comm::broadcast_object(group, bytes, root).get_binary();
    if (group.rank() == root) continue;
    std::istringstream theirs(std::string(told.begin(), told.end()));
    torch::serialize::InputArchive archive;
    archive.load_from(theirs, device_of(*optimizer));
    optimizer->load(archive);
  }
  for (const auto& one : registry.all()) {
    if (one.kind != training::StateKind::kScheduler && one.kind != training::StateKind::kScaler) continue;
    const json state = group.rank() == root ? json(one.state().value().to_json()) : json();
    const json theirs = comm::broadcast_object(group, state, root);
    if (group.rank() != root) one.load_state(core::Value::parse_json(theirs.get<std::string>()));
  }
}

void run_joined(Join& join, const std::function<void()>& fn, const JoinOptions& options,
                const JoinedLoop& loop) {
  const auto models = loop.models.all();  // kept, so that their places stay
  if (std::any_of(models.begin(), models.end(), [](const auto& model) { return model->shares_parameters(); })) {
    throw UsageError(Origin{"join", loop.group.rank(), loop.group.world_size()},
                     "join_uneven_inputs with sharded parameters: a rank without data could not step its slices. Give "
                     "every rank as many batches (even_batches), or use ShardStage::kNone.");
  }
  const UnevenBatchNorms batch_norms(loop.models.modules());
  const auto at_end = c10::make_scope_exit([&] { leave(models, loop.gradients); });
  enter(join, models, options, loop.gradients);
  fn();
  std::optional<ActiveRanks> last;
  batch_norms.answer([&] {
    last = join.answer([&](const json& call, const ActiveRanks& active) { answer_call(call, active, loop); });
  });
  for (const auto& model : models) {
    average_parameters(*model, loop.group.with_check(false), model->local_sgd().num_steps > 0);
  }
  if (!last) return;
  for (const auto& model : models) model->broadcast_from(last->first());
  broadcast_states(loop.optimizer_registry, loop.group, last->first());
  loop.accumulation.set_step(comm::broadcast_object(loop.group, loop.accumulation.step(), last->first()));
}

}  // namespace hasten::parallel
