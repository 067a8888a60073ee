// State's access, tensors taken out and put back, and the registry; see stateful.h.
#include "hasten/training/stateful.h"

#include <algorithm>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"

namespace hasten::training {
namespace {

constexpr const char* kTensorKey = "$tensor";

[[noreturn]] void throw_kind(const State& state, const char* expected) {
  const char* found = state.is_tensor() ? "a tensor" : state.is_map() ? "a map" : "a plain value";
  throw UsageError(Origin{"training"}, "a state holds ", found, "; expected ", expected, ". Load what state() gave.");
}

std::string escaped(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (c == '.') {
      out += "%2E";
    } else if (c == '%') {
      out += "%25";
    } else {
      out += c;
    }
  }
  return out;
}

core::Value take_tensors(const State& state, const std::string& path, SplitState& out) {
  if (state.is_tensor()) {
    out.tensors.emplace_back(path, state.tensor());
    return core::Value::map({{kTensorKey, path}});
  }
  if (!state.is_map()) return state.value();
  core::Value::Map map;
  for (const auto& [name, child] : state.map()) {
    map.emplace_back(name, take_tensors(child, path.empty() ? escaped(name) : path + "." + escaped(name), out));
  }
  return map;
}

}  // namespace

bool State::is_map() const noexcept {
  const auto* value = std::get_if<core::Value>(&data_);
  return value == nullptr ? data_.index() == 2 : value->is_map();
}

core::Value State::value() const {
  if (const auto* value = std::get_if<core::Value>(&data_)) return *value;
  if (is_tensor()) throw_kind(*this, "a plain value");
  core::Value::Map plain;
  for (const auto& [name, child] : std::get<Map>(data_)) plain.emplace_back(name, child.value());
  return plain;
}

const at::Tensor& State::tensor() const {
  if (!is_tensor()) throw_kind(*this, "a tensor");
  return std::get<at::Tensor>(data_);
}

State::Map State::map() const {
  if (const auto* map = std::get_if<Map>(&data_)) return *map;
  if (!is_map()) throw_kind(*this, "a map");
  Map map;
  for (const auto& [name, child] : std::get<core::Value>(data_).as_map()) map.emplace_back(name, State(child));
  return map;
}

bool State::contains(std::string_view name) const noexcept {
  if (const auto* value = std::get_if<core::Value>(&data_)) return value->contains(name);
  const auto* map = std::get_if<Map>(&data_);
  return map != nullptr && std::any_of(map->begin(), map->end(), [&](const auto& item) { return item.first == name; });
}

State State::at(std::string_view name) const {
  if (is_tensor()) throw_kind(*this, "a map");
  if (const auto* value = std::get_if<core::Value>(&data_)) return State(value->at(name));
  std::vector<std::string> names;
  for (const auto& [key, child] : std::get<Map>(data_)) {
    if (key == name) return child;
    names.push_back(key);
  }
  throw UsageError(Origin{"training"}, "a state has no '", name, "'; it has ", hasten::join(names),
                   guess_end(name, names));
}

SplitState split_tensors(const State& state) {
  SplitState out;
  out.value = take_tensors(state, "", out);
  return out;
}

State join_tensors(const core::Value& value, const std::function<at::Tensor(const std::string& path)>& tensor) {
  if (!value.is_map()) return State(value);
  const auto& map = value.as_map();
  if (map.size() == 1 && map[0].first == kTensorKey && map[0].second.is_string())
    return State(tensor(map[0].second.as_string()));
  State::Map out;
  for (const auto& [name, child] : map) out.emplace_back(name, join_tensors(child, tensor));
  return State(std::move(out));
}

State StateCodec<std::map<std::string, at::Tensor>>::encode(const std::map<std::string, at::Tensor>& tensors) {
  State::Map map;
  for (const auto& [name, tensor] : tensors) map.emplace_back(name, State(tensor));
  return State(std::move(map));
}

std::map<std::string, at::Tensor> StateCodec<std::map<std::string, at::Tensor>>::decode(const State& state) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, child] : state.map()) tensors.emplace(name, child.tensor());
  return tensors;
}

State StateCodec<process::RandomState>::encode(const process::RandomState& random) {
  State::Map map{{"cpu", State(random.cpu)}};
  for (size_t i = 0; i < random.cuda.size(); ++i) map.emplace_back(text("cuda", i), State(random.cuda[i]));
  return State(std::move(map));
}

process::RandomState StateCodec<process::RandomState>::decode(const State& state) {
  process::RandomState random{state.at("cpu").tensor()};
  for (size_t i = 0; state.contains(text("cuda", i)); ++i) random.cuda.push_back(state.at(text("cuda", i)).tensor());
  return random;
}

bool names_collide(std::string_view one, std::string_view other) noexcept {
  const auto is_below = [](std::string_view name, std::string_view above) {
    return name.size() > above.size() && name.starts_with(above) && name[above.size()] == '.';
  };
  return one == other || is_below(one, other) || is_below(other, one);
}

const char* name_of(StateKind kind) noexcept {
  switch (kind) {
    case StateKind::kOptimizer:
      return "optimizer";
    case StateKind::kScheduler:
      return "scheduler";
    case StateKind::kLoader:
      return "loader";
    case StateKind::kScaler:
      return "scaler";
    case StateKind::kTrackers:
      return "trackers";
    case StateKind::kCustom:
      break;
  }
  return "custom";
}

void StateRegistry::add(const std::shared_ptr<torch::optim::Optimizer>& optimizer, std::string name) {
  add_entry({StateKind::kOptimizer, std::move(name), {optimizer}, nullptr, {}, {}});
}

std::shared_ptr<void> StateRegistry::lock(const Entry& entry) {
  for (const auto& handle : entry.handles) {
    if (auto object = handle.lock()) return object;
  }
  return nullptr;
}

void StateRegistry::add_entry(Entry entry) {
  std::erase_if(entries_, [](const Entry& each) { return lock(each) == nullptr; });
  const auto object = lock(entry);
  size_t number = 0;
  for (Entry& other : entries_) {
    if (other.kind != entry.kind) continue;
    if (lock(other) == object) {
      other.handles.push_back(entry.handles.front());
      return;
    }
    ++number;
    if (entry.name.empty() || !names_collide(other.name, entry.name)) continue;
    throw UsageError(
        Origin{"training"}, "two objects are registered as ", name_of(entry.kind), " '", other.name, "' and '",
        entry.name,
        "'; expected names of which none is the other, nor begins with it and a '.', since tensors of both "
        "could have one name. Give the second another name.");
  }
  const auto is_taken = [&](const std::string& name) {
    return std::any_of(entries_.begin(), entries_.end(),
                       [&](const Entry& other) { return other.kind == entry.kind && other.name == name; });
  };
  for (; entry.name.empty() || (is_taken(entry.name)); ++number) entry.name = std::to_string(number);
  entries_.push_back(std::move(entry));
}

std::vector<Registered> StateRegistry::of(StateKind kind) const {
  auto all_of = all();
  std::erase_if(all_of, [&](const Registered& each) { return each.kind != kind; });
  return all_of;
}

std::vector<Registered> StateRegistry::all() const {
  std::vector<Registered> alive;
  for (const Entry& entry : entries_) {
    if (auto object = lock(entry)) {
      alive.push_back({entry.kind, entry.name, std::move(object), entry.state, entry.load_state});
    }
  }
  return alive;
}

std::vector<std::pair<std::string, std::shared_ptr<torch::optim::Optimizer>>> StateRegistry::optimizers() const {
  std::vector<std::pair<std::string, std::shared_ptr<torch::optim::Optimizer>>> found;
  for (const auto& each : of(StateKind::kOptimizer)) {
    // The entry was made from a shared_ptr<Optimizer>, so the address is that of the base class.
    found.emplace_back(each.name, std::shared_ptr<torch::optim::Optimizer>(
                                      each.object, static_cast<torch::optim::Optimizer*>(each.object.get())));
  }
  return found;
}

}  // namespace hasten::training
