// A loader's state as a tree of values; see loader_state.h.
#include "hasten/data/loader/loader_state.h"

#include <ATen/ops/empty.h>

#include <charconv>
#include <cstring>

#include "hasten/core/error.h"

namespace hasten::training {
namespace {

core::Value encode_number(uint64_t number) {
  if (number <= static_cast<uint64_t>(INT64_MAX)) return static_cast<int64_t>(number);
  return std::to_string(number);
}

uint64_t decode_number(const core::Value& value) {
  if (!value.is_string()) return static_cast<uint64_t>(value.as_int());
  const std::string& digits = value.as_string();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw UsageError(Origin{"data"}, "a loader's state holds '", digits,
                     "'; expected a number from 0 to 2^64 - 1. Load what "
                     "state() gave.");
  }
  return number;
}

}  // namespace

State StateCodec<data::LoaderState>::encode(const data::LoaderState& state) {
  State::Map map{{"seed", State(state.seed ? encode_number(*state.seed) : core::Value())},
                 {"epoch", State(encode_number(state.epoch))},
                 {"position", State(encode_number(state.position))},
                 {"num_samples", State(encode_number(state.num_samples))}};
  if (state.batches > 0) map.emplace_back("batches", State(encode_number(state.batches)));
  if (!state.generator.empty()) {
    const at::Tensor bytes = at::empty({static_cast<int64_t>(state.generator.size())}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), state.generator.data(), state.generator.size());
    map.emplace_back("generator", State(bytes));
  }
  return State(std::move(map));
}

data::LoaderState StateCodec<data::LoaderState>::decode(const State& state) {
  data::LoaderState out;
  const core::Value seed = state.at("seed").value();
  out.seed = seed.is_null() ? std::nullopt : std::optional(decode_number(seed));
  out.epoch = decode_number(state.at("epoch").value());
  out.position = decode_number(state.at("position").value());
  out.num_samples = decode_number(state.at("num_samples").value());
  if (state.contains("batches")) out.batches = decode_number(state.at("batches").value());
  if (state.contains("generator")) {
    const at::Tensor bytes = state.at("generator").tensor().contiguous();
    const auto* begin = static_cast<const uint8_t*>(bytes.const_data_ptr());
    out.generator.assign(begin, begin + bytes.nbytes());
  }
  return out;
}

}  // namespace hasten::training
