// See heal.h.
#include "parallel/survive/heal.h"

#include <torch/types.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "hasten/comm/group/rejoin.h"
#include "hasten/comm/nested/objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/core/value.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/join/join.h"

namespace hasten::parallel {
namespace {

using core::Value;

// Values, and dtypes and sizes of the tensors that follow.
Value describe(const training::SplitState& split) {
  Value tensors = Value::list();
  for (const auto& [path, tensor] : split.tensors) {
    tensors.push_back(Value::map({{"path", path},
                                  {"dtype", static_cast<int64_t>(tensor.scalar_type())},
                                  {"sizes", Value(tensor.sizes().vec())}}));
  }
  return Value::map({{"value", split.value}, {"tensors", std::move(tensors)}});
}

std::vector<int64_t> sizes_of(const Value& list) {
  std::vector<int64_t> sizes;
  for (const auto& size : list.as_list()) sizes.push_back(size.as_int());
  return sizes;
}

void require_same_objects(const SurviveParts& parts, int root) {
  using training::StateKind;
  std::string mine = text(parts.models.all().size(), " models\n");
  for (const auto& [name, optimizer] : parts.registry.optimizers()) mine += text("optimizer ", name, '\n');
  for (const auto kind : {StateKind::kScheduler, StateKind::kScaler, StateKind::kCustom, StateKind::kLoader}) {
    for (const auto& one : parts.registry.of(kind)) mine += text(training::name_of(kind), ' ', one.name, '\n');
  }
  const std::string theirs = comm::broadcast_object(parts.process.group(), mine, root);
  if (theirs == mine) return;
  throw UsageError(Origin{"survive", parts.process.rank(), parts.process.world_size()}, "rank ", root,
                   " has prepared or registered other objects than this rank, which has:\n", mine,
                   "A rank that is replaced runs main() from its start, so everything is to be prepared and registered "
                   "before survive.");
}

}  // namespace

std::optional<int> choose_root(const std::vector<Standing>& ranks) noexcept {
  const auto worse = [](const Standing& a, const Standing& b) {
    return std::tuple(a.has_state, a.committed, a.is_whole) < std::tuple(b.has_state, b.committed, b.is_whole);
  };
  const auto best = std::max_element(ranks.begin(), ranks.end(), worse);  // the first of equal ones
  if (best == ranks.end() || !best->has_state) return std::nullopt;
  return static_cast<int>(best - ranks.begin());
}

std::vector<Standing> gather_standings(const comm::Group& group, const Standing& mine) {
  const at::Tensor all = torch::empty({group.world_size(), 3}, at::kLong);
  group.all_gather_into_(all, torch::tensor({mine.committed, int64_t{mine.has_state}, int64_t{mine.is_whole}}));
  std::vector<Standing> ranks;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const int64_t* const row = all.const_data_ptr<int64_t>() + 3 * rank;
    ranks.push_back({row[0], row[1] != 0, row[2] != 0});
  }
  return ranks;
}

training::State broadcast_state(const comm::Group& group, const training::State& mine, int root) {
  const bool is_root = group.rank() == root;
  const training::SplitState own = is_root ? training::split_tensors(mine) : training::SplitState{};
  const Value theirs = comm::broadcast_object(group, is_root ? describe(own) : Value(), root);
  std::map<std::string, at::Tensor> tensors;
  size_t next = 0;
  for (const Value& one : theirs.at("tensors").as_list()) {
    const auto dtype = static_cast<at::ScalarType>(one.at("dtype").as_int());
    at::Tensor tensor = is_root ? own.tensors[next++].second.detach().to(at::kCPU).contiguous()
                                : at::empty(sizes_of(one.at("sizes")), at::TensorOptions().dtype(dtype));
    group.broadcast_(tensor, root);
    tensors.emplace(one.at("path").as_string(), std::move(tensor));
  }
  if (is_root) return mine;
  return training::join_tensors(theirs.at("value"), [&](const std::string& path) { return tensors.at(path); });
}

void heal(const SurviveParts& parts, int root) {
  const at::NoGradGuard no_grad;
  const comm::Group& group = parts.process.group();
  require_same_objects(parts, root);
  comm::meetings_of(group)->set_source(root);
  for (const auto& model : parts.models.all()) model->refresh_if_changed();  // the ranks have met anew
  broadcast_states(parts.registry, group, root);
  for (const auto& one : parts.registry.of(training::StateKind::kCustom)) {
    const bool is_root = group.rank() == root;
    const training::State theirs = broadcast_state(group, is_root ? one.state() : training::State(), root);
    if (!is_root) one.load_state(theirs);
  }
}

}  // namespace hasten::parallel
