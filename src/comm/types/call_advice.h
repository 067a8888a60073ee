// Advice for calls that differ: a call of all ranks that programs put behind a question for the main process.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "comm/types/call_label.h"
#include "hasten/core/text.h"

namespace hasten::comm {

/// Returns true for the purpose of a call that all ranks of a program make.
inline bool is_of_all_ranks(std::string_view purpose) {
  constexpr std::array<std::string_view, 8> kOfAllRanks = {
      "save_state",         "load_state",         "resume", "end_training", "wait_for_everyone", "main_process_first",
      "prepare of a model", "prepare of a loader"};
  return std::find(kOfAllRanks.begin(), kOfAllRanks.end(), purpose) != kOfAllRanks.end();
}

/// Returns a sentence and a blank if one of two calls that differ is a call of all ranks, such as save_state. Empty
/// otherwise.
inline std::string advice_on(const std::string& rank, const CallLabel& call, const std::string& other_rank,
                             const CallLabel& other_call) {
  const std::string_view own = call.words.data(), other = other_call.words.data();
  if (own == other) return {};
  const auto advice = [](const std::string& with, std::string_view made, const std::string& without) {
    return text(made, " is a call of all ranks, and rank ", with, " made it where rank ", without,
                " did not. Make it on every rank at the same place, not behind is_main_process(). ");
  };
  if (is_of_all_ranks(own)) return advice(rank, own, other_rank);
  return is_of_all_ranks(other) ? advice(other_rank, other, rank) : std::string();
}

/// Returns a blank and a sentence for a rank that another one has left alone in `call`.
inline std::string advice_on_absence(const CallLabel& call) {
  const std::string_view made = call.words.data();
  if (!is_of_all_ranks(made)) {
    return " If that rank's loop has ended first, give all ranks as many batches, or use join_uneven_inputs.";
  }
  return text(' ', made, " is a call of all ranks: make it on every rank, not behind is_main_process().");
}

}  // namespace hasten::comm
