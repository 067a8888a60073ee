// The bridge to trackers whose clients are Python packages: a Python process that follows the journal and calls the
// client. Its program is bridge.py, which is embedded in the library. make_bridge_sink of sink.h starts it.
#pragma once

#include <string_view>

namespace hasten::tracking {

/// Returns the text of bridge.py.
std::string_view bridge_program() noexcept;

}  // namespace hasten::tracking
