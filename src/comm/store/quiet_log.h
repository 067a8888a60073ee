// libtorch's log while the store is used: private to the room.
//
// Its client writes a warning with 25 frames of a stack for a connection that breaks, beside the exception that it
// throws. Breaking connections are how the end of a rank looks, and the exception has all that there is to say.
#pragma once

namespace hasten::comm {

/// Holds back warnings of libtorch's own log while it exists, if the level is the default. Errors come through.
class QuietLog {
 public:
  QuietLog() noexcept;
  ~QuietLog();
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;
};

}  // namespace hasten::comm
