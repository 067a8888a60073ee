// LoaderState: the position of a loader, as a value that can be saved and loaded again.
//
// Position counts the samples of the global order that the training loops of all ranks have received. So it does not
// depend on workers, and a run goes on from it on another number of processes. loader.h takes and loads it. The caller
// (or checkpoint) writes it to a file: it converts to and from nlohmann::json and training::State.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "hasten/training/stateful.h"

namespace hasten::data {

struct LoaderState {
  /// Seed of the sampler; 0 where it has none. If it is unset, it is drawn when the first pass begins. Such a state
  /// goes with any seed.
  std::optional<uint64_t> seed = 0;
  uint64_t epoch = 0;
  /// Samples of the epoch's global order that all ranks together have received. Repeated ones do not count.
  uint64_t position = 0;
  /// Samples of an epoch; a state is only loaded where this is the same. 0 for streams of unknown length.
  uint64_t num_samples = 0;
  /// Only for samplers that draw from the default generator, and only in mid-epoch. It is that generator's state when
  /// the epoch began (5,056 bytes, opaque, valid for the same libtorch release).
  std::vector<uint8_t> generator = {};
  /// For loading alone: batches of the loader's batch_size that lie before the next one, besides `position`. state()
  /// gives 0.
  uint64_t batches = 0;

  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

/// For nlohmann::json, found by argument-dependent lookup.
template <class Json>
void to_json(Json& json, const LoaderState& state) {
  json = {{"seed", state.seed ? Json(*state.seed) : Json(nullptr)},
          {"epoch", state.epoch},
          {"position", state.position},
          {"num_samples", state.num_samples},
          {"generator", state.generator}};
  if (state.batches > 0) json["batches"] = state.batches;
}
template <class Json>
void from_json(const Json& json, LoaderState& state) {
  const Json& seed = json.at("seed");
  state.seed = seed.is_null() ? std::nullopt : std::optional(seed.template get<uint64_t>());
  json.at("epoch").get_to(state.epoch);
  json.at("position").get_to(state.position);
  json.at("num_samples").get_to(state.num_samples);
  json.at("generator").get_to(state.generator);
  state.batches = json.value("batches", uint64_t{0});
}

}  // namespace hasten::data

/// A seed beyond 2^63 is stored as decimal text; the generator as a tensor of bytes.
template <>
struct hasten::training::StateCodec<hasten::data::LoaderState> {
  static State encode(const data::LoaderState& state);
  static data::LoaderState decode(const State& state);
};
