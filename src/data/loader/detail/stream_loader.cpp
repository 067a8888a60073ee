// What a stream says when it fails or has to be read past; see stream_loader.h.
#include "hasten/data/loader/detail/stream_loader.h"

#include <exception>
#include <string>

namespace hasten::data::detail {

void throw_stream_error(const Origin& origin, size_t position) {
  std::string words = "an exception that is no std::exception", path;
  try {
    throw;
  } catch (const DataError& error) {
    words = error.what();
    path = error.path();
  } catch (const std::exception& error) {
    words = error.what();
  } catch (...) {
  }
  std::throw_with_nested(DataError(origin, path, "the stream failed after ", position, " samples: ", words));
}

void throw_stream_timeout(const Origin& origin, std::chrono::milliseconds timeout) {
  throw StreamTimeout(origin, "", "no batch of the stream within the timeout of ", timeout.count(),
                      " ms. Give a longer timeout.");
}

void warn_reading_past(const Origin& origin, size_t position) {
  const Logger logger("data", {.rank = origin.rank, .world_size = origin.world_size});
  logger.warning(
      text("this stream cannot seek: its first ", position,
           " samples are read once more to go on behind them. Give the dataset a seek(size_t position)."));
}

}  // namespace hasten::data::detail
