// CallLabel: the words by which a rank's call appears in the errors of the others.
//
// It travels with headers and fingerprints, so its size is fixed. It holds the call's purpose (purpose.h), or else the
// place in the program. Labels are not compared.
#pragma once

#include <array>
#include <source_location>
#include <string>

namespace hasten::comm {

struct CallLabel {
  /// Cut to fit, and ended by a zero.
  std::array<char, 48> words{};

  /// Returns the label of a call at `site` with this thread's purpose.
  static CallLabel of(const std::source_location& site) noexcept;
  /// " (gradients, bucket 3)", " (train.cpp:42)"; empty without words.
  std::string in_brackets() const;
};

/// Sets the label of what this thread starts at a backend next.
void set_call_label(const CallLabel& label) noexcept;
inline void set_call_label(const std::source_location& site) noexcept {
  set_call_label(CallLabel::of(site));
}
const CallLabel& call_label() noexcept;

}  // namespace hasten::comm
