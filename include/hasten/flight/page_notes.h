// Notes in a rank's page beside its records.
//
// They are a value that a report has, the end of the rank by a watch thread, and calls that count no more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hasten/flight/page.h"

namespace hasten::flight {

/// The first value that was not finite.
struct UnreportedValue {
  std::string name = {};
  int64_t step = 0, epoch = 0, batch = 0;
};

/// Returns the value that was not finite, until it is reported. Values may be finite again since. In the page its step
/// is below 0 once a report has it, and its epoch is -1 - e once values are finite again.
std::optional<UnreportedValue> unreported_value(const Page& page);
bool has_reported_value(const Page& page) noexcept;
/// Notes that a report has it, or one of another rank's.
void note_value_reported(Page& page) noexcept;

/// Notes behind the rank's facts that a watch thread ends it because of a hang.
void note_end_by_watch(Page& page) noexcept;
bool is_ended_by_watch(const Page& page);

/// Drops the calls of a group, whose numbers begin anew. Tickets of dropped calls do nothing.
void forget_calls(Page& page, int group) noexcept;

}  // namespace hasten::flight
