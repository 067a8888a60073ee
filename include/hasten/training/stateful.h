// Stateful: anything whose state can be taken and loaded again, and the one registry of such objects.
//
// State is a tree of plain values (core::Value), tensors, and maps of both. A class is Stateful by two methods, state()
// and load_state(); it needs no base class. Optimizers, schedulers, loaders, the gradient scaler and objects of the
// program's own stand in one StateRegistry, which loops of uneven length, checkpoints and free_memory share. A name is
// given when an object is registered, so that a state finds its object again whatever the order of preparation.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/process/random.h"

namespace torch::optim {
class Optimizer;
}

namespace hasten::training {

/// A plain value, a tensor, or a map of names to states that keeps its order.
class State {
 public:
  using Map = std::vector<std::pair<std::string, State>>;

  State() : data_(core::Value()) {}
  State(core::Value value) : data_(std::move(value)) {}
  State(at::Tensor tensor) : data_(std::move(tensor)) {}
  State(Map map) : data_(std::move(map)) {}
  /// Returns a map of the given pairs: `State::of({{"decay", 0.99}, {"weight", tensor}})`.
  static State of(std::initializer_list<std::pair<std::string, State>> pairs) { return State(Map(pairs)); }
  template <class T>
    requires(std::is_constructible_v<core::Value, T> && !std::is_same_v<std::remove_cvref_t<T>, core::Value> &&
             !std::is_same_v<std::remove_cvref_t<T>, at::Tensor> && !std::is_same_v<std::remove_cvref_t<T>, State>)
  State(T&& value) : data_(core::Value(std::forward<T>(value))) {}

  bool is_value() const noexcept { return data_.index() == 0; }
  bool is_tensor() const noexcept { return data_.index() == 1; }
  /// Returns true for a map of states and for a plain value that is a map.
  bool is_map() const noexcept;

  /// Return the content of that kind. value() turns a map without tensors into a plain one.
  /// Throws: UsageError, naming the kind found, or the tensor that is in the way.
  core::Value value() const;
  const at::Tensor& tensor() const;
  Map map() const;
  /// Returns the state at `name`. Throws: UsageError, with the nearest name, if it is not there.
  State at(std::string_view name) const;
  bool contains(std::string_view name) const noexcept;

 private:
  std::variant<core::Value, at::Tensor, Map> data_;
};

/// The plain part of a state, in which {"$tensor": path} replaces each tensor, and the tensors by path.
struct SplitState {
  core::Value value;
  std::vector<std::pair<std::string, at::Tensor>> tensors = {};
};

/// Takes tensors out of a state. A path joins the names of the maps by '.'; '.', '%' in a name become %2E, %25.
SplitState split_tensors(const State& state);
/// Does the opposite; `tensor` gives the tensor at a path. Throws: what `tensor` throws.
State join_tensors(const core::Value& value, const std::function<at::Tensor(const std::string& path)>& tensor);

/// Turns a type T to State and back. Specialise it if state() gives neither a State nor a type that converts to State.
template <class T>
struct StateCodec;

template <>
struct StateCodec<State> {
  static State encode(State state) { return state; }
  static State decode(const State& state) { return state; }
};
template <>
struct StateCodec<core::Value> {
  static State encode(core::Value value) { return State(std::move(value)); }
  static core::Value decode(const State& state) { return state.value(); }
};
template <>
struct StateCodec<at::Tensor> {
  static State encode(at::Tensor tensor) { return State(std::move(tensor)); }
  static at::Tensor decode(const State& state) { return state.tensor(); }
};
/// Tensors by name.
template <>
struct StateCodec<std::map<std::string, at::Tensor>> {
  static State encode(const std::map<std::string, at::Tensor>& tensors);
  static std::map<std::string, at::Tensor> decode(const State& state);
};
template <>
struct StateCodec<process::RandomState> {
  static State encode(const process::RandomState& random);
  static process::RandomState decode(const State& state);
};
/// A JSON type, known by dump() and parse(); its header is not needed here.
template <class Json>
  requires requires(const Json& json) {
    { json.dump() } -> std::convertible_to<std::string>;
    { Json::parse(std::string()) } -> std::convertible_to<Json>;
  }
struct StateCodec<Json> {
  static State encode(const Json& json) { return State(core::Value::parse_json(json.dump())); }
  static Json decode(const State& state) { return Json::parse(state.value().to_json()); }
};

/// A type whose objects are saved and loaded by state() and load_state().
template <class T>
concept Stateful = requires(T& object) {
  { StateCodec<std::remove_cvref_t<decltype(object.state())>>::encode(object.state()) } -> std::convertible_to<State>;
  object.load_state(StateCodec<std::remove_cvref_t<decltype(object.state())>>::decode(std::declval<const State&>()));
};

/// Converts the state of a Stateful object to a tree, and back. Throws: the exceptions of
/// the object's methods.
template <Stateful T>
State state_of(T& object) {
  return StateCodec<std::remove_cvref_t<decltype(object.state())>>::encode(object.state());
}
template <Stateful T>
void load_state_of(T& object, const State& state) {
  object.load_state(StateCodec<std::remove_cvref_t<decltype(object.state())>>::decode(state));
}

enum class StateKind { kOptimizer, kScheduler, kLoader, kScaler, kCustom, kTrackers };
/// "optimizer", "scheduler" …
const char* name_of(StateKind kind) noexcept;

/// Returns true if tensors of two objects of these names could be saved under one name: "ema" and "ema", or "ema" and
/// "ema.slow".
bool names_collide(std::string_view one, std::string_view other) noexcept;

/// A registered object that is still there.
struct Registered {
  StateKind kind = StateKind::kCustom;
  std::string name = {};
  /// Keeps the object.
  std::shared_ptr<void> object = {};
  std::function<State()> state = {};
  std::function<void(const State&)> load_state = {};
};

/// The objects of one Accelerator that have a state, in the order in which they came. Optimizers are held as such: how
/// their state is taken depends on the reader (slices, Python's form).
class StateRegistry {
 public:
  /// Objects are held weakly, except kCustom and kTrackers ones, which the registry keeps. An object that is there
  /// already keeps its name. Without a name the object gets its number within its kind: "0", "1" ….
  /// Throws: UsageError if the name collides with that of another existing object of the
  /// kind (names_collide).
  template <Stateful T>
  void add(StateKind kind, const std::shared_ptr<T>& object, std::string name = {}) {
    T* raw = object.get();
    add_entry({kind,
               std::move(name),
               {object},
               kind == StateKind::kCustom || kind == StateKind::kTrackers ? object : nullptr,
               [raw] { return state_of(*raw); },
               [raw](const State& state) { load_state_of(*raw, state); }});
  }
  void add(const std::shared_ptr<torch::optim::Optimizer>& optimizer, std::string name = {});
  /// Adds a scheduler; the name in joined loops.
  template <Stateful T>
  void add_scheduler(const std::shared_ptr<T>& scheduler) {
    add(StateKind::kScheduler, scheduler);
  }

  /// Returns the existing objects of a kind, or of all, in order.
  std::vector<Registered> of(StateKind kind) const;
  std::vector<Registered> all() const;
  /// Returns the existing optimizers with their names, in order.
  std::vector<std::pair<std::string, std::shared_ptr<torch::optim::Optimizer>>> optimizers() const;
  /// Forgets all objects.
  void clear() noexcept { entries_.clear(); }

 private:
  struct Entry {
    StateKind kind;
    std::string name;
    /// Handles of one object; it is there as long as any of them.
    std::vector<std::weak_ptr<void>> handles;
    std::shared_ptr<void> kept;
    std::function<State()> state;
    std::function<void(const State&)> load_state;
  };
  static std::shared_ptr<void> lock(const Entry& entry);
  void add_entry(Entry entry);
  std::vector<Entry> entries_;
};

}  // namespace hasten::training
