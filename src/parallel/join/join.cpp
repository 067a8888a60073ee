// See join.h.
#include "hasten/parallel/join/join.h"

#include <c10/util/ScopeExit.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <algorithm>
#include <sstream>

#include "hasten/comm/nested/json_objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/parallel/norm/sync_batch_norm.h"
#include "hasten/parallel/shard/sharding.h"
#include "parallel/join/joined_models.h"
#include "parallel/join/joined_sharding.h"

namespace hasten::parallel {
namespace {

using nlohmann::json;

// Calls of the loop itself.
constexpr const char *kLoop = "loop", *kRequireAll = "all ranks: ", *kReject = "rejected: ", *kFailed = "failed: ";

json encoded(const JoinCall& call) {
  return {call.component, call.operation, call.integers, call.reals};
}

JoinCall decoded(const json& call) {
  return {call.at(0), call.at(1), call.at(2), call.at(3)};
}

std::optional<std::string> text_after(const JoinCall& call, const std::string& prefix) {
  if (call.component != kLoop || !call.operation.starts_with(prefix)) return std::nullopt;
  return call.operation.substr(prefix.size());
}

void check_that_none_is_rejected(const std::vector<JoinCall>& calls, const Origin& origin) {
  for (const JoinCall& call : calls) {
    if (const auto what = text_after(call, kReject)) {
      throw UsageError(origin, *what,
                       " inside join_uneven_inputs, where ranks that have run out of data could not take part. "
                       "Do it before or after the loop.");
    }
  }
}

void check_that_none_has_failed(const std::vector<JoinCall>& calls, const Origin& origin) {
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (const auto message = text_after(calls[rank], kFailed)) {
      throw CommError(origin, "join", "rank ", rank, " has left join_uneven_inputs with an error: ", *message);
    }
  }
}

void check_that_all_have_data(const ActiveRanks& active, const Origin& origin) {
  const auto what = text_after(active.call, kRequireAll);
  if (!what || active.all_of(origin.world_size)) return;
  throw UsageError(origin, *what, " inside join_uneven_inputs needs all ranks, but only rank ", join(active.ranks),
                   " has not run out of data. Use one join_uneven_inputs for each loop over a loader, and do "
                   "what is for all ranks before or after it.");
}

// Returns the device of its parameters: a state that was written on root's device would else stay there.
std::optional<c10::Device> device_of(torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params().front().device();
  }
  return {};
}

std::string broadcast_bytes(const comm::Group& group, std::string bytes, int root) {
  const at::Tensor size = torch::tensor({static_cast<int64_t>(bytes.size())}, at::kLong);
  group.broadcast_(size, root);
  bytes.resize(static_cast<size_t>(size.item<int64_t>()));
  if (bytes.empty()) return bytes;
  const auto count = static_cast<int64_t>(bytes.size());
  group.broadcast_(torch::from_blob(bytes.data(), {count}, at::TensorOptions().dtype(at::kByte)), root);
  return bytes;
}

// The states of optimizers and schedulers, and the place in the window.
class JoinedStates : public training::Joinable {
 public:
  explicit JoinedStates(const JoinedLoop& loop) : loop_(loop) {}
  std::string name() const override { return "states"; }
  void shadow(const JoinCall&, const ActiveRanks&) override {}
  void finish(int root) override {
    // Slices of split optimizers are each rank's own, and were stepped on all of them.
    broadcast_states(loop_.optimizer_registry, loop_.group, root, [this](const torch::optim::Optimizer& optimizer) {
      return loop_.sharding && loop_.sharding->steps(optimizer);
    });
    loop_.accumulation.set_step(comm::broadcast_object(loop_.group, loop_.accumulation.step(), root));
  }

 private:
  const JoinedLoop& loop_;
};

}  // namespace

training::Joinable* Join::find(const std::string& name) const noexcept {
  const auto found =
      std::find_if(components_.begin(), components_.end(), [&](auto* one) { return one->name() == name; });
  return found == components_.end() ? nullptr : *found;
}

JoinCall Join::merge(const ActiveRanks& active, const JoinCall& call, int rank) const {
  if (call == active.call) return call;
  const auto* component = call.component == active.call.component ? find(call.component) : nullptr;
  if (component != nullptr) {
    if (auto merged = component->merge(active.call, call)) return *std::move(merged);
  }
  throw UsageError(Origin{"join", group_.rank(), group_.world_size()}, "rank ", active.first(), " is about to do ",
                   describe(active.call), ", rank ", rank, ' ', describe(call),
                   ". Ranks with data must do the same things in the same order.");
}

// A model whose ranks part leaves the loop with an error, of which all other models hear.
JoinCall Join::agreed_by_model(const JoinCall& mine) const {
  if (model_.world_size() == 1) return mine;
  const comm::Purpose purpose("join_uneven_inputs: ranks of one model");
  const auto calls = comm::gather_object(model_.with_check(false), encoded(mine));
  for (size_t rank = 1; rank < calls.size(); ++rank) {
    const JoinCall first = decoded(calls.front()), other = decoded(calls[rank]);
    if (first == other) continue;
    const auto words = [](const JoinCall& call) {
      return call.component.empty() ? std::string("has no more batches") : text("is about to do ", describe(call));
    };
    return {kLoop, text(kFailed, "the ranks of one model leave join_uneven_inputs together, but the first of them ",
                        words(first), ", and rank ", rank, " of it ", words(other),
                        ". Give all ranks of a model the same batches")};
  }
  return mine;
}

ActiveRanks Join::hold_round(const JoinCall& mine) {
  const Origin origin{"join", group_.rank(), group_.world_size()};
  // Until the round has ended well, an error is one of all ranks.
  ended_ = true;
  std::vector<JoinCall> calls;
  const comm::Purpose purpose("join_uneven_inputs");
  const json call_of_model = encoded(agreed_by_model(mine));
  for (const json& call : comm::gather_object(group_.with_check(false), call_of_model)) calls.push_back(decoded(call));
  check_that_none_has_failed(calls, origin);
  check_that_none_is_rejected(calls, origin);
  ActiveRanks active;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (calls[rank].component.empty()) continue;
    active.ranks.push_back(static_cast<int>(rank));
    if (active.ranks.size() == 1) active.call = calls[rank];
    active.call = merge(active, calls[rank], static_cast<int>(rank));
  }
  check_that_all_have_data(active, origin);
  ended_ = false;
  return active;
}

ActiveRanks Join::notify(const JoinCall& call) {
  return last_ = hold_round(call);
}

void Join::require_all(const std::string& what) {
  notify({kLoop, kRequireAll + what});
}

void Join::reject(const std::string& what) {
  notify({kLoop, kReject + what});
  throw InternalError(Origin{"join", group_.rank(), group_.world_size()}, what, " was rejected and goes on.");
}

std::optional<ActiveRanks> Join::shadow() {
  while (true) {
    const ActiveRanks active = hold_round({});
    if (active.ranks.empty()) break;
    last_ = active;
    if (auto* component = find(active.call.component)) component->shadow(active.call, active);
  }
  const bool even = last_.ranks.empty() || last_.all_of(group_.world_size());
  return even ? std::nullopt : std::optional(last_);
}

void Join::fail(const std::string& message) noexcept {
  if (ended_) return;
  // Ranks of this one's model may wait in an exchange, which takes no message of a round.
  if (model_.world_size() > 1) return everyone_.fail(message);
  try {
    hold_round({kLoop, kFailed + message});
  } catch (const std::exception&) {
    // All ranks have the notice now, or the connections are gone.
  }
}

void Join::finish(int root) {
  for (auto* component : components_) component->finish(root);
}

void broadcast_states(const training::StateRegistry& registry, const comm::Group& group, int root,
                      const std::function<bool(const torch::optim::Optimizer&)>& keeps) {
  const comm::Purpose purpose("states of optimizers and schedulers");
  for (const auto& [name, optimizer] : registry.optimizers()) {
    if (keeps && keeps(*optimizer)) continue;
    std::stringstream mine;
    if (group.rank() == root) {
      torch::serialize::OutputArchive archive;
      optimizer->save(archive);
      archive.save_to(mine);
    }
    const std::string bytes = broadcast_bytes(group, mine.str(), root);
    if (group.rank() == root) continue;
    std::istringstream theirs(bytes);
    torch::serialize::InputArchive archive;
    archive.load_from(theirs, device_of(*optimizer));
    optimizer->load(archive);
  }
  for (const auto& one : registry.all()) {
    if (one.kind != training::StateKind::kScheduler && one.kind != training::StateKind::kScaler) continue;
    const core::Value state = group.rank() == root ? one.state().value() : core::Value();
    const core::Value theirs = comm::broadcast_object(group, state, root);
    if (group.rank() != root) one.load_state(theirs);
  }
}

void run_joined(Join& join, const std::function<void()>& fn, const JoinOptions& options, const JoinedLoop& loop) {
  const auto all = loop.models.all();
  const UnevenBatchNorms batch_norms(loop.models.modules());
  JoinedModels models(join, loop.models, loop.group, loop.gradients);
  std::optional<JoinedSharding> sharding;
  if (loop.sharding) sharding.emplace(join, loop);
  JoinedStates states(loop);
  join.add(models);
  join.add(loop.operations);
  if (sharding) join.add(*sharding);
  join.add(states);
  const auto at_end = c10::make_scope_exit([&] {
    loop.gradients.loaders().set_even_batches({});
    loop.gradients.set_join(nullptr);
  });
  loop.gradients.loaders().set_even_batches(options.even_batches);
  loop.gradients.set_join(&join);
  std::optional<ActiveRanks> last;
  try {
    fn();
    batch_norms.answer([&] { last = join.shadow(); });
  } catch (const CommError&) {
    throw;  // the others know
  } catch (const std::exception& error) {
    // In the middle of an exchange the others wait for gradients, and would take a round's message for them.
    const bool exchanging =
        std::any_of(all.begin(), all.end(), [](const auto& model) { return model->step().is_exchanging(); });
    exchanging ? loop.group.fail(error.what()) : join.fail(error.what());
    throw;
  }
  models.average();
  if (last) join.finish(last->first());
}

}  // namespace hasten::parallel
