// Program: the record of one forward, the same on all ranks: its operators, their results, and the values that go from
// stage to stage.
//
// It is made by a first forward of each shape of microbatch, in which the stages tell each other the facts of results.
// Later forwards read them here, and send what later stages take as soon as it is made: no rank asks.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parallel/pipeline/staged_tensor.h"

namespace hasten::parallel::pipeline {

/// The results of one operator.
struct CallRecord {
  enum class Kind : int64_t { kTensor, kTensors, kNumber };
  /// One of what the operator returns; `count` tensors.
  struct Slot {
    Kind kind = Kind::kTensor;
    int64_t count = 1;
    bool operator==(const Slot&) const = default;
  };

  std::string name = {};
  int stage = 0;
  std::vector<Slot> slots = {};
  /// Facts of all tensors, slot after slot.
  std::vector<ValueFacts> values = {};

  /// As numbers, for a message; without name and stage.
  std::vector<int64_t> encode() const;
  void decode(const std::vector<int64_t>& words);
};

/// A value goes from its stage to a later one.
struct Transfer {
  int index = 0;
  ValueId value = {};
  int from = 0, to = 0;
  /// A gradient comes back.
  bool has_gradient = false;
};

struct Program {
  std::vector<CallRecord> calls = {};
  /// By value and receiving stage.
  std::map<std::pair<ValueId, int>, Transfer> transfers = {};
  /// The stage of the forward's result.
  int result_stage = -1;
  c10::ScalarType result_dtype = c10::ScalarType::Float;
};

}  // namespace hasten::parallel::pipeline
