// The room's name in messages; private to the room.
#pragma once

#include "hasten/core/error.h"

namespace hasten::files {

inline constexpr Origin kOrigin{"files"};

/// Throws a DataError about `path`: "'path' is damaged or not of this form: …".
template <class... Parts>
[[noreturn]] void fail_data(const std::string& path, const Parts&... parts) {
  throw DataError(kOrigin, path, "'", path, "': ", parts...);
}

}  // namespace hasten::files
